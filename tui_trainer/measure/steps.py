"""Measure steps of a run with the settings of one variant, in a fresh process, and compare several variants."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from tempfile import TemporaryDirectory
from typing import Any

from tui_trainer.advice.rules.kernels import COMPILE
from tui_trainer.config.changes import Patch
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.config.sections import GATE_SUITE
from tui_trainer.errors import InputError
from tui_trainer.hardware.diagnosis import GpuChoice
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.measure.micro_batches import question_of, with_settings
from tui_trainer.measure.sessions import WARM_UP_STEPS
from tui_trainer.measure.turns import Columns, Variant, table_of, with_spread
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.lock import read_lock_owner
from tui_trainer.runs.registry import newest_runs
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes, format_seconds
from tui_trainer.worker.asking import WorkerFailed, ask

_COMPILER_SECONDS = 120.0
_EVAL_ROWS = 64


def short_run(request: Request, steps: int, patch: Patch) -> Request:
    """Return the request with the settings of `patch`, only `steps` steps, and nothing written between them."""
    settings = {
        **patch,
        "training.max_steps": steps + WARM_UP_STEPS,
        "evaluation.eval_steps": 0,
        "evaluation.max_eval_rows": _EVAL_ROWS,
        "evaluation.early_stopping_patience": 0,
        "evaluation.generate_rows": 0,
        GATE_SUITE: "",
        "checkpoint.save_steps": 0,
        "logging.sample_steps": 0,
        "logging.report_to": [],
    }
    return with_settings(request, settings)


def ask_for_steps(
    request: Request, gpu: GpuChoice, steps: int, patch: Patch, seconds: float, /, **more: Any
) -> dict[str, Any]:
    """Make a worker take steps of a short run with `patch`, and return its figures. `more` goes to `take_steps`.

    Raises WorkerFailed, also if the largest pass fails, if layers could not be compiled as requested, or if memory ran
    out and the steps continued with smaller passes."""
    compiles = bool(patch.get(COMPILE))
    limit_seconds = min(seconds, _COMPILER_SECONDS) if compiles and seconds < math.inf else seconds
    # This process removes the folder, because a worker that takes too long is killed and cannot remove it.
    with TemporaryDirectory(prefix="bench-") as folder:
        question = question_of(with_settings(request, patch), gpu) | {"steps": steps, "folder": folder, **more}
        figures: dict[str, Any] = ask("take_steps", question, timeout_seconds=limit_seconds, sees_gpus=True)
    if failure := figures.get("failed"):
        raise WorkerFailed(f"failed: {failure}", failure)
    if problem := figures["problems"].get("out of memory") or (compiles and figures["problems"].get("not compiled")):
        raise WorkerFailed(f"ended with: {problem}", problem)
    return figures


@dataclass
class Steps:
    """Turns of `count` steps of a short run.

    With `share_seconds` the first turn takes as many steps as fit into this time, but at least `least_steps`. Later
    turns take the same number of steps."""

    request: Request
    gpu: GpuChoice
    _: KW_ONLY
    count: int
    share_seconds: float | None = None
    least_steps: int = 1

    def ask(self, variant: Variant, is_first: bool, seconds: float) -> dict[str, Any]:
        has_share = self.share_seconds is not None
        fields = {"seconds": self.share_seconds, "least_steps": self.least_steps} if has_share else {}
        figures = ask_for_steps(self.request, self.gpu, self.count, variant.patch, seconds, **fields)
        if has_share:
            self.count, self.share_seconds = figures["steps"], None
        return figures


_FIGURES = {"training.mixed_precision": "precision", "data.packing": "packing", "model.kernels": "kernels"}


def why_unchanged(before: Plan, after: Plan, patch: Patch) -> str:
    """Return why the patch of an automatic setting does not change the plan; empty if it does."""
    for key, field_name in _FIGURES.items():
        before_value, after_value = getattr(before, field_name), getattr(after, field_name)
        if set(patch) == {key} and before_value.value == after_value.value:
            return f"has no effect here: {after_value.reason}"
    return ""


def why_not_measurable(before: Plan, patch: Patch, load: Callable[[Patch], LoadedConfig], gpu: GpuChoice) -> str:
    """Return why the patch cannot be planned or changes nothing; empty if it can be measured."""
    try:
        return why_unchanged(before, estimated_plan(load(patch), gpu=gpu), patch)
    except InputError as error:
        return problem_words(error)


def problem_words(error: InputError) -> str:
    return "; ".join(problem.message for problem in error.problems)


def training_run() -> str:
    """Return the name of a run that is training on this machine now; empty if none is."""
    for folder in newest_runs():
        holder = read_lock_owner(folder.lock)
        if holder is not None and holder.is_on_this_host:
            return one_line(folder.name, 60)
    return ""


def refuse_while_training(verb: str) -> None:
    """Raise InputError if a run is training on this machine now. `verb` names the command, for the hint."""
    if name := training_run():
        message = f"{name} is training on this machine and would distort the measurement"
        raise InputError(message, hint=f"{verb} after the run has ended")


def figures_of(variants: Sequence[Variant], whole_tokens: float | None = None) -> list[dict[str, Any]]:
    """Return a row of medians for each variant. The first variant is the baseline.

    `speed_up` is the ratio of tokens per second, as batches differ in size. `is_clear` says whether it differs
    from 1 by more than the spreads of variant and baseline; None for the baseline and after a single turn.
    `whole_seconds` is the time of `whole_tokens` at the measured rate."""
    figure_names = (
        "steps", "step_seconds", "samples_per_second", "tokens_per_second", "utilisation_share", "peak_memory_bytes",
        "loss", "others_cores",
    )  # fmt: skip
    baseline = variants[0]
    baseline_token_rate, baseline_spread = baseline.median("tokens_per_second"), baseline.spread_share("step_seconds")
    rows = []
    for variant in variants:
        token_rate, spread = variant.median("tokens_per_second"), variant.spread_share("step_seconds")
        speed_up = token_rate / baseline_token_rate if baseline_token_rate and token_rate else None
        is_clear = None
        if variant is not baseline and speed_up is not None and baseline_spread is not None and spread is not None:
            is_clear = abs(speed_up - 1) > baseline_spread + spread
        rows.append(
            {
                "name": variant.name,
                "settings": dict(variant.patch),
                "reason": variant.reason,
                "turns": len(variant.answers),
                **{name: variant.median(name) for name in figure_names},
                "step_seconds_spread": spread,
                "slowed_by": next((cause for answer in variant.answers if (cause := answer.get("slowed_by"))), ""),
                "speed_up": speed_up,
                "is_clear": is_clear,
                "whole_seconds": whole_tokens / token_rate if token_rate and whole_tokens else None,
            }
        )
    return rows


BUSY: Columns = {"busy": lambda row: "--" if (share := row["utilisation_share"]) is None else f"{share:.0%}"}
_COLUMNS: Columns = {
    "": lambda row: row["name"],
    "ms/step": lambda row: with_spread(1e3 * row["step_seconds"], row["step_seconds_spread"]),
    "speed-up": lambda row: (
        "--" if row["speed_up"] is None else f"{row['speed_up']:.2f}{'?' if row['is_clear'] is False else ''}"
    ),
    "whole run": lambda row: format_seconds(row["whole_seconds"]),
    "samples/s": lambda row: f"{row['samples_per_second']:,.1f}",
    "tokens/s": lambda row: f"{row['tokens_per_second']:,.0f}",
    **BUSY,
    "memory": lambda row: format_bytes(int(row["peak_memory_bytes"])),
    "loss": lambda row: f"{row['loss']:.4f}",
}


def table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    # `tune` has no such figures: it reports the length of its run in words.
    omitted_titles = () if any(row["whole_seconds"] for row in rows) else ("whole run",)
    return table_of({title: show for title, show in _COLUMNS.items() if title not in omitted_titles}, rows)


_BUSY_SHARE = 0.1


def others_words(rows: Sequence[Mapping[str, Any]], cores: int) -> str:
    """Return how many cores other programs used while these rows were measured; empty if next to none."""
    used_cores = [row["others_cores"] for row in rows if row["others_cores"] is not None]
    if not used_cores or max(used_cores) < _BUSY_SHARE * cores:
        return ""
    used_words = f"other programs used {min(used_cores):.1f} to {max(used_cores):.1f} of {cores} cores meanwhile"
    return f"{used_words}: measure again when they have ended"
