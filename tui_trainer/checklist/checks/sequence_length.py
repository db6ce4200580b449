"""Attention costs the square of the length; rows that are too long leave few to shuffle."""

from tui_trainer.checklist.contract import Context, Verdict, check, passed, warned
from tui_trainer.models.problems import length_warning
from tui_trainer.tasks.contract import DataFacts

_KEY = "data.max_length"
_SHORTEST_TOKENS, _FEWEST_ROWS = 32, 32
# A row for each of twice as many: the fix is made on estimated counts.
_FIX_ROWS, _FIX_TOKENS = 2 * _FEWEST_ROWS, 128


@check(
    order=210,
    title="Sequence length suits the text",
)
def look(context: Context) -> Verdict:
    plan, length, facts = context.planned, context.config.data.max_length, context.facts
    shape = context.basis.shape
    if beyond := length_warning(shape, length):
        return warned(beyond, fix={_KEY: shape.max_position_embeddings})
    if facts is not None and not facts.is_stream:
        return _of_documents(facts, length)
    rows, tokens = plan.train_rows.value, plan.train_tokens.value
    sentence = f"rows of {length:,} tokens, {rows:,} of them from {tokens:,} tokens"
    power_of_two = 1 << max(0, (tokens // _FIX_ROWS).bit_length() - 1)
    fit = max(_SHORTEST_TOKENS, power_of_two)
    if rows < _FEWEST_ROWS and length > _SHORTEST_TOKENS:
        return warned(f"{sentence}: too few to learn from", fix={_KEY: fit})
    if length < _SHORTEST_TOKENS and tokens >= _FIX_ROWS * _SHORTEST_TOKENS:
        sentence += f": too short a context, {_SHORTEST_TOKENS} is the least"
        return warned(sentence, fix={_KEY: min(fit, _FIX_TOKENS)})
    return passed(sentence)


def _of_documents(facts: DataFacts, length: int) -> Verdict:
    """Each document is a row of its own; one that is longer is cut into several."""
    sentence = f"rows of up to {length:,} tokens, {facts.rows:,} of them, {facts.row_tokens:.0f} tokens on average"
    if length < _SHORTEST_TOKENS and facts.longest_row >= length:
        return warned(f"{sentence}: too short a context, {_SHORTEST_TOKENS} is the least", fix={_KEY: _FIX_TOKENS})
    if facts.longest_row >= length:
        loses_end = facts.packed_rows is None or (facts.counts and facts.counts.rows_read)
        ends = "what is longer loses its end" if loses_end else "documents that are longer are cut into several rows"
        return passed(f"{sentence}; {ends}")
    return passed(f"{sentence}, the longest {facts.longest_row:,}: no document is cut")
