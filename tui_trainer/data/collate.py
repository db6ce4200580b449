"""From rows to a batch: inputs, and labels shifted by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IGNORE = -100  # what torch's cross entropy leaves out


@dataclass(frozen=True, slots=True)
class Batch:
    """`input_ids` and `labels` are int64 [B, T]: B rows, T the longest row less one.

    Padding has the label IGNORE. `label_tokens` counts the labels that are not.
    """

    input_ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    label_tokens: int


def collate(rows: Sequence[NDArray[np.int32]], pad_id: int) -> Batch:
    """inputs = row[:-1], labels = row[1:], each padded at the right. Rows have 2 tokens or more."""
    width = max(len(row) for row in rows) - 1
    input_ids = np.full((len(rows), width), pad_id, dtype=np.int64)
    labels = np.full((len(rows), width), IGNORE, dtype=np.int64)
    for place, row in enumerate(rows):
        input_ids[place, : len(row) - 1] = row[:-1]
        labels[place, : len(row) - 1] = row[1:]
    return Batch(input_ids, labels, sum(len(row) - 1 for row in rows))
