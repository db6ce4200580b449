"""A run that takes longer than a day on this machine is better tried small first."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.checklist.memory_fit import smaller_model
from tui_trainer.units import format_seconds

_DAY_SECONDS = 86_400.0
# The plan is right within 15 % once steps were measured, and evaluations come on top of the steps.
_FIX_SHARE = 0.8


@check(
    order=410,
    title="Time until it is done",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    seconds, step = context.duration_seconds, context.step_seconds
    if seconds is None or step is None:
        return not_applicable(f"{plan.total_steps.value:,} steps; how long is not known: {plan.step_seconds.reason}")
    sentence = f"about {format_seconds(seconds)}: {plan.total_steps.value:,} steps of {format_seconds(step)}"
    if seconds <= _DAY_SECONDS:
        return passed(sentence, plan.step_seconds.reason)
    within = int(plan.total_steps.value * _DAY_SECONDS / seconds * _FIX_SHARE)
    if within < 1:
        return warned(sentence, plan.step_seconds.reason, advice=f"{smaller_model(context)}: one step takes a day")
    return warned(f"{sentence}; more than a day", plan.step_seconds.reason, fix=context.at_most_steps(within))
