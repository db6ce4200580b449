"""The memory that a plan would need with something changed, the cheapest change that makes it fit, and patches that
change the batch and nothing else, whoever wrote which of its three numbers."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tui_trainer.checklist.contract import Context
from tui_trainer.errors import ConfigError
from tui_trainer.hardware.diagnosis import Device
from tui_trainer.planning.basis import EVAL_BATCH
from tui_trainer.planning.batching import ACCUMULATION, EFFECTIVE, MICRO
from tui_trainer.planning.remedies import ladder
from tui_trainer.planning.training_setup import TrainingSetup

# Tokens in a pass that keep the processor busy. On a CPU a matmul of a few hundred rows already runs at full
# rate, and more leaves the caches; a large GPU has thousands of cores to feed.
BUSY_TOKENS: dict[Device, int] = {"cpu": 512, "cuda": 4096}


def memory_with(
    context: Context, *, micro_batch: int = 0, eval_batch: int = 0, setup: TrainingSetup | None = None
) -> int:
    """Bytes at the peak as the plan reckons them, with other rows in a pass, or trained in another way."""
    basis = context.basis if setup is None else replace(context.basis, setup=setup)
    return basis.needed_bytes(micro_batch, eval_batch)


def is_short(context: Context) -> bool:
    """Whether the plan takes more memory than it may have of what is free."""
    budget = context.basis.room.budget_bytes
    return budget is not None and context.planned.memory_bytes.value > budget


def way_to_fit(context: Context, *, as_if_installed: bool = False) -> dict[str, Any] | None:
    """Settings with which a plan that is short of memory fits, in the order of what they cost; None: these do not do.

    Fewer rows in a pass cost least; the rest is the ladder's, but for what drops data, and for what needs a library
    that is not installed, unless it is asked for as if it were.
    """
    for switches in _cumulated(context, as_if_installed):
        try:
            cut = _cut_that_fits(context, context.basis.changed(switches).setup)
        except ConfigError:
            continue
        if cut is not None:
            return _without_idle(context, switches) | cut
    return None


def smaller_model(context: Context) -> str:
    """The advice where no setting helps."""
    return "lower model.scratch.hidden_size" if context.config.is_from_scratch else "choose a smaller model"


def _cumulated(context: Context, as_if_installed: bool) -> Iterator[dict[str, Any]]:
    """Each rung with those below it."""
    switches: dict[str, Any] = {}
    yield switches
    for rung in ladder(context.basis):
        if not rung.drops_data and (as_if_installed or not rung.needs):
            switches = {**switches, **rung.patch}
            yield switches


def _cut_that_fits(context: Context, setup: TrainingSetup) -> dict[str, Any] | None:
    """The largest part of today's micro-batch by halves that fits; else with evaluations cut alike."""
    budget, micro = context.basis.room.budget_bytes or 0, context.planned.per_device_train_batch_size.value
    sizes = sorted({-(-micro // 2**halvings) for halvings in range(micro.bit_length() + 1)}, reverse=True)
    for rows in sizes:
        if memory_with(context, micro_batch=rows, setup=setup) <= budget:
            return with_micro_batch(context, rows) if rows < micro else {}
    for rows in sizes:
        if memory_with(context, micro_batch=rows, eval_batch=rows, setup=setup) <= budget:
            return (with_micro_batch(context, rows) if rows < micro else {}) | {EVAL_BATCH: "auto"}
    return None


def _without_idle(context: Context, switches: dict[str, Any]) -> dict[str, Any]:
    """Without the lower rungs that a higher one makes needless."""
    cut = _cut_that_fits(context, context.basis.changed(switches).setup)
    for key in list(switches)[:-1]:
        rest = {other: value for other, value in switches.items() if other != key}
        if _cut_that_fits(context, context.basis.changed(rest).setup) == cut:
            switches = rest
    return switches


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
