"""Is a forward pass large enough to keep the cores busy?"""

from __future__ import annotations

from tui_trainer.checklist.batch_cut import with_micro_batch
from tui_trainer.checklist.contract import Check, Context, Verdict, passed, warned
from tui_trainer.checklist.memory_fit import memory_with

# On a CPU a matrix product of a few hundred rows already runs at full rate, and more leaves the caches.
_FEWEST_TOKENS = 512
_MEMORY_SHARE = 0.8


def look(context: Context) -> Verdict:
    plan, length = context.planned, context.config.data.max_length
    micro, effective = plan.per_device_train_batch_size.value, plan.effective_batch_size.value
    sentence = f"a forward pass takes {micro} of {effective} rows, {micro * length:,} tokens"
    if micro * length >= _FEWEST_TOKENS or micro >= min(effective, plan.train_rows.value):
        return passed(sentence)
    rows = min(effective, -(-_FEWEST_TOKENS // length))
    free = context.hardware.memory_available_bytes
    if free is not None and memory_with(context, rows) > _MEMORY_SHARE * free:
        return passed(f"{sentence}; more rows do not fit in the memory that is free")
    return warned(f"{sentence}: fewer than {_FEWEST_TOKENS} leave cores idle", fix=with_micro_batch(context, rows))


CHECK = Check(
    name="batch_size",
    order=300,
    title="Micro-batch keeps the cores busy",
    guides=("D quick win 1", "C quick win 3", "C checklist 4", "B batch processing", "E optimisation 1"),
    claim="2x by doubling (guide D); 2-3x (guide C); 80 % (guide B)",
    why="Each pass has a fixed cost; the gradient is the same however the effective batch is cut.",
    look=look,
)
