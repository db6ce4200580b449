"""The rows of a step as tensors.

Which rows those are (`data/order.py`) and how they lie in memory (`data/layout.py`) needs no torch. A step always
learns from the same rows; packing and sorting only decide how they lie, so neither changes the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.collate import IGNORE, Batch, Collate
from tui_trainer.data.layout import RowLayout
from tui_trainer.data.order import RowOrder
from tui_trainer.data.rows import Rows, TokenRow
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch

# Forward passes whose rows are sorted or packed together in an evaluation.
WINDOW = 4
# Widths of padded rows are multiples of this. With every width there are so many sizes of results that glibc finds no
# place twice: a BERT of 128 x 2 with rows of 20 to 64 tokens took 98 MB where it takes 56 MB so, and no more time.
WIDTH_STEP = 8


@dataclass(frozen=True, kw_only=True)
class Layout(RowLayout):
    """`by_lengths`: packed rows tell the attention where their documents begin (`training/varlen.py`)."""

    by_lengths: bool = False

    def window(self, documents: Sequence[TokenRow]) -> Iterator[MicroBatch]:
        """All forward passes over these documents."""
        for rows in self.passes(documents):
            yield micro_batch(self.batch(rows), by_lengths=self.by_lengths)


def in_even_widths(collate: Collate, pad_id: int, widest: int, widest_answer: int) -> Collate:
    """The same batches with more padding: inputs, and answers behind an encoder, are as wide as a multiple of
    `WIDTH_STEP` or as the widest may be, where a model has no more positions. For models that are told what is padding.
    """

    def evenly(rows: Sequence[TokenRow], *, width: int = 0) -> Batch:
        batch = collate(rows, width=max(width, _even(max(map(len, rows)), widest)))
        if (read := batch.more.get("decoder_input_ids")) is None:
            return batch
        filled = _even(read.shape[1], widest_answer)
        more = {**batch.more, "decoder_input_ids": _filled(read, filled, pad_id)}
        return replace(batch, labels=_filled(batch.labels, filled, IGNORE), more=more)

    return evenly


def _even(width: int, widest: int) -> int:
    return max(width, min(-(-width // WIDTH_STEP) * WIDTH_STEP, widest))


def _filled(rows_BT: NDArray[Any], width: int, filling: int) -> NDArray[Any]:
    return np.pad(rows_BT, ((0, 0), (0, width - rows_BT.shape[1])), constant_values=filling)


class Batches:
    """Effective batches as windows of forward passes. `batches.at(step)`: step counts from 1."""

    def __init__(
        self, rows: Rows, layout: Layout, *, effective_batch: int, seed: int, group_by_length: bool = False
    ) -> None:
        self.rows = rows
        self.layout = layout
        self.order = RowOrder(rows.lengths, effective_batch=effective_batch, seed=seed, group_by_length=group_by_length)
        self.steps_per_epoch = self.order.steps_per_epoch

    def at(self, step: int) -> list[MicroBatch]:
        """The forward passes of one optimiser step."""
        return list(self.layout.window([self.rows.example(int(index)) for index in self.order.at(step)]))


def windows(rows: Rows, chosen: Sequence[int], layout: Layout) -> Iterator[MicroBatch]:
    """The forward passes over the chosen rows, some passes' worth of them sorted or packed together."""
    at_a_time = layout.rows * WINDOW
    if layout.packed_width and len(chosen):
        mean_inputs = float(np.mean(rows.lengths[np.asarray(chosen)])) - 1
        at_a_time = max(at_a_time, int(at_a_time * layout.packed_width / mean_inputs))
    for start in range(0, len(chosen), at_a_time):
        yield from layout.window([rows.example(int(index)) for index in chosen[start : start + at_a_time]])
