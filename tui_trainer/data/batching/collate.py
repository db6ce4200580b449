"""From rows to a batch: the model's arguments as arrays, and the labels.

A causal model reads inputs = row[:-1] and learns labels = row[1:], one document a row or several. Every other model
reads whole rows, whose padding it must be told of.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.preparing.token_rows import TokenRow

_LEAST_STEP = 8
IGNORE = -100  # what torch's cross entropy leaves out
Tokens = NDArray[np.int32]
Document = Tokens | TokenRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`input_ids` are int64 [B, T]: B rows, T the longest of them, filled up at the right.

    `labels`: int64 [B, T] where tokens have one, or [B, T'] the tokens to answer with, IGNORE where there is none;
    or one for each row, int64 [B], or float32 [B, C]. `rows` counts the prepared rows, `tokens` what of the inputs is
    no padding. `more` are other arguments of the model, int64 [B, T] each, or [B, T'] for what answers.

    Only a packed batch has the rest; of others each row is one document. `documents`, int64 [B, T], is the document of
    each place, counted from 0 in the order of the rows; -1 where there is padding. `position_ids`, int64 [B, T], begin
    at 0 with each document; what pads a row is a document of its own. `document_lengths`, int32 [D], are those of all
    documents in the order of the flattened rows, padding included: they sum to B * T, and cu_seq_lens is their running
    sum after a 0.

    `row_lengths`, int64 [B]: of a causal model's rows, how much of each is no padding.

    `row_values`, float32 [rows, width]: what was found out about each prepared row before training, where anything was.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[Any]
    rows: int
    tokens: int
    more: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    documents: NDArray[np.int64] | None = None
    position_ids: NDArray[np.int64] | None = None
    document_lengths: NDArray[np.int32] | None = None
    row_lengths: NDArray[np.int64] | None = None
    row_values: NDArray[np.float32] | None = None


class Collate(Protocol):
    """Rows, none of which shares its row with another, into one forward pass."""

    def __call__(self, rows: Sequence[TokenRow], *, width: int = 0) -> Batch:
        """All rows are `width` wide, or as wide as the longest of them."""


class CollatePacked(Protocol):
    """Rows of a forward pass, each with the prepared rows that share it."""

    def __call__(self, packed: Sequence[Sequence[TokenRow]], *, width: int = 0) -> Batch:
        """All rows are `width` wide, or as wide as the fullest of them."""


def collate(rows: Sequence[Document], pad_id: int, *, width: int = 0) -> Batch:
    """For a causal model: inputs = row[:-1], labels = row[1:], each filled up at the right.

    Documents have 2 tokens or more, each is a row of the batch. A row's own labels say which of its tokens count.
    """
    documents = documents_of(rows)
    return Batch(
        input_ids=padded([tokens_of(document)[:-1] for document in documents], pad_id, width),
        labels=padded([_next_labels(document) for document in documents], IGNORE, width),
        rows=len(rows),
        tokens=sum(len(document) - 1 for document in documents),
        row_lengths=np.array([len(document) - 1 for document in documents], dtype=np.int64),
    )


def collate_packed(packed: Sequence[Sequence[Document]], pad_id: int, *, width: int = 0) -> Batch:
    """Each row holds documents one after another: inputs = document[:-1], labels = document[1:] of each.

    So no label is the first token of the next document. Documents have 2 tokens or more, a row one document or more.
    `width` 0: as wide as the fullest row; a fixed width saves a compiled model from one shape after another.
    """
    rows_of_documents = [documents_of(rows) for rows in packed]
    used = [sum(len(document) - 1 for document in documents) for documents in rows_of_documents]
    width = max(width, *used)
    shape = (len(used), width)
    lengths: list[int] = []
    numbers: list[int] = []
    every: list[Document] = []
    for documents, full in zip(rows_of_documents, used, strict=True):
        numbers.extend(range(len(every), len(every) + len(documents)))
        lengths.extend(len(document) - 1 for document in documents)
        every.extend(documents)
        if full < width:
            lengths.append(width - full)
            numbers.append(-1)
    document_lengths = np.array(lengths, dtype=np.int32)
    numbers_BT = np.repeat(np.array(numbers, dtype=np.int64), document_lengths).reshape(shape)
    has_text = numbers_BT >= 0
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    labels = np.full(shape, IGNORE, dtype=np.int64)
    input_ids[has_text] = np.concatenate([tokens_of(document)[:-1] for document in every])
    labels[has_text] = np.concatenate([_next_labels(document) for document in every])
    # 0, 1, 2, ... for each document in turn.
    starts = np.cumsum(document_lengths, dtype=np.int64) - document_lengths
    position_ids = np.arange(len(used) * width, dtype=np.int64) - np.repeat(starts, document_lengths)
    return Batch(
        input_ids=input_ids,
        labels=labels,
        rows=sum(map(len, packed)),
        tokens=sum(used),
        documents=numbers_BT,
        position_ids=position_ids.reshape(shape),
        document_lengths=document_lengths,
        row_lengths=np.array(used, dtype=np.int64),
    )


def collate_whole(rows: Sequence[TokenRow], pad_id: int, labels: NDArray[Any], *, width: int = 0) -> Batch:
    """For a model that reads whole rows: with the mask that tells it what is padding, and their other arguments."""
    more = {name: padded([row.more[name] for row in rows], 0, width) for name in rows[0].more}
    mask = padded([np.ones(len(row), dtype=np.int32) for row in rows], 0, width)
    return Batch(
        input_ids=padded([row.tokens for row in rows], pad_id, width),
        labels=labels,
        rows=len(rows),
        tokens=int(mask.sum()),
        more={"attention_mask": mask, **more},
    )


def collate_answers(rows: Sequence[TokenRow], pad_id: int, start_id: int | None, *, width: int = 0) -> Batch:
    """For an encoder with a decoder: whole inputs, and the tokens to answer with as labels, int64 [B, T'].

    The decoder reads `start_id` and the answer without its last token: `decoder_input_ids`, int64 [B, T']. None: it
    begins with the last token of each answer, as mBART does, whose answers end in their language. `width` is that of
    the inputs.
    """
    answers = [tokens_of(row) if row.labels is None else row.labels for row in rows]
    labels = padded(answers, IGNORE)
    read = padded(answers, pad_id)[:, :-1]
    first = [answer[-1] if start_id is None else start_id for answer in answers]
    batch = collate_whole(rows, pad_id, labels, width=width)
    return replace(batch, more={**batch.more, "decoder_input_ids": np.insert(read, 0, first, axis=1)})


def padded(rows: Sequence[Tokens], filling: int, width: int = 0) -> NDArray[np.int64]:
    """int64 [B, T], each row filled up at the right to the longest of them, or to `width` where that is more."""
    found = np.full((len(rows), max(width, *map(len, rows))), filling, dtype=np.int64)
    for place, row in enumerate(rows):
        found[place, : len(row)] = row
    return found


def documents_of(rows: Sequence[Document]) -> Sequence[Document]:
    """All documents of these rows, in their order."""
    if all(not isinstance(row, TokenRow) or row.document_lengths is None for row in rows):
        return rows
    return [part for row in rows for part in (row.documents if isinstance(row, TokenRow) else (row,))]


def inputs_of(row: Document) -> int:
    """What a causal model reads of it."""
    return row.inputs if isinstance(row, TokenRow) else len(row) - 1


def tokens_of(document: Document) -> Tokens:
    return document.tokens if isinstance(document, TokenRow) else document


def _next_labels(document: Document) -> Tokens:
    own = document.labels if isinstance(document, TokenRow) else None
    return (tokens_of(document) if own is None else own)[1:]


def even(count: int, most: int, step: int = _LEAST_STEP) -> int:
    """`count` rounded up to a multiple of `step`, `most` at the most.

    With every width there are so many sizes of results that glibc finds no place twice: a BERT of 128 x 2 with rows of
    20 to 64 tokens took 98 MiB where it takes 56 MiB so. On GPUs matmuls of such widths are the fast ones.
    """
    return max(count, min(-(-count // step) * step, most))


def coarse(count: int, most: int) -> int:
    """`even`, and from 129 on a multiple of an eighth of the power of two below: few sizes, for where each costs.
    oneDNN, which multiplies 16 bits on a CPU, compiles and keeps a kernel for each number of rows.
    """
    return even(count, most, max(_LEAST_STEP, 1 << max(0, (count - 1).bit_length() - 4)))


def coarse_sizes(most: int) -> int:
    """How many sizes `coarse` gives for counts from 1 to `most`."""
    octaves = max(0, (most - 1).bit_length() - 7)
    return 16 + 8 * octaves - (2 ** (7 + octaves) - most) // 2 ** (3 + octaves) if octaves else -(-most // _LEAST_STEP)


Rounding = Callable[[int, int], int]
"""A width from the least that is needed and the most that may be."""


def in_even_widths(collate: Collate, pad_id: int, widest: int, longest_target: int, rounding: Rounding) -> Collate:
    """The same batches with more padding: the widths of inputs, and of answers behind an encoder, are rounded up, to
    the widest at the most, where a model has no more positions. For models that more padding changes nothing for."""

    def evenly(rows: Sequence[TokenRow], *, width: int = 0) -> Batch:
        batch = collate(rows, width=max(width, rounding(max(row.longest for row in rows), widest)))
        if (read := batch.more.get("decoder_input_ids")) is None:
            return batch
        filled = rounding(read.shape[1], longest_target)
        more = {**batch.more, "decoder_input_ids": _filled(read, filled, pad_id)}
        return replace(batch, labels=_filled(batch.labels, filled, IGNORE), more=more)

    return evenly


def packed_in_coarse_widths(collate: CollatePacked, widest: int) -> CollatePacked:
    """The same batches with widths that are `coarse`, up to the widest."""

    def evenly(packed: Sequence[Sequence[TokenRow]], *, width: int = 0) -> Batch:
        used = max(sum(row.inputs for row in rows) for rows in packed)
        return collate(packed, width=max(width, coarse(used, widest)))

    return evenly


def _filled(rows_BT: NDArray[Any], width: int, filling: int) -> NDArray[Any]:
    return np.pad(rows_BT, ((0, 0), (0, width - rows_BT.shape[1])), constant_values=filling)
