"""From rows to a batch: inputs, and labels shifted by one; one document a row, or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORE = -100  # what torch's cross entropy leaves out
Tokens = NDArray[np.int32]


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """`input_ids` and `labels` are int64 [B, T]: B rows, T the longest row less one.

    Padding has the label IGNORE. `label_tokens` counts the labels that are not, `rows` the documents.

    Only a packed batch has the rest. `position_ids`, int64 [B, T], begin at 0 with each document; what pads a row is a
    document of its own. `document_lengths`, int32 [D], are those of all documents in the order of the flattened rows,
    padding included: they sum to B * T, and cu_seq_lens is their running sum after a 0.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_tokens: int
    rows: int
    position_ids: NDArray[np.int64] | None = None
    document_lengths: NDArray[np.int32] | None = None


def collate(rows: Sequence[Tokens], pad_id: int) -> Batch:
    """inputs = row[:-1], labels = row[1:], each padded at the right. Rows have 2 tokens or more."""
    width = max(len(row) for row in rows) - 1
    input_ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    labels = np.full((len(rows), width), IGNORE, dtype=np.int64)
    for place, row in enumerate(rows):
        input_ids[place, : len(row) - 1] = row[:-1]
        labels[place, : len(row) - 1] = row[1:]
    label_tokens = sum(len(row) - 1 for row in rows)
    return Batch(input_ids=input_ids, labels=labels, label_tokens=label_tokens, rows=len(rows))


def collate_packed(rows_of_documents: Sequence[Sequence[Tokens]], pad_id: int, *, width: int = 0) -> Batch:
    """Each row holds documents one after another: inputs = document[:-1], labels = document[1:] of each.

    So no label is the first token of the next document. Documents have 2 tokens or more, a row one document or more.
    `width` 0: as wide as the fullest row; a fixed width saves a compiled model from one shape after another.
    """
    used = [sum(len(document) - 1 for document in documents) for documents in rows_of_documents]
    width = max(width, *used)
    shape = (len(used), width)
    input_ids = np.full(shape, pad_id, dtype=np.int64)
    labels = np.full(shape, IGNORE, dtype=np.int64)
    lengths: list[int] = []
    for place, (documents, full) in enumerate(zip(rows_of_documents, used, strict=True)):
        input_ids[place, :full] = np.concatenate([document[:-1] for document in documents])
        labels[place, :full] = np.concatenate([document[1:] for document in documents])
        lengths.extend(len(document) - 1 for document in documents)
        if full < width:
            lengths.append(width - full)
    document_lengths = np.array(lengths, dtype=np.int32)
    return Batch(
        input_ids=input_ids,
        labels=labels,
        label_tokens=sum(used),
        rows=sum(map(len, rows_of_documents)),
        position_ids=_positions(document_lengths).reshape(shape),
        document_lengths=document_lengths,
    )


def _positions(lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """0, 1, 2, ... for each length in turn."""
    starts = np.cumsum(lengths, dtype=np.int64) - lengths
    return np.arange(int(lengths.sum()), dtype=np.int64) - np.repeat(starts, lengths)
