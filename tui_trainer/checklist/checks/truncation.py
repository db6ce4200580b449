"""What is cut off is never learnt: the end of an answer, or the words that a label is about."""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned
from tui_trainer.data.preparing.prepare import WHOLE_LENGTH
from tui_trainer.tasks.contract import DataFacts

_KEY = "data.max_length"
_MOST_CUT = 0.01
_ROUND = 8


@check(
    order=212,
    title="Few rows lose their end",
)
def look(context: Context) -> Verdict:
    facts, length = context.facts, context.config.data.max_length
    if facts is None or facts.counts is None:
        return not_applicable("how many rows are too long is known once the data is prepared: tui-trainer preview")
    counts = facts.counts
    if not counts.rows_read:
        return _documents(facts)
    rows = counts.train_rows + counts.eval_rows
    share = counts.truncated_rows / max(rows, 1)
    sentence = f"{counts.truncated_rows:,} of {rows:,} rows ({share:.1%}) are longer than {length:,} tokens"
    if share <= _MOST_CUT:
        return passed(sentence)
    sentence += " and lose their end"
    wanted = -(-int(facts.details.get(WHOLE_LENGTH, 2 * length)) // _ROUND) * _ROUND
    limit = context.basis.shape.max_position_embeddings
    possible = wanted if limit is None else min(wanted, limit)
    if possible <= length:
        return warned(sentence, advice=f"the model was made for {limit:,} tokens: shorten the texts, or choose another")
    if possible < wanted or WHOLE_LENGTH not in facts.details:
        return warned(sentence, fix={_KEY: possible})
    return warned(f"{sentence}; about {wanted:,} tokens would hold 99 % of them", fix={_KEY: possible})


def _documents(facts: DataFacts) -> Verdict:
    """Those of a language model are cut into several rows, of which none is lost."""
    counts = facts.counts
    if counts is None or facts.is_stream:
        return not_applicable("rows are cut from one stream of text: none loses its end")
    documents = counts.train_documents + counts.eval_documents
    if not counts.cut_documents:
        return passed(f"each of {documents:,} documents fits into a row; none is cut")
    return passed(
        f"{counts.cut_documents:,} of {documents:,} documents are cut into {counts.pieces:,} rows; no token is lost"
    )
