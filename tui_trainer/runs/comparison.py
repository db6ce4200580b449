"""Comparison of several runs: their curves, their results, and the settings in which they differ.

Each journal is read whole, at about half a second for 100,000 steps, so a screen compares in a thread.
"""

import json
import math
import tomllib
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Annotated, Any, Final

from tui_trainer.errors import InputError
from tui_trainer.runs.folder import RunFolder, read_fields, read_plain_file
from tui_trainer.runs.json_fields import dotted_keys
from tui_trainer.runs.overview import RunResult, overview
from tui_trainer.runs.result import best_by, best_evaluation, targets_summary, training_memory_bytes
from tui_trainer.runs.state import FollowedJournal, RunState, measured_figures, smoothing_window, spread_ends
from tui_trainer.units import MIB, SETTING_NAMES, Figure, listed

LEAST_RUNS: Final = 2
MOST_RUNS: Final = 6
CURVE_POINTS: Final = 400
_FILE_LIMIT_BYTES: Final = MIB
_PLANNED: Final = "plan."
# Settings that only name the location of a run.
_NO_DIFFERENCE: Final = frozenset({"output.name", "output.runs_dir", "schema_version"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """A point of a loss curve: the loss in nats, and the steps, loss tokens and training seconds until then."""

    step: int
    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun(RunResult):
    """A compared run. A figure that was not measured is None.

    `seconds` is the time of all steps. `tokens_per_second` counts all tokens that the model read during those steps.
    `best_step` is the step after which `metric` had its best value.
    """

    best_eval_loss: float | None
    best_eval_step: int | None
    best_step: int | None
    eval_rows: Annotated[int | None, Figure(title="held-out rows")] = None
    """Number of rows that each evaluation reads."""
    parameters: Annotated[int | None, Figure(title="parameters", unit="rounded count")]
    trained_parameters: Annotated[int | None, Figure(title="trainable", unit="rounded count")]
    seconds: Annotated[float | None, Figure(title="training time", unit="seconds")]
    tokens: int
    tokens_per_second: Annotated[float | None, Figure(title="tokens per second", unit="rounded count")]
    inference_samples_per_second: Annotated[float | None, Figure(title="inference samples/s", unit="number")] = None
    """Rows per second when the model answers in batches, as the last `bench RUN` measured it."""
    peak_memory_bytes: int | None
    """Peak memory of the GPU, or on a CPU of the process with its libraries."""
    training_memory_bytes: Annotated[int | None, Figure(title="training memory", unit="bytes")]
    figures: dict[str, float] = field(default_factory=dict)
    """Measured figures, keyed by property of `RunState`."""
    targets: str = ""
    """Summary of the run's targets, such as `2 of 3 met`; empty if the run has no targets."""
    train_curve: tuple[CurvePoint, ...] = ()
    """Training losses, each a mean over the steps since the previous point, or over a longer smoothing window."""
    eval_curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting that differs between runs, and its value in each run; None for a run without the setting."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    runs: tuple[ComparedRun, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def warning(self) -> str:
        """Warning that names the figures which are not comparable because the tasks differ; else empty."""
        tasks = list(dict.fromkeys(run.task for run in self.runs if run.task))
        eval_rows = list(dict.fromkeys(run.eval_rows for run in self.runs if run.eval_rows))
        if len(tasks) < 2 and len(eval_rows) > 1:
            counts = listed([f"{count:,}" for count in eval_rows], "and")
            return (
                f"Held-out losses and scores are of different rows ({counts}), so small differences mean little. "
                "`tui-trainer evaluate` with these runs measures them on the same rows."
            )
        if len(tasks) < 2:
            return ""
        figures = "Steps, time, speed, memory and parameters are comparable."
        return f"The tasks differ ({', '.join(tasks)}): losses and scores are not comparable. {figures}"


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """Compare two to six runs. Raises InputError for any other number, and if a run is named twice."""
    return compare_and_states(folders)[0]


def compare_and_states(folders: Sequence[RunFolder]) -> tuple[Comparison, tuple[RunState, ...]]:
    """Return the comparison of the runs and their states, from which further curves can be drawn."""
    if not LEAST_RUNS <= len(folders) <= MOST_RUNS:
        raise InputError(f"{LEAST_RUNS} to {MOST_RUNS} runs can be compared, not {len(folders)}")
    repeated_name = next((folder.name for index, folder in enumerate(folders) if folder in folders[:index]), "")
    if repeated_name:
        raise InputError(f"{repeated_name} is named twice", hint="name different runs")
    differences = differing_settings(folders)
    journals = [FollowedJournal(folder) for folder in folders]
    runs = tuple(map(_compared, folders, journals))
    return Comparison(runs=runs, differences=differences), tuple(journal.state for journal in journals)


def _compared(folder: RunFolder, journal: FollowedJournal) -> ComparedRun:
    run, state = overview(folder, journal), journal.state
    lowest_eval, best_eval, plan = best_by(state, "loss"), best_evaluation(state), state.plan
    return ComparedRun(
        **{item.name: getattr(run, item.name) for item in fields(RunResult)},
        best_eval_loss=lowest_eval.loss if lowest_eval else None,
        best_eval_step=lowest_eval.step if lowest_eval else None,
        best_step=best_eval.step if best_eval else None,
        eval_rows=plan.eval_rows if plan else None,
        seconds=sum(state.step_seconds) if state.steps else None,
        tokens=sum(state.token_counts),
        tokens_per_second=state.all_input_tokens / state.all_step_seconds if state.all_step_seconds else None,
        inference_samples_per_second=state.inference.samples_per_second if state.inference else None,
        peak_memory_bytes=state.peak_memory_bytes or None,
        training_memory_bytes=training_memory_bytes(state),
        figures=measured_figures(state),
        parameters=plan.parameters if plan else None,
        trained_parameters=plan.trained_parameters if plan else None,
        targets=targets_summary(state),
        train_curve=train_curve(state, CURVE_POINTS),
        eval_curve=eval_curve(state, CURVE_POINTS),
    )


def train_curve(state: RunState, points: int) -> tuple[CurvePoint, ...]:
    """Return the training loss as up to `points` means, evenly spread over the steps. The last is at the last step.

    A mean covers the steps since the previous point, and at least as many as `RunState.loss_smoothed` averages.
    """
    step_count = len(state.steps)
    if not step_count:
        return ()
    usable = [math.isfinite(loss) for loss in state.loss_sums]
    loss_totals = _prefix_sums(loss if use else 0.0 for loss, use in zip(state.loss_sums, usable, strict=True))
    finite_token_sums = _prefix_sums(count if use else 0 for count, use in zip(state.token_counts, usable, strict=True))
    token_sums, elapsed_seconds = _prefix_sums(state.token_counts), _prefix_sums(state.step_seconds)
    points = min(points, step_count)
    curve = []
    for end in spread_ends(step_count, points):
        start = max(end - max(smoothing_window(end), step_count // points), 0)
        if window_tokens := finite_token_sums[end] - finite_token_sums[start]:
            mean_loss, step = (loss_totals[end] - loss_totals[start]) / window_tokens, state.steps[end - 1]
            curve.append(
                CurvePoint(step=step, tokens=int(token_sums[end]), seconds=elapsed_seconds[end], loss=mean_loss)
            )
    return tuple(curve)


def eval_curve(state: RunState, points: int) -> tuple[CurvePoint, ...]:
    """Return up to `points` of the held-out losses, evenly spread, the newest among them."""
    finite_evals = [evaluation for evaluation in state.evals if math.isfinite(evaluation.loss)]
    token_sums, elapsed_seconds = _prefix_sums(state.token_counts), _prefix_sums(state.step_seconds)
    curve = []
    for evaluation in (finite_evals[end - 1] for end in spread_ends(len(finite_evals), points)):
        # The index is found by step, because a journal that lost lines has fewer entries than steps.
        end = bisect_right(state.steps, evaluation.step)
        step, loss = evaluation.step, evaluation.loss
        curve.append(CurvePoint(step=step, tokens=int(token_sums[end]), seconds=elapsed_seconds[end], loss=loss))
    return tuple(curve)


def _prefix_sums(values: Iterable[float]) -> list[float]:
    """Return the cumulative sums of the values, starting with 0: `[0, 1, 3]` for `1, 2`."""
    return list(accumulate(values, initial=0))


def settings_of(folder: RunFolder) -> dict[str, Any]:
    """Return a run's settings by dotted key. If the run has a plan, add the plan's exact values as `plan.KEY`."""
    plan = read_fields(folder.plan)
    if isinstance(plan.get("config"), dict):
        figures = {key: figure for key, figure in plan.items() if isinstance(figure, dict)}
        plan_values = {key: figure["value"] for key, figure in figures.items() if figure.get("exact")}
        plan_values |= {key: plan[key] for key in ("hardware_profile", "device_name") if key in plan}
        return dotted_keys(plan["config"]) | {_PLANNED + key: value for key, value in plan_values.items()}
    with suppress(OSError, ValueError, RecursionError):
        return dotted_keys(tomllib.loads(read_plain_file(folder.config, _FILE_LIMIT_BYTES).decode("utf-8")))
    return {}


def differing_settings(folders: Sequence[RunFolder]) -> tuple[Difference, ...]:
    """Return the settings whose values differ between the runs. The planned value replaces `auto`.

    A setting that only one run names does not count, because a preset may give the same value to the other runs.
    """
    differences, settings = [], [_resolved(settings_of(folder)) for folder in folders]
    for key in dict.fromkeys(key for config in settings for key in config if key not in _NO_DIFFERENCE):
        json_values = {json.dumps(config[key], default=str, sort_keys=True) for config in settings if key in config}
        if len(json_values) > 1:
            differences.append(Difference(key=key, values=tuple(config.get(key) for config in settings)))
    return tuple(differences)


def _resolved(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings without the plan's values, which replace the `auto` of the settings that they resolve."""
    planned = {key.removeprefix(_PLANNED): value for key, value in settings.items() if key.startswith(_PLANNED)}
    decided = {SETTING_NAMES.get(name, name): value for name, value in planned.items()}
    return {
        key: decided.get(key.rpartition(".")[2], value) if value == "auto" else value
        for key, value in settings.items()
        if not key.startswith(_PLANNED)
    }


def value_words(value: Any) -> str:
    """Return the value of a setting as text: a string unchanged, `--` for None, everything else as JSON."""
    if value is None:
        return "--"
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
