"""Small data needs small batches: the same rows then give many updates instead of few."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import with_effective_batch

_STEPS_IN_AN_EPOCH = 8


@check(
    order=320,
    title="Effective batch suits the data",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    effective, rows = plan.effective_batch_size.value, plan.train_rows.value
    steps = plan.steps_per_epoch.value
    if rows < 2:
        return not_applicable(f"{rows} row to train on: there is nothing to choose from")
    packed = f" (at most {context.step_rows} packed ones)" if plan.packing.value else ""
    sentence = f"{effective} rows a step{packed}, {rows:,} in the data, {steps:,} steps an epoch"
    if effective <= rows:
        return passed(sentence)
    smaller = 1 << max(0, (rows // _STEPS_IN_AN_EPOCH).bit_length() - 1)
    return warned(f"{sentence}: every step reads all of it", fix=with_effective_batch(context, smaller))
