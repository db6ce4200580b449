"""AdamW's averages know nothing at first: full steps along them can spoil the start.

Source: Goyal et al., Accurate, Large Minibatch SGD, arXiv:1706.02677, section 2.2.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.methods.lr_schedules import LR_SCHEDULES

_KEY, _GOOD_SHARE, _MOST_SHARE = "training.warmup_steps", 0.05, 0.2


@check(
    order=450,
    title="Warm-up",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    scheduler = context.config.training.lr_scheduler_type
    if not LR_SCHEDULES[scheduler].warms_up:
        return not_applicable(f"the {scheduler} schedule has no warm-up")
    steps, total = plan.warmup_steps.value, plan.total_steps.value
    if steps == 0 and total > 1:
        rate = context.learning_rate.value
        return warned(f"no warm-up: step 1 of {total:,} has the peak rate {rate:g}", fix={_KEY: _GOOD_SHARE})
    sentence = f"{steps:,} of {total:,} steps, {steps / total:.0%}"
    if steps >= total or steps > max(1, _MOST_SHARE * total):
        return warned(f"{sentence}: a large part of the run has a low rate", fix={_KEY: _GOOD_SHARE})
    return passed(sentence)
