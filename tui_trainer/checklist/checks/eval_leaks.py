"""A row that was learnt by heart says nothing about new ones, and early stopping goes by such numbers."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_KEY = "data.dedup"
_MOST_LEAKED = 0.01


@check(order=262, title="Held-out rows are not trained on")
def look(context: Context) -> Verdict:
    facts = context.facts
    if facts is None or facts.counts is None:
        return not_applicable("which rows stand on both sides is known once the data is prepared: tui-trainer preview")
    counts = facts.counts
    if not counts.rows_read and not counts.documents_read:
        return not_applicable("one stream of text has no rows to compare with each other")
    if not counts.eval_rows:
        return not_applicable("no row is held out")
    leaked, repeated = counts.leaked_rows, counts.repeated_rows
    if context.config.data.dedup:
        return passed(
            f"{leaked:,} training rows with the text of a held-out one are left out, and {repeated:,} repeats"
        )
    # A document may be cut into several rows.
    held_out = counts.eval_documents
    sentence = f"{leaked:,} training rows have the text of one of {held_out:,} held-out rows"
    if leaked <= _MOST_LEAKED * held_out:
        return passed(sentence)
    return warned(f"{sentence}: the held-out numbers are too good", fix={_KEY: True})
