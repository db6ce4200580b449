"""Patches that change the batch and nothing else, whoever wrote which of its three numbers."""

from typing import Any

from tui_trainer.checklist.contract import Context
from tui_trainer.hardware.diagnosis import Device
from tui_trainer.planning.batching import ACCUMULATION, EFFECTIVE, MICRO

# Tokens in a pass that keep the processor busy. On a CPU a matmul of a few hundred rows already runs at full
# rate, and more leaves the caches; a large GPU has thousands of cores to feed.
BUSY_TOKENS: dict[Device, int] = {"cpu": 512, "cuda": 4096}


def with_micro_batch(context: Context, rows: int) -> dict[str, Any]:
    """Another micro-batch at the same effective batch."""
    effective = context.planned.effective_batch_size.value
    # Packed rows are fewer than the documents of a step, so how they are cut is not a matter of its settings.
    written = _accumulation_written(context) and not context.loaded.origin(MICRO).by_user
    if written and not context.planned.packing.value:
        parts = -(-effective // rows)
        if -(-effective // parts) == rows:
            return {ACCUMULATION: parts}
    same = context.config.training.effective_batch_size == effective
    return {MICRO: rows} | ({} if same else {EFFECTIVE: effective}) | _free_accumulation(context)


def with_effective_batch(context: Context, rows: int) -> dict[str, Any]:
    """Another effective batch; a micro-batch that is larger is cut to it by the plan."""
    return {EFFECTIVE: rows} | _free_accumulation(context)


def _free_accumulation(context: Context) -> dict[str, Any]:
    return {ACCUMULATION: "auto"} if _accumulation_written(context) else {}


def _accumulation_written(context: Context) -> bool:
    written = context.loaded.origin(ACCUMULATION).by_user
    return written and isinstance(context.config.training.gradient_accumulation_steps, int)
