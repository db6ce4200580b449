"""A run that saves only at its end loses everything in a crash."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.units import format_seconds

_KEY = "checkpoint.save_steps"
_MOST_SECONDS, _GOOD_SECONDS = 1800.0, 600.0


@check(
    order=500,
    title="Saved while it trains",
)
def look(context: Context) -> Verdict:
    plan = context.planned
    every, step = plan.save_every_steps.value, context.step_seconds
    steps = every or plan.total_steps.value
    where = f"saved every {every:,} steps, inside the epochs" if every else "saved only at the end"
    if step is None:
        return not_applicable(f"{where}; how long {steps:,} steps take is not known")
    lost = f"at most {format_seconds(steps * step)} of work is lost"
    if steps * step <= _MOST_SECONDS or steps == 1:
        return passed(f"{where}: {lost}")
    return warned(f"{where}: {lost.replace('at most', 'up to')}", fix={_KEY: max(1, int(_GOOD_SECONDS / step))})
