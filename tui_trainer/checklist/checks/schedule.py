"""Small steps at the end settle what large steps found.

Source: Loshchilov and Hutter, SGDR, arXiv:1608.03983.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.methods.lr_schedules import LR_SCHEDULES

_KEY = "training.lr_scheduler_type"


@check(
    order=440,
    title="Learning rate goes down",
    needs_plan=False,
)
def look(context: Context) -> Verdict:
    name, rate = context.config.training.lr_scheduler_type, context.learning_rate.value
    if not LR_SCHEDULES[name].goes_down:
        return warned(f"{name}: the learning rate stays at {rate:g} to the end", fix={_KEY: "cosine"})
    steps = f" over {context.plan.total_steps.value:,} steps" if context.plan else ""
    return passed(f"{name}: goes down from {rate:g}{steps}")
