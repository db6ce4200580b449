"""Enough optimizer steps to learn, not so many that the same text is read for ever."""

from __future__ import annotations

from tui_trainer.checklist.contract import Check, Context, Verdict, passed, warned
from tui_trainer.checklist.passes import epochs, with_steps
from tui_trainer.planning.deadline_ways import at_most_steps

_FEWEST_STEPS, _GOOD_STEPS = 100, 200
_MOST_EPOCHS, _GOOD_EPOCHS = 50, 25


def look(context: Context) -> Verdict:
    plan = context.planned
    total, passes = plan.total_steps.value, epochs(context)
    sentence = f"{total:,} steps, {passes:.3g} epochs of {plan.steps_per_epoch.value:,} steps"
    if total < _FEWEST_STEPS:
        return warned(f"{sentence}: too few updates to learn much", fix=with_steps(context, _GOOD_STEPS))
    stops_early = context.config.evaluation.early_stopping_patience > 0
    most = max(_GOOD_STEPS, _GOOD_EPOCHS * plan.steps_per_epoch.value)
    if passes > _MOST_EPOCHS and total > most and not stops_early:
        fix = at_most_steps(context.planned, most)
        return warned(f"{sentence}: long after the text is known by heart", fix=fix)
    return passed(sentence)


CHECK = Check(
    look,
    order=400,
    title="Number of steps",
    guides=("E diagnostic tool: configuration issues", "B recommendations"),
    claim="",
    why="Warm-up and decay alone need some dozens of updates; after dozens of passes a model only memorises.",
)
