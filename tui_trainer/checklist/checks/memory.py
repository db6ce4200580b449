"""Does the plan fit in the memory that is free, with room to spare?"""

from __future__ import annotations

from typing import Any

from tui_trainer.checklist.batch_cut import with_micro_batch
from tui_trainer.checklist.contract import Check, Context, Verdict, failed, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import memory_with
from tui_trainer.units import format_bytes

_EVAL_KEY = "evaluation.per_device_eval_batch_size"
# The plan is right within 17 %, and other programs want memory as well.
_ROOMY_SHARE = 0.8


def look(context: Context) -> Verdict:
    free, needed = context.hardware.memory_available_bytes, context.planned.memory_bytes.value
    if free is None:
        return not_applicable(f"the run needs {format_bytes(needed)}; how much is free is not reported")
    sentence = f"the run needs {format_bytes(needed)} of {format_bytes(free)} that are free"
    details = [f"{part.name}: {format_bytes(part.bytes)}" for part in context.planned.memory_parts if part.bytes]
    if needed <= _ROOMY_SHARE * free:
        return passed(f"{sentence}, {needed / free:.0%}", *details)
    fix = _smaller_cut(context, _ROOMY_SHARE * free)
    advice = "" if fix else "lower model.scratch.hidden_size or data.max_length: not even one row at a time fits"
    return (failed if needed > free else warned)(f"{sentence}, {needed / free:.0%}", *details, fix=fix, advice=advice)


def _smaller_cut(context: Context, budget: float) -> dict[str, Any] | None:
    """The largest part of today's micro-batch by halves that fits; else with evaluations cut alike."""
    plan = context.planned
    micro = plan.per_device_train_batch_size.value
    sizes = sorted({-(-micro // 2**halvings) for halvings in range(micro.bit_length() + 1)}, reverse=True)
    for rows in sizes:
        if rows < micro and memory_with(context, rows) <= budget:
            return with_micro_batch(context, rows)
    for rows in sizes:
        if memory_with(context, rows, eval_batch=rows) <= budget:
            return (with_micro_batch(context, rows) if rows < micro else {}) | {_EVAL_KEY: "auto"}
    return None


CHECK = Check(
    name="memory",
    order=330,
    title="Memory has room to spare",
    guides=("E memory issues", "C bottleneck 2", "B CUDA out of memory", "D target metrics"),
    claim="",
    why="A run that fills the memory is killed by the system, or swaps and crawls.",
    look=look,
)
