"""Accumulation gives a large batch in little memory; a part that is nearly empty costs a pass all the same."""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.checklist.memory_fit import with_micro_batch


@check(
    order=310,
    title="Accumulation in equal parts",
    is_for_speed=True,
)
def look(context: Context) -> Verdict:
    plan = context.planned
    effective, micro = plan.effective_batch_size.value, plan.per_device_train_batch_size.value
    if plan.packing.value:
        reason = plan.gradient_accumulation_steps.reason
        return passed(f"{effective} documents in {reason}; the loss is a sum, so the gradient is that of one pass")
    parts = -(-effective // micro)
    if parts == 1:
        return passed(f"{effective} rows in one pass: nothing to accumulate")
    last = _last(effective, micro)
    sentence = f"{effective} rows in {parts} passes of {micro}"
    if 2 * last >= micro:
        uneven = "" if last == micro else f", the last of {last}"
        sentence += f"{uneven}; the loss is a sum, so the gradient is that of one pass"
        return passed(sentence, opposite=with_micro_batch(context, effective))
    better = next(rows for rows in range(micro, 0, -1) if 2 * _last(effective, rows) >= rows)
    return warned(
        f"{sentence}, the last of only {last}: a whole pass for little work", fix=with_micro_batch(context, better)
    )


def _last(effective: int, micro: int) -> int:
    return effective - (-(-effective // micro) - 1) * micro
