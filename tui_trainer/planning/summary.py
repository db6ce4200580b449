"""A plan in words: its data, its device, the weights that it starts from, and how many of them are trainable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.planning.ancestry import chain_words
from tui_trainer.runs.wording import trained_words
from tui_trainer.tasks import find_task
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_seconds, quantity

if TYPE_CHECKING:
    from tui_trainer.config.sections import Config
    from tui_trainer.data.sources.resolved import ResolvedData
    from tui_trainer.planning.plan import Plan

# Times that differ by a smaller share are the same to a user.
_MOVED_SHARE = 0.05


def data_words(config: Config, data: ResolvedData) -> list[str]:
    """Return sentences on the training and evaluation data, with form and columns, from the first rows of the files.

    Raises DataError if there is no data.
    """
    from tui_trainer.data.preparing.estimate import source_words

    reads_text = find_task(config.task.type).row_kind != "examples"
    sources = zip(("trains on", "is evaluated on"), data.sources, strict=False)
    return [f"{verb} {source_words(part, reads_text=reads_text)}" for verb, source in sources for part in source.parts]


def place_words(plan: Plan) -> str:
    """Return the device and the precision of a run, in words; for a CPU with the reason."""
    name, reason, precision = one_line(plan.device_name), one_line(plan.device_reason), plan.precision.value
    if plan.device == "cuda":
        nodes_clause = f" on {plan.nodes} nodes" if plan.nodes > 1 else ""
        gpus_clause = f"{plan.processes.value} GPUs{nodes_clause}, starting with " if plan.processes.value > 1 else ""
        return f"on {gpus_clause}{reason if name in reason else f'{name} ({reason})'} in {precision}"
    return f"on the CPU ({name}, {threads_words(plan)}) in {precision}: {reason}"


def moved_words(before: Plan, now: Plan) -> str:
    """Return how the planned time of the same steps changed, and why; empty if it did not, or if the steps differ.

    `a step is now planned to take 914 ms instead of 138 ms: measured here, from 1 measured run of the same steps`.
    """
    old, new = before.step_seconds.value, now.step_seconds.value
    conditions, new_conditions = ((x.shape_key, x.device_name, x.threads.value) for x in (before, now))
    if conditions != new_conditions or not old or not new or abs(new / old - 1) < _MOVED_SHARE:
        return ""
    times_text = f"{format_seconds(new)} instead of {format_seconds(old)}"
    return f"a step is now planned to take {times_text}: {one_line(now.step_seconds.reason)}"


def threads_words(plan: Plan) -> str:
    """Return the number of threads of the CPU kernels, in words."""
    thread_count, process_count = plan.threads.value, plan.processes.value
    threads_text = quantity(thread_count, "thread")
    nodes_clause = f" on {plan.nodes} nodes" if plan.nodes > 1 else ""
    return threads_text if process_count == 1 else f"{process_count} processes of {threads_text}{nodes_clause}"


def tuning_words(plan: Plan) -> str:
    """Return how many of the weights are trainable, in words."""
    return f"{trained_words(plan)} are trainable"


def model_words(plan: Plan) -> str:
    """Return which weights a run starts from, in words."""
    model = plan.config.model
    if not model.model_name_or_path or model.init == "scratch":
        return "from random weights"
    tuning = plan.config.tuning
    weights_text = f"{TUNING_METHODS[tuning.method].label} on" if tuning.has_adapter else "all of"
    if plan.ancestors:
        return f"{weights_text} {chain_words(plan.ancestors)}"
    return f"{weights_text} {one_line(model.model_name_or_path)}"
