"""The memory that a plan would need with something changed, and the cheapest change that makes it fit."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tui_trainer.checklist.batch_cut import with_micro_batch
from tui_trainer.checklist.contract import Context
from tui_trainer.config.changes import Patch
from tui_trainer.errors import ConfigError
from tui_trainer.planning.automatic_values import is_from_scratch
from tui_trainer.planning.basis import EVAL_BATCH
from tui_trainer.planning.remedies import ladder
from tui_trainer.planning.training_setup import TrainingSetup


def memory_with(
    context: Context, *, micro_batch: int = 0, eval_batch: int = 0, setup: TrainingSetup | None = None
) -> int:
    """Bytes at the peak as the plan reckons them, with other rows in a pass, or trained in another way."""
    basis = context.basis if setup is None else replace(context.basis, setup=setup)
    return basis.needed_bytes(micro_batch, eval_batch)


def memory_budget(context: Context) -> float | None:
    """Bytes that a run may take of what is free; None: not reported."""
    room = context.basis.room
    return None if room.free_bytes is None else room.share * room.free_bytes


def is_short(context: Context) -> bool:
    """Whether the plan takes more than that."""
    budget = memory_budget(context)
    return budget is not None and context.planned.memory_bytes.value > budget


def setup_with(context: Context, patch: Patch) -> TrainingSetup:
    """How the model would be trained with some settings changed. Raises ConfigError for targets that match nothing."""
    return context.basis.changed(patch).setup


def way_to_fit(context: Context, *, as_if_installed: bool = False) -> dict[str, Any] | None:
    """Settings with which a plan that is short of memory fits, in the order of what they cost; None: these do not do.

    Fewer rows in a pass cost least; the rest is the ladder's, but for what drops data, and for what needs a library
    that is not installed, unless it is asked for as if it were.
    """
    for switches in _cumulated(context, as_if_installed):
        try:
            cut = _cut_that_fits(context, setup_with(context, switches))
        except ConfigError:
            continue
        if cut is not None:
            return _without_idle(context, switches) | cut
    return None


def smaller_model(context: Context) -> str:
    """The advice where no setting helps."""
    return "lower model.scratch.hidden_size" if is_from_scratch(context.config) else "choose a smaller model"


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
    budget, micro = memory_budget(context) or 0.0, context.planned.per_device_train_batch_size.value
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
    for key in list(switches)[:-1]:
        rest = {other: value for other, value in switches.items() if other != key}
        if _cut_that_fits(context, setup_with(context, rest)) == _cut_that_fits(context, setup_with(context, switches)):
            switches = rest
    return switches
