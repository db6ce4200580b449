"""Tokens behind what decides the answer cost as much as those before it."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.tasks import find_task


@check(
    order=211,
    title="Length suits the task",
)
def look(context: Context) -> Verdict:
    plan, config = context.planned, context.config
    usual = find_task(config.task.type).usual_length
    if config.is_from_scratch or usual is None:
        return not_applicable(
            "a model from scratch learns the length that it is given; the ranges are of pretrained ones"
        )
    low, high = usual
    longest = context.facts.longest_row if context.facts and context.facts.longest_row else plan.longest_row
    used = min(config.data.max_length, longest)
    sentence = f"rows of up to {used:,} tokens; {config.task.type} takes {low:,} to {high:,} as a rule"
    if used <= high:
        short = "" if longest <= config.data.max_length or used >= low else f"; data.max_length {low:,} would cut fewer"
        return passed(sentence + short)
    advice = (
        f"try data.max_length = {high} where the ends of the longest rows can be spared: a step costs in proportion"
    )
    return warned(sentence, advice=advice)
