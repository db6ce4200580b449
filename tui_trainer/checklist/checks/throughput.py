"""A rate that was measured on this machine tells whether a change of settings helped."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed
from tui_trainer.units import format_count


@check(
    order=160,
    title="Throughput is known",
)
def look(context: Context) -> Verdict:
    plan, seconds = context.planned, context.step_seconds
    source = plan.step_seconds.reason
    if seconds is None:
        return not_applicable(f"how fast this machine trains this model is not known: {source}")
    rows = min(plan.effective_batch_size.value, plan.train_rows.value)
    rate = rows / seconds
    tokens = format_count(rate * plan.train_tokens.value / max(plan.train_rows.value, 1))
    sentence = f"{format_count(rate)} rows/s ({tokens} tokens/s) planned"
    if source.startswith("measured here"):
        return passed(f"{sentence}, {source}")
    return not_applicable(f"{sentence}, not measured with this shape yet", source)
