"""How many rows and tokens data gives, before it is prepared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tui_trainer.data.columns.row_reader import Reader
from tui_trainer.data.preparing.cache import LENGTHS_KEPT, DocumentCut, ExampleCut, RowsCut, quantiles
from tui_trainer.data.preparing.character_tokenizer import SPECIAL_TOKENS
from tui_trainer.data.preparing.mixture import SourceRows, each_weight, used_rows
from tui_trainer.data.sources.named_splits import SplitUse
from tui_trainer.data.sources.size_estimate import Size, beginning_of, size_of, table_size
from tui_trainer.data.sources.source import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEstimate:
    """Tokens and rows of each side, as far as can be said before the data is prepared. `exact` is always False.

    Where each document is a row of its own, `lengths` are the labels of some rows, sorted, `labels` the labels of all.
    `sources` says what comes of each where there are several, `splits` what becomes of theirs.
    """

    tokens: int
    eval_tokens: int
    rows: int
    eval_rows: int
    vocabulary: int
    reason: str
    exact: bool = False
    documents: int = 0
    eval_documents: int = 0
    labels: int = 0
    eval_labels: int = 0
    longest_row: int = 0
    lengths: tuple[int, ...] = ()
    sources: tuple[SourceRows, ...] = ()
    splits: tuple[SplitUse, ...] = ()


def estimate_characters(
    source: Source,
    eval_source: Source | None = None,
    *,
    max_length: int,
    eval_fraction: float,
    max_chars: int = 0,
) -> DataEstimate:
    """What `prepare_characters` would give, roughly. Never raises for what stands in the files."""
    sizes = [size_of(part).limited(max_chars) for part in source.parts]
    total = sum(size.characters + size.documents for size in sizes)
    eval_tokens = round(total * eval_fraction)
    tokens = total - eval_tokens
    if eval_source:
        others = map(size_of, eval_source.parts)
        tokens, eval_tokens = total, sum(size.characters + size.documents for size in others)
    together = len(set().union(*(text for size in sizes for text in size.texts)))
    return DataEstimate(
        tokens=tokens,
        eval_tokens=eval_tokens,
        rows=_rows(tokens, max_length),
        eval_rows=_rows(eval_tokens, max_length),
        vocabulary=max(together, *(size.alphabet for size in sizes)) + len(SPECIAL_TOKENS),
        reason=_reason(sizes),
        splits=source.splits,
    )


Rate = Callable[[Sequence[str]], float]
"""Tokens a character of some texts."""


def estimate_documents(
    source: Source, eval_source: Source | None, cut: DocumentCut, rate: Rate, vocabulary: int
) -> DataEstimate:
    """What `prepare_documents` would give, roughly. Never raises for what stands in the files."""
    sizes = [_first_rows(size_of(part).limited(cut.max_chars), cut.max_rows) for part in source.parts]
    others = [size_of(part) for part in eval_source.parts] if eval_source else []
    rates = [rate(beginning_of(size)) for size in sizes]
    eval_rates = [rate(beginning_of(size)) for size in others]

    def side(size: Size, rate: float, share: float) -> _Side:
        return _documents_side(size, share, cut, rate)

    train, measured = _sides(side, sizes, rates, others, eval_rates, cut)
    guess = _estimate(source, sizes, train, measured, cut, vocabulary)
    return replace(
        guess,
        labels=guess.tokens - guess.documents,
        eval_labels=guess.eval_tokens - guess.eval_documents,
        longest_row=max((length for one in train for length in one.lengths), default=0),
        reason=f"{guess.reason}, at {_rate_words(rates)} tokens a character",
    )


def estimate_examples(
    sources: Sequence[Source], reader: Reader, cut: ExampleCut, rate: Rate, *, frame_tokens: int
) -> DataEstimate:
    """What `prepare_examples` would give, roughly. `frame_tokens`: what each row has besides its text.

    Raises DataError where the columns cannot be told; never for what stands in single rows.
    """
    sizes = [_first_rows(table_size(part, reader), cut.max_rows) for part in sources[0].parts]
    rates = [rate(size.texts) for size in sizes]
    others = [table_size(part, reader) for part in sources[1].parts] if len(sources) > 1 else []

    def side(size: Size, rate: float, share: float) -> _Side:
        lengths = [min(cut.max_length, round(length * rate) + frame_tokens) for length in size.lengths]
        rows = round(size.documents * share)
        return _Side(rows, round(rows * sum(lengths) / max(1, len(lengths))), rows, tuple(lengths))

    # A text of the other side is as long in tokens as those of the first source.
    train, measured = _sides(side, sizes, rates, others, rates[:1] * len(others), cut)
    guess = _estimate(sources[0], sizes, train, measured, cut, reader.vocabulary())
    return replace(
        guess,
        longest_row=max((length for one in (*train, *measured) for length in one.lengths), default=0),
        reason=f"{guess.reason}, at {_rate_words(rates)} tokens a character",
    )


@dataclass(frozen=True, slots=True)
class _Side:
    """Of one source; `lengths` in labels, or tokens, of the rows that were looked at."""

    documents: int
    tokens: int
    rows: int
    lengths: tuple[int, ...]

    def times(self, weight: float) -> _Side:
        """What an epoch uses of it."""
        used = used_rows(self.documents, weight)
        more = used / max(self.documents, 1)
        return _Side(used, round(self.tokens * more), round(self.rows * more), self.lengths)


def _sides(
    side: Callable[[Size, float, float], _Side],
    sizes: Sequence[Size],
    rates: Sequence[float],
    others: Sequence[Size],
    eval_rates: Sequence[float],
    cut: RowsCut,
) -> tuple[list[_Side], list[_Side]]:
    """What is trained on in an epoch, and what is measured on, source by source."""
    share = 0.0 if others else cut.eval_fraction
    weights = each_weight(cut.weights, len(sizes))
    train = [
        side(size, rate, 1 - share).times(weight) for size, rate, weight in zip(sizes, rates, weights, strict=True)
    ]
    if others:
        return train, [side(size, rate, 1.0) for size, rate in zip(others, eval_rates, strict=True)]
    return train, [side(size, rate, share) for size, rate in zip(sizes, rates, strict=True)]


def _estimate(
    source: Source,
    sizes: Sequence[Size],
    train: Sequence[_Side],
    measured: Sequence[_Side],
    cut: RowsCut,
    vocabulary: int,
) -> DataEstimate:
    weights = each_weight(cut.weights, len(sizes))
    shares = [
        SourceRows(description=part.description, weight=weight, rows=size.documents, rows_per_epoch=one.documents)
        for part, weight, size, one in zip(source.parts, weights, sizes, train, strict=True)
    ]
    return DataEstimate(
        tokens=sum(one.tokens for one in train),
        eval_tokens=sum(one.tokens for one in measured),
        rows=sum(one.rows for one in train),
        eval_rows=sum(one.rows for one in measured),
        vocabulary=vocabulary,
        reason=_reason(sizes),
        documents=sum(one.documents for one in train),
        eval_documents=sum(one.documents for one in measured),
        lengths=_lengths(train),
        sources=tuple(shares) if source.several or cut.weights else (),
        splits=source.splits,
    )


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


def _documents_side(size: Size, share: float, cut: DocumentCut, tokens_per_character: float) -> _Side:
    """Documents, tokens and rows of a share of the source; `lengths` in labels of the rows that were looked at."""
    ends = 0 if cut.eos_id is None else 1
    looked = [max(1, round(length * tokens_per_character) + ends - 1) for length in size.lengths]
    documents = round(size.documents * share)
    tokens = round((size.characters * tokens_per_character + size.documents * ends) * share)
    pieces = _pieces(looked, cut.max_length)
    return _Side(documents, tokens, round(documents * len(pieces) / max(1, len(looked))), pieces)


def _first_rows(size: Size, max_rows: int) -> Size:
    """The same, when only so many rows are used (0: all)."""
    if not max_rows or size.documents <= max_rows:
        return size
    return replace(size, documents=max_rows, characters=round(size.characters * max_rows / size.documents))


def _reason(sizes: Sequence[Size]) -> str:
    return "; ".join(dict.fromkeys(size.reason for size in sizes))


def _rate_words(rates: Sequence[float]) -> str:
    """`0.25`, or the lowest and the highest."""
    low, high = f"{min(rates):.3g}", f"{max(rates):.3g}"
    return low if low == high else f"{low} to {high}"


def _pieces(lengths: Sequence[int], max_length: int) -> tuple[int, ...]:
    """The labels of each row, when longer documents are cut."""
    return tuple(min(max_length, length - start) for length in lengths for start in range(0, length, max_length))


def _rows(tokens: int, max_length: int) -> int:
    return max(0, math.ceil((tokens - 1) / max_length))
