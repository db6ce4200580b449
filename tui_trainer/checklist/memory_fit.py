"""The memory that a plan would need with something changed, and the cheapest change that makes it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tui_trainer.checklist.batch_cut import with_micro_batch
from tui_trainer.checklist.contract import Context, Patch
from tui_trainer.errors import ConfigError
from tui_trainer.planning.choices import is_from_scratch
from tui_trainer.planning.fit import parts_of_run
from tui_trainer.planning.memory import total_bytes
from tui_trainer.planning.regime import Regime

CHUNK, CHECKPOINTING = "training.loss_chunk_tokens", "training.gradient_checkpointing"
OPTIMISER, METHOD = "training.optim", "tuning.method"
EVAL_BATCH = "evaluation.per_device_eval_batch_size"
_CPU_CHUNK_TOKENS = 1024


def memory_with(
    context: Context, *, micro_batch: int | None = None, eval_batch: int | None = None, regime: Regime | None = None
) -> int:
    """Bytes at the peak with other rows in a pass, or trained in another way: the plan's, and the formula's difference.

    An evaluation takes as many rows as training where its setting says so.
    """
    plan = context.planned
    planned_rows, planned_eval = plan.per_device_train_batch_size.value, plan.per_device_eval_batch_size.value
    rows = micro_batch or planned_rows
    as_in_training = context.config.evaluation.per_device_eval_batch_size == "auto"
    eval_rows = eval_batch or (rows if as_in_training else planned_eval)
    now = _formula(context, planned_rows, planned_eval, context.basis.regime)
    return plan.memory_bytes.value + _formula(context, rows, eval_rows, regime or context.basis.regime) - now


def _formula(context: Context, micro_batch: int, eval_batch: int, regime: Regime) -> int:
    return total_bytes(parts_of_run(context.basis.shape, regime, context.config, micro_batch, eval_batch))


def memory_budget(context: Context) -> float | None:
    """Bytes that a run may take of what is free; None: not reported."""
    room = context.basis.room
    return None if room.free_bytes is None else room.share * room.free_bytes


def is_short(context: Context) -> bool:
    """Whether the plan takes more than that."""
    budget = memory_budget(context)
    return budget is not None and context.planned.memory_bytes.value > budget


def regime_with(context: Context, patch: Patch) -> Regime:
    """How the model would be trained with some settings changed. Raises ConfigError for targets that match nothing."""
    return context.basis.regime_with(context.loaded, context.hardware, patch)


def way_to_fit(context: Context) -> dict[str, Any] | None:
    """Settings with which a plan that is short of memory fits, in the order of what they cost; None: these do not do.

    Fewer rows in a pass cost little, logits in chunks hardly more, checkpointing a quarter of the time, another
    optimiser and LoRA change what is learnt, and weights in 4 bits are unpacked for each product.
    """
    for switches in _ladder(context):
        try:
            cut = _cut_that_fits(context, regime_with(context, switches))
        except ConfigError:
            return None
        if cut is not None:
            return _without_idle(context, switches) | cut
    return None


def _ladder(context: Context) -> Iterator[dict[str, Any]]:
    """Each rung with those below it."""
    config, regime = context.config, context.basis.regime
    switches: dict[str, Any] = {}
    yield switches
    if not regime.loss_chunk_tokens:
        switches = switches | {CHUNK: "auto" if regime.device == "cuda" else _CPU_CHUNK_TOKENS}
        yield switches
    if not regime.gradient_checkpointing:
        switches = switches | {CHECKPOINTING: True}
        yield switches
    if can_have_8_bit_state(context):
        switches = switches | {OPTIMISER: "adamw_8bit"}
        yield switches
    if is_from_scratch(config):
        return
    plainly = {key: value for key, value in switches.items() if key != OPTIMISER}
    if config.tuning.method == "full":
        yield plainly | {METHOD: "lora"}
    if config.tuning.method != "qlora" and can_have_4_bits(context):
        yield plainly | {METHOD: "qlora"}


def can_have_4_bits(context: Context) -> bool:
    """Whether frozen weights could be kept in 4 bits here."""
    return context.basis.regime.device == "cuda" and context.hardware.libraries.get("bitsandbytes") is not None


def can_have_8_bit_state(context: Context) -> bool:
    """Whether fused AdamW could be replaced by one with state in 8 bits."""
    regime, library = context.basis.regime, context.hardware.libraries.get("bitsandbytes")
    return regime.device == "cuda" and regime.optim == "adamw_torch_fused" and library is not None


def _cut_that_fits(context: Context, regime: Regime) -> dict[str, Any] | None:
    """The largest part of today's micro-batch by halves that fits; else with evaluations cut alike."""
    budget, micro = memory_budget(context) or 0.0, context.planned.per_device_train_batch_size.value
    sizes = sorted({-(-micro // 2**halvings) for halvings in range(micro.bit_length() + 1)}, reverse=True)
    for rows in sizes:
        if memory_with(context, micro_batch=rows, regime=regime) <= budget:
            return with_micro_batch(context, rows) if rows < micro else {}
    for rows in sizes:
        if memory_with(context, micro_batch=rows, eval_batch=rows, regime=regime) <= budget:
            return (with_micro_batch(context, rows) if rows < micro else {}) | {EVAL_BATCH: "auto"}
    return None


def _without_idle(context: Context, switches: dict[str, Any]) -> dict[str, Any]:
    """Without the lower rungs that a higher one makes needless."""
    for key in list(switches)[:-1]:
        rest = {other: value for other, value in switches.items() if other != key}
        if _cut_that_fits(context, regime_with(context, rest)) == _cut_that_fits(
            context, regime_with(context, switches)
        ):
            switches = rest
    return switches
