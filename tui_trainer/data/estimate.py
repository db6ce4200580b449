"""How many rows and tokens data gives, before it is prepared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tui_trainer.data.cache import DocumentCut, ExampleCut, quantiles
from tui_trainer.data.characters import SPECIAL_TOKENS
from tui_trainer.data.looking import Size, size_of, table_size
from tui_trainer.data.row_reader import Reader
from tui_trainer.data.sources import Source


@dataclass(frozen=True, kw_only=True, slots=True)
class DataEstimate:
    """Tokens and rows of each side, as far as can be said before the data is prepared. `exact` is always False.

    Where each document is a row of its own, `lengths` are the labels of some rows, sorted, `labels` the labels of all.
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


def estimate_characters(source: Source, *, max_length: int, eval_fraction: float, max_chars: int = 0) -> DataEstimate:
    """What `prepare_characters` would give, roughly. Never raises for what stands in the files."""
    size = size_of(source).limited(max_chars)
    total = size.characters + size.documents
    eval_tokens = round(total * eval_fraction)
    tokens = total - eval_tokens
    return DataEstimate(
        tokens=tokens,
        eval_tokens=eval_tokens,
        rows=_rows(tokens, max_length),
        eval_rows=_rows(eval_tokens, max_length),
        vocabulary=size.alphabet + len(SPECIAL_TOKENS),
        reason=size.reason,
    )


def estimate_documents(
    source: Source, eval_source: Source | None, cut: DocumentCut, tokens_per_character: float, vocabulary: int
) -> DataEstimate:
    """What `prepare_documents` would give, roughly. Never raises for what stands in the files."""
    size = size_of(source).limited(cut.max_chars)
    held_out = size_of(eval_source) if eval_source else size
    train_share, eval_share = (1.0, 1.0) if eval_source else (1 - cut.eval_fraction, cut.eval_fraction)
    train = _side(size, train_share, cut, tokens_per_character)
    measured = _side(held_out, eval_share, cut, tokens_per_character)
    return DataEstimate(
        tokens=train.tokens,
        eval_tokens=measured.tokens,
        rows=train.rows,
        eval_rows=measured.rows,
        vocabulary=vocabulary,
        reason=f"{size.reason}, at {tokens_per_character:.3g} tokens a character",
        documents=train.documents,
        eval_documents=measured.documents,
        labels=train.tokens - train.documents,
        eval_labels=measured.tokens - measured.documents,
        longest_row=max(train.lengths, default=0),
        lengths=quantiles(train.lengths),
    )


def estimate_examples(
    sources: Sequence[Source],
    reader: Reader,
    cut: ExampleCut,
    rate: Callable[[Sequence[str]], float],
    *,
    frame_tokens: int,
) -> DataEstimate:
    """What `prepare_examples` would give, roughly. `rate`: tokens a character of some texts; `frame_tokens`: what each
    row has besides its text.

    Raises DataError where the columns cannot be told; never for what stands in single rows.
    """
    size = table_size(sources[0], reader)
    tokens_per_character = rate(size.texts)
    held_out = table_size(sources[1], reader) if len(sources) > 1 else size
    train_share, eval_share = (1.0, 1.0) if len(sources) > 1 else (1 - cut.eval_fraction, cut.eval_fraction)
    rows, eval_rows = (
        round(min(found.documents, limit or found.documents) * share)
        for found, share, limit in ((size, train_share, cut.max_rows), (held_out, eval_share, 0))
    )
    lengths, eval_lengths = (
        [min(cut.max_length, round(length * tokens_per_character) + frame_tokens) for length in found.lengths]
        for found in (size, held_out)
    )
    mean, eval_mean = (sum(found) / max(1, len(found)) for found in (lengths, eval_lengths))
    return DataEstimate(
        tokens=round(rows * mean),
        eval_tokens=round(eval_rows * eval_mean),
        rows=rows,
        eval_rows=eval_rows,
        vocabulary=reader.vocabulary(),
        reason=f"{size.reason}, at {tokens_per_character:.3g} tokens a character",
        documents=rows,
        eval_documents=eval_rows,
        longest_row=max((*lengths, *eval_lengths), default=0),
        lengths=quantiles(lengths),
    )


@dataclass(frozen=True, slots=True)
class _Side:
    documents: int
    tokens: int
    rows: int
    lengths: tuple[int, ...]


def _side(size: Size, share: float, cut: DocumentCut, tokens_per_character: float) -> _Side:
    """Documents, tokens and rows of a share of the source; `lengths` in labels of the rows that were looked at."""
    ends = 0 if cut.eos_id is None else 1
    looked = [max(1, round(length * tokens_per_character) + ends - 1) for length in size.lengths]
    documents = round(size.documents * share)
    tokens = round((size.characters * tokens_per_character + size.documents * ends) * share)
    pieces = _pieces(looked, cut.max_length)
    return _Side(documents, tokens, round(documents * len(pieces) / max(1, len(looked))), pieces)


def _pieces(lengths: Sequence[int], max_length: int) -> tuple[int, ...]:
    """The labels of each row, when longer documents are cut."""
    return tuple(min(max_length, length - start) for length in lengths for start in range(0, length, max_length))


def _rows(tokens: int, max_length: int) -> int:
    return max(0, math.ceil((tokens - 1) / max_length))
