"""Several runs beside each other: their curves, what came of them, and the settings in which they differ.

Each journal is read once and whole, at about half a second for 100,000 steps: a screen compares in a thread.
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
from tui_trainer.runs.result import best_by, best_evaluation, targets_summary
from tui_trainer.runs.state import FollowedJournal, RunState, measured_figures, smoothing_window, spread_ends
from tui_trainer.units import MIB, Figure

LEAST_RUNS: Final = 2
MOST_RUNS: Final = 6
CURVE_POINTS: Final = 400
_FILE_LIMIT_BYTES: Final = MIB
# They say where a run is.
_NO_DIFFERENCE: Final = frozenset({"output.name", "output.runs_dir", "schema_version"})


@dataclass(frozen=True, kw_only=True, slots=True)
class CurvePoint:
    """A loss in nats after `step` steps, `tokens` that counted in the loss and `seconds` of training."""

    step: int
    tokens: int
    seconds: float
    loss: float


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedRun(RunResult):
    """One of the runs. A figure that was not measured is None.

    `seconds` is the time of all steps, and `tokens_per_second` counts what the model read in them. `metric` was best
    after `best_step`.
    """

    best_eval_loss: float | None
    best_eval_step: int | None
    best_step: int | None
    parameters: Annotated[int | None, Figure(title="parameters", unit="rounded count")]
    trained_parameters: Annotated[int | None, Figure(title="trainable", unit="rounded count")]
    seconds: Annotated[float | None, Figure(title="training time", unit="seconds")]
    tokens: int
    tokens_per_second: Annotated[float | None, Figure(title="tokens per second", unit="rounded count")]
    inference_samples_per_second: Annotated[float | None, Figure(title="inference samples/s", unit="number")] = None
    """Rows per second in batches, as `bench RUN` measured them last."""
    peak_memory_bytes: Annotated[int | None, Figure(title="peak memory", unit="bytes")]
    figures: dict[str, float] = field(default_factory=dict)
    """Those that `RunState` declares, by their names."""
    targets: str = ""
    """`2 of 3 met`; empty if none was set."""
    train_curve: tuple[CurvePoint, ...] = ()
    """Each point the mean of the steps before it."""
    eval_curve: tuple[CurvePoint, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A setting, and its value in each run in their order; None where a run's files do not name it."""

    key: str
    values: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    runs: tuple[ComparedRun, ...]
    differences: tuple[Difference, ...] = ()

    @property
    def warning(self) -> str:
        """Sentence that names the figures that are not comparable; empty if all are."""
        tasks = list(dict.fromkeys(run.task for run in self.runs if run.task))
        if len(tasks) < 2:
            return ""
        figures = "Steps, time, speed, memory and parameters are comparable."
        return f"The tasks differ ({', '.join(tasks)}): losses and scores are not comparable. {figures}"


def compare(folders: Sequence[RunFolder]) -> Comparison:
    """Raises InputError for another number of runs than two to six, and for one that is named twice."""
    return compare_and_states(folders)[0]


def compare_and_states(folders: Sequence[RunFolder]) -> tuple[Comparison, tuple[RunState, ...]]:
    """The same, and the states of the runs, from which any of their curves can be drawn."""
    if not LEAST_RUNS <= len(folders) <= MOST_RUNS:
        raise InputError(f"{LEAST_RUNS} to {MOST_RUNS} runs can be compared, not {len(folders)}")
    repeated = next((one.name for place, one in enumerate(folders) if one in folders[:place]), "")
    if repeated:
        raise InputError(f"{repeated} is named twice", hint="name different runs")
    differences = differing([settings_of(folder) for folder in folders])
    journals = [FollowedJournal(folder) for folder in folders]
    runs = tuple(map(_compared, folders, journals))
    return Comparison(runs=runs, differences=differences), tuple(one.state for one in journals)


def _compared(folder: RunFolder, journal: FollowedJournal) -> ComparedRun:
    about, state = overview(folder, journal), journal.state
    lowest, best, plan = best_by(state, "loss"), best_evaluation(state), state.plan
    return ComparedRun(
        **{item.name: getattr(about, item.name) for item in fields(RunResult)},
        best_eval_loss=lowest.loss if lowest else None,
        best_eval_step=lowest.step if lowest else None,
        best_step=best.step if best else None,
        seconds=sum(state.step_seconds) if state.steps else None,
        tokens=sum(state.token_counts),
        tokens_per_second=state.all_input_tokens / state.all_step_seconds if state.all_step_seconds else None,
        inference_samples_per_second=state.inference.samples_per_second if state.inference else None,
        peak_memory_bytes=state.peak_memory_bytes or None,
        figures=measured_figures(state),
        parameters=plan.parameters if plan else None,
        trained_parameters=plan.trained_parameters if plan else None,
        targets=targets_summary(state),
        train_curve=train_curve(state, CURVE_POINTS),
        eval_curve=eval_curve(state, CURVE_POINTS),
    )


def train_curve(state: RunState, points: int) -> tuple[CurvePoint, ...]:
    """Up to `points` means of the training loss, evenly spread over the steps, the last step among them.

    A mean covers the steps since the point before, and at least those that `RunState.loss_smoothed` would.
    """
    count = len(state.steps)
    if not count:
        return ()
    usable = [math.isfinite(loss) for loss in state.loss_sums]
    losses = _sums(loss if use else 0.0 for loss, use in zip(state.loss_sums, usable, strict=True))
    counted = _sums(tokens if use else 0 for tokens, use in zip(state.token_counts, usable, strict=True))
    tokens, seconds = _sums(state.token_counts), _sums(state.step_seconds)
    points = min(points, count)
    curve = []
    for end in spread_ends(count, points):
        start = max(end - max(smoothing_window(end), count // points), 0)
        if weight := counted[end] - counted[start]:
            mean, step = (losses[end] - losses[start]) / weight, state.steps[end - 1]
            curve.append(CurvePoint(step=step, tokens=int(tokens[end]), seconds=seconds[end], loss=mean))
    return tuple(curve)


def eval_curve(state: RunState, points: int) -> tuple[CurvePoint, ...]:
    """Up to `points` held-out losses, evenly spread, the last among them."""
    evals = [one for one in state.evals if math.isfinite(one.loss)]
    tokens, seconds = _sums(state.token_counts), _sums(state.step_seconds)
    chosen = [evals[end - 1] for end in spread_ends(len(evals), points)]
    # The steps that were done by then; their columns have no gaps but in a journal that lost lines.
    ends = [bisect_right(state.steps, one.step) for one in chosen]
    return tuple(
        CurvePoint(step=one.step, tokens=int(tokens[end]), seconds=seconds[end], loss=one.loss)
        for one, end in zip(chosen, ends, strict=True)
    )


def _sums(values: Iterable[float]) -> list[float]:
    """Before each value, and of all."""
    return list(accumulate(values, initial=0))


def settings_of(folder: RunFolder) -> dict[str, Any]:
    """Return the settings of a run by dotted key, and what its plan derived from them exactly; before there is a plan,
    the settings of config.toml."""
    plan = read_fields(folder.plan)
    if isinstance(plan.get("config"), dict):
        derived = {key: one["value"] for key, one in plan.items() if isinstance(one, dict) and one.get("exact")}
        derived |= {key: plan[key] for key in ("hardware_profile", "device_name") if key in plan}
        return dotted_keys(plan["config"]) | {f"plan.{key}": value for key, value in derived.items()}
    with suppress(OSError, ValueError, RecursionError):
        return dotted_keys(tomllib.loads(read_plain_file(folder.config, _FILE_LIMIT_BYTES).decode("utf-8")))
    return {}


def differing(settings: Sequence[dict[str, Any]]) -> tuple[Difference, ...]:
    """What at least two runs name and do not have in common. What only one names may be a preset of the other."""
    found = []
    for key in dict.fromkeys(key for one in settings for key in one if key not in _NO_DIFFERENCE):
        known = {json.dumps(one[key], default=str, sort_keys=True) for one in settings if key in one}
        if len(known) > 1:
            found.append(Difference(key=key, values=tuple(one.get(key) for one in settings)))
    return tuple(found)


def value_words(value: Any) -> str:
    """Return the value of a setting as text: a string as it is, everything else as JSON; `--` for None."""
    if value is None:
        return "--"
    return value if isinstance(value, str) and value else json.dumps(value, default=str)
