"""Padding is computed and thrown away; grouping or packing rows avoids it where rows differ in length.

Source: Krell et al., Efficient Sequence Packing without Cross-contamination, arXiv:2107.02027.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.planning.batching import KEY as PACKING
from tui_trainer.planning.batching import SEES_OTHERS
from tui_trainer.tasks.contract import DataFacts

_GROUPED = "data.group_by_length"
# Where the longest document is twice the mean, half of a row may be padding.
_MOST_UNEVEN = 2.0
# As in the plan: below this saving rows are nearly full as they are.
_LEAST_SAVING = 0.1


@check(
    order=220,
    title="No time spent on padding",
    is_for_speed=True,
    fallback={PACKING: "auto"},
)
def look(context: Context) -> Verdict:
    facts, packing = context.facts, context.planned.packing
    if facts is None:
        return not_applicable("how long the documents are is not known")
    if facts.is_stream:
        return _stream(context)
    if packing.value:
        return passed(f"packed: {packing.reason}", switch="packing on", opposite={PACKING: False})
    if facts.packed_rows is None:
        return _padded(context, facts, "this task has one row for each example")
    rows = min(context.planned.effective_batch_size.value, facts.rows)
    fill = f"{rows} documents of about {facts.row_tokens:.0f} tokens would fill {facts.packed_rows:.1f} packed rows"
    can_pack = context.basis.shape.model_type not in SEES_OTHERS
    if can_pack and context.config.data.packing is False and 1 - facts.packed_rows / rows >= _LEAST_SAVING:
        return warned(f"not packed: {fill}", fix={PACKING: "auto"}, switch="packing: off")
    return _padded(context, facts, "not packed" if can_pack else packing.reason)


def _stream(context: Context) -> Verdict:
    plan, length = context.planned, context.config.data.max_length
    rows = plan.train_rows.value
    missing = -(plan.train_tokens.value - 1) % length
    return passed(
        f"rows are cut from one stream of text, so only the last of {rows:,} is shorter: "
        f"{missing / (rows * length):.2%} padding"
    )


def _padded(context: Context, facts: DataFacts, why: str) -> Verdict:
    """Rows of one pass are as long as its longest, unless like is put to like."""
    sentence = f"{why}: documents of about {facts.document_tokens:.0f} tokens, the longest {facts.longest_row:,}"
    grouped = context.config.data.group_by_length
    alone = context.planned.per_device_train_batch_size.value == 1
    if grouped or alone or facts.longest_row < _MOST_UNEVEN * facts.document_tokens:
        how = "; drawn by length" if grouped else "; one row in a pass needs none" if alone else ""
        other = None if alone and not grouped else {_GROUPED: not grouped}
        return passed(sentence + how, switch="packing: off, little to save", opposite=other)
    most = 1 - facts.document_tokens / facts.longest_row
    sentence += f", so that up to {most:.0%} of a pass is padding"
    return warned(sentence, fix={_GROUPED: True}, switch="packing: off")
