"""Mistakes in settings and data are told before the start, all of them together."""

from tui_trainer.checklist.contract import Context, Verdict, check, failed, passed
from tui_trainer.units import format_bytes, format_seconds


@check(order=10, title="The run can be planned", needs_plan=False)
def look(context: Context) -> Verdict:
    if context.problems or context.plan is None:
        count = len(context.problems)
        first = f": {context.problems[0]}" if context.problems else ""
        sentence = f"{count} problem{' keeps' if count == 1 else 's keep'} this run from starting{first}"
        hints = [problem.hint for problem in context.problems if problem.hint]
        return failed(sentence, *map(str, context.problems[1:]), advice=hints[0] if hints else "")
    plan = context.plan
    return passed(
        f"{plan.total_steps.value:,} steps of {plan.effective_batch_size.value} rows, "
        f"{format_bytes(plan.memory_bytes.value)} of memory, about {format_seconds(plan.duration_seconds.value)}"
    )
