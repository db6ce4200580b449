"""Warm-up and decay alone need some dozens of updates; after dozens of passes a model only memorises."""

import math

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.config.changes import Patch
from tui_trainer.units import format_number

_FEWEST_STEPS, _GOOD_STEPS = 100, 200
_MOST_EPOCHS, _GOOD_EPOCHS = 50, 25


@check(
    order=400,
    title="Number of steps",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    total, passes = plan.total_steps.value, context.epochs
    sentence = f"{total:,} steps, {format_number(passes)} epochs of {plan.steps_per_epoch.value:,} steps"
    if total < _FEWEST_STEPS:
        # Through the setting that decides their number today.
        epochs = float(math.ceil(_GOOD_STEPS / plan.steps_per_epoch.value))
        by_steps = bool(context.config.training.max_steps)
        more: Patch = {"training.max_steps": _GOOD_STEPS} if by_steps else {"training.num_train_epochs": epochs}
        return warned(f"{sentence}: too few updates to learn much", fix=more)
    stops_early = context.config.evaluation.early_stopping_patience > 0
    most = max(_GOOD_STEPS, _GOOD_EPOCHS * plan.steps_per_epoch.value)
    if passes > _MOST_EPOCHS and total > most and not stops_early:
        return warned(f"{sentence}: long after the text is known by heart", fix=context.at_most_steps(most))
    return passed(sentence)
