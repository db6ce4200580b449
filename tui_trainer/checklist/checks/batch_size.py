"""Each pass has a fixed cost; the gradient is the same however the effective batch is cut.

Source: McCandlish et al., An Empirical Model of Large-Batch Training, arXiv:1812.06162.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.checklist.memory_fit import BUSY_TOKENS, memory_with, with_micro_batch


@check(
    order=300,
    title="Micro-batch keeps the cores busy",
    is_for_speed=True,
)
def look(context: Context) -> Verdict:
    plan, tokens = context.planned, context.row_tokens
    micro, rows_of_step = plan.per_device_train_batch_size.value, context.step_rows
    busy, budget = BUSY_TOKENS[context.basis.target.device], context.basis.room.budget_bytes
    kind = "packed rows" if plan.packing.value else "rows"
    sentence = f"a forward pass takes {micro} of {rows_of_step} {kind}, {micro * tokens:,} tokens"
    if micro * tokens >= busy or micro >= min(rows_of_step, plan.train_rows.value):
        half = with_micro_batch(context, -(-micro // 2)) if micro > 1 else None
        return passed(sentence, opposite=half)
    rows = min(rows_of_step, -(-busy // tokens))
    if budget is not None and memory_with(context, micro_batch=rows) > budget:
        return passed(f"{sentence}; more rows do not fit in the memory that is free")
    return warned(f"{sentence}: fewer than {busy} leave cores idle", fix=with_micro_batch(context, rows))
