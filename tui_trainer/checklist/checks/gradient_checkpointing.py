"""It pays only where memory, and not time, is short.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv:1604.06174.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.checklist.memory_fit import BUSY_TOKENS, is_short, memory_with, way_to_fit
from tui_trainer.planning.batching import MICRO
from tui_trainer.planning.fit import largest_micro_batch
from tui_trainer.planning.remedies import CHECKPOINTING
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import format_bytes

_COST = "a quarter of the time"


@check(
    order=150,
    title="Gradient checkpointing",
    published="memory that grows with the root of the layers, for one more forward pass (arXiv:1604.06174)",
)
def look(context: Context) -> Verdict:
    is_on = context.config.training.gradient_checkpointing
    other = context.basis.changed({CHECKPOINTING: not is_on}).setup
    now, changed = context.planned.memory_bytes.value, memory_with(context, setup=other)
    sentence = f"{'on' if is_on else 'off'}: {format_bytes(now)} in all, {format_bytes(changed)} "
    sentence += "without it" if is_on else "with it"
    if is_on:
        return _on(context, other, sentence)
    if is_short(context) and (way_to_fit(context) or {}).get(CHECKPOINTING):
        sentence += f"; memory is short, and it costs {_COST}"
        return warned(sentence, fix={CHECKPOINTING: True}, switch="checkpointing: off")
    sentence += f"; it would cost {_COST}"
    return passed(sentence, switch="checkpointing: off, not needed", opposite={CHECKPOINTING: True})


def _on(context: Context, without: TrainingSetup, sentence: str) -> Verdict:
    """A batch that can be cut further needs no checkpointing, as long as a pass keeps the processor busy."""
    rows = _rows_without(context, without)
    if rows == 0:
        sentence += f"; it costs {_COST}, and memory needs it"
        return passed(sentence, switch="checkpointing on", opposite={CHECKPOINTING: False})
    fits = f"{rows} {'row' if rows == 1 else 'rows'} in a pass fit without it"
    return warned(f"{sentence}; {fits}, and it costs {_COST}", fix={CHECKPOINTING: False}, switch="checkpointing on")


def _rows_without(context: Context, without: TrainingSetup) -> int:
    """Rows of a pass that fit without it and keep the processor busy; 0 when there are too few."""
    budget, training = context.basis.room.budget_bytes, context.config.training
    if budget is None:
        return 0
    micro = context.planned.per_device_train_batch_size.value
    if context.loaded.origin(MICRO).by_user and isinstance(training.per_device_train_batch_size, int):
        return micro if memory_with(context, setup=without) <= budget else 0
    basis = context.basis
    rows = largest_micro_batch(basis.shape, without, context.config, basis.room, context.step_rows)
    busy = rows * context.row_tokens >= BUSY_TOKENS[basis.target.device] or rows >= context.step_rows
    return rows if busy and memory_with(context, micro_batch=rows, setup=without) <= budget else 0
