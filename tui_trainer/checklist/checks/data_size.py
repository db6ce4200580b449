"""A limit that was set for a first try is easily forgotten; more text is the surest way to a lower loss."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.units import format_count, format_seconds

_MOST_LEFT_OUT = 0.1


@check(
    order=230,
    title="All of the text is used",
)
def look(context: Context) -> Verdict:
    plan, limit = context.planned, context.config.data.max_chars
    if context.all_tokens is None:
        return not_applicable("the size of the whole text is not known")
    every = context.all_tokens
    limit *= len(context.config.data.paths)
    if not limit:
        return passed(f"all {format_count(every)} tokens of the text are used; data.max_chars is 0")
    if limit >= every:
        return passed(f"all {format_count(every)} tokens of the text are used; data.max_chars {limit:,} is above that")
    left_out = 1 - limit / every
    sentence = f"data.max_chars {limit:,} leaves out {left_out:.0%} of {format_count(every)} tokens"
    if left_out <= _MOST_LEFT_OUT:
        return passed(sentence)
    step = context.step_seconds
    longer = None if step is None else step * plan.steps_per_epoch.value / (1 - left_out)
    return warned(
        sentence,
        fix={"data.max_chars": 0},
        advice=f"with all of it, an epoch takes about {format_seconds(longer)}; keep the limit if that is too long",
    )
