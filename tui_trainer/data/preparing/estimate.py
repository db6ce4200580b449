"""How many rows and tokens data gives, before it is prepared."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tui_trainer.data.columns.row_reader import Reader
from tui_trainer.data.preparing.cache import LENGTHS_KEPT, Cut, quantiles
from tui_trainer.data.preparing.mixture import SourceRows, used_rows
from tui_trainer.data.preparing.text_readers import SPECIAL_TOKENS
from tui_trainer.data.sources.named_splits import SplitUse
from tui_trainer.data.sources.size_estimate import Size, beginning_of, size_of
from tui_trainer.data.sources.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEstimate:
    """Tokens and rows of each side, as far as can be said before the data is prepared.

    Where each document is a row of its own, `lengths` are the labels of some rows, sorted, `labels` the labels of all.
    `sources` says what comes of each where there are several, `splits` what becomes of theirs, `has_bad_rows` whether
    rows seem not to be usable.
    """

    tokens: int
    eval_tokens: int
    rows: int
    eval_rows: int
    vocabulary: int
    reason: str
    labels: int = 0
    longest_row: int = 0
    lengths: tuple[int, ...] = ()
    sources: tuple[SourceRows, ...] = ()
    splits: tuple[SplitUse, ...] = ()
    has_bad_rows: bool = False


Rate = Callable[[Sequence[str]], float]
"""Tokens a character of some texts."""


def estimate(sources: Sequence[Source], reader: Reader, cut: Cut, rate: Rate, *, frame_tokens: int = 0) -> DataEstimate:
    """What `prepare` would give, roughly. `frame_tokens`: what each row or document has besides its text.

    Raises DataError where the columns of a table cannot be told; never for what stands in single rows.
    """
    table_reader = None if cut.reads_text else reader
    sizes = [size_of(part, table_reader).limited(cut.max_chars, cut.max_rows) for part in sources[0].parts]
    others = [size_of(part, table_reader) for part in sources[1].parts] if len(sources) > 1 else []
    rates = [rate(beginning_of(size) if cut.reads_text else size.texts) for size in sizes]
    # A text of a table's other side is as long in tokens as those of the first source.
    eval_rates = [rate(beginning_of(size)) if cut.reads_text else rates[0] for size in others]
    side = partial(_side, cut, frame_tokens)
    share, weights = 0.0 if others else cut.eval_fraction, cut.weights or [1.0] * len(sizes)
    pairs = list(zip(sizes, rates, strict=True))
    train = [side(*pair, 1 - share).times(weight) for pair, weight in zip(pairs, weights, strict=True)]
    eval_pairs, eval_share = (zip(others, eval_rates, strict=True), 1.0) if others else (pairs, share)
    measured = [side(*pair, eval_share) for pair in eval_pairs]
    parts = zip(sources[0].parts, weights, sizes, train, strict=True)
    shares = [
        SourceRows(description=part.description, weight=weight, rows=size.documents, rows_per_epoch=one.documents)
        for part, weight, size, one in parts
    ]
    reason = "; ".join(dict.fromkeys(size.reason for size in sizes))
    if cut.rows != "stream":
        low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
        reason += f", at {low if low == high else f'{low} to {high}'} tokens a character"
    # Different ones in the texts that were looked at.
    characters = len(set().union(*(text for size in sizes for text in size.texts)))
    characters = max(characters, *(size.alphabet for size in sizes))
    looked = train if cut.reads_text else [*train, *measured]
    together, eval_together = _together(train, cut), _together(measured, cut)
    return DataEstimate(
        tokens=together.tokens,
        eval_tokens=eval_together.tokens,
        rows=together.rows,
        eval_rows=eval_together.rows,
        vocabulary=reader.vocabulary() or characters + len(SPECIAL_TOKENS),
        reason=reason,
        labels=together.tokens - together.documents,
        longest_row=max((length for one in looked for length in one.lengths), default=0),
        lengths=together.lengths,
        sources=tuple(shares) if sources[0].several or cut.weights else (),
        splits=sources[0].splits,
        has_bad_rows=any(size.has_bad_rows for size in (*sizes, *others)),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """Of one source; `lengths` in labels, or tokens, of the rows that were looked at."""

    documents: int
    tokens: int
    rows: int
    lengths: tuple[int, ...]

    def times(self, weight: float) -> "_Side":
        """What an epoch uses of it."""
        used = used_rows(self.documents, weight)
        more = used / max(self.documents, 1)
        return _Side(used, round(self.tokens * more), round(self.rows * more), self.lengths)


def _side(cut: Cut, frame_tokens: int, size: Size, rate: float, share: float) -> _Side:
    """A share of one source. Of documents the lengths are labels, of those that are cut the labels of each row."""
    documents = round(size.documents * share)
    if not cut.reads_text:
        rows = tuple(min(cut.max_length, round(length * rate) + frame_tokens) for length in size.lengths)
        return _Side(documents, round(documents * sum(rows) / max(1, len(rows))), documents, rows)
    looked = [max(1, round(length * rate) + frame_tokens - 1) for length in size.lengths]
    width = cut.max_length
    pieces = tuple(min(width, length - start) for length in looked for start in range(0, length, width))
    tokens = round((size.characters * rate + size.documents * frame_tokens) * share)
    return _Side(documents, tokens, round(documents * len(pieces) / max(1, len(looked))), pieces)


def _together(sides: Sequence[_Side], cut: Cut) -> _Side:
    tokens = sum(one.tokens for one in sides)
    of_stream = max(0, math.ceil((tokens - 1) / cut.max_length))
    rows = of_stream if cut.rows == "stream" else sum(one.rows for one in sides)
    return _Side(sum(one.documents for one in sides), tokens, rows, _lengths(sides))


def _lengths(sides: Sequence[_Side]) -> tuple[int, ...]:
    """Some of the lengths, sorted, of each source as many as its rows are in an epoch."""
    if len(sides) == 1:
        return quantiles(sides[0].lengths)
    total = sum(side.rows for side in sides if side.lengths)
    found: list[int] = []
    for side in sides:
        ordered = sorted(side.lengths)
        kept = round(min(LENGTHS_KEPT, total) * side.rows / max(total, 1)) if ordered else 0
        found += [ordered[(2 * place + 1) * len(ordered) // (2 * kept)] for place in range(kept)]
    return tuple(sorted(found))
