"""Which rows a step learns from, and the rows as tensors.

The order of epoch e is a permutation drawn from (seed, e) alone, so the position in the data is the step number and a
resumed run needs nothing else. The last step of an epoch may have fewer rows. A step always learns from the same rows;
packing and sorting only decide how they lie in memory, so neither changes the gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.collate import collate
from tui_trainer.data.pack import collate_packed, pack_batch
from tui_trainer.data.rows import Rows
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.planning.cadence import steps_per_epoch

Tokens = NDArray[np.int32]
# Batches drawn together where they are grouped by length, as in transformers' sampler.
MEGABATCH = 50
# Forward passes whose rows are sorted or packed together in an evaluation.
WINDOW = 4


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How rows lie in a forward pass: `rows` of them at a time; packed ones share rows of `packed_width` (0: no).

    `fixed_width` > 0: all rows are filled up to it, as compiled layers are made anew for each new width. `by_lengths`:
    packed rows tell the attention where their documents begin (`training/varlen.py`).
    """

    pad_id: int
    rows: int
    packed_width: int = 0
    fixed_width: int = 0
    by_lengths: bool = False

    def window(self, documents: Sequence[Tokens]) -> Iterator[MicroBatch]:
        """All forward passes over these documents. Passes of one batch are about equally large."""
        if self.packed_width:
            packed = pack_batch(documents, self.packed_width)
            for shared in _equal_parts(packed, self.rows):
                batch = collate_packed(shared, self.pad_id, width=self.fixed_width)
                yield micro_batch(batch, by_lengths=self.by_lengths)
            return
        if len(documents) > self.rows:
            # Rows of similar length in one pass need the least padding.
            documents = sorted(documents, key=len, reverse=True)
        for start in range(0, len(documents), self.rows):
            part = documents[start : start + self.rows]
            if self.fixed_width:
                yield micro_batch(
                    collate_packed([[document] for document in part], self.pad_id, width=self.fixed_width)
                )
            else:
                yield micro_batch(collate(part, self.pad_id))


class Batches:
    """Effective batches as windows of forward passes. `batches.at(step)`: step counts from 1."""

    def __init__(
        self, rows: Rows, layout: Layout, *, effective_batch: int, seed: int, group_by_length: bool = False
    ) -> None:
        self.rows = rows
        self.layout = layout
        self._effective_batch = min(effective_batch, len(rows))
        self._seed = seed
        self._group_by_length = group_by_length
        self._order = lru_cache(maxsize=2)(self._draw)
        self.steps_per_epoch = steps_per_epoch(len(rows), self._effective_batch)

    def at(self, step: int) -> list[MicroBatch]:
        """The forward passes of one optimiser step."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        start = place * self._effective_batch
        chosen = self._order(epoch)[start : start + self._effective_batch]
        return list(self.layout.window([self.rows.row(int(index)) for index in chosen]))

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self.rows))
        return self._grouped(order, random) if self._group_by_length else order

    def _grouped(self, order: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """Within each run of some batches, rows sorted by length; then the batches are drawn anew."""
        width = self._effective_batch * MEGABATCH
        groups = [order[start : start + width] for start in range(0, len(order), width)]
        by_length = np.concatenate([group[np.argsort(-self.rows.lengths[group], kind="stable")] for group in groups])
        full = len(order) // self._effective_batch
        batches = by_length[: full * self._effective_batch].reshape(full, self._effective_batch)
        # A last batch with fewer rows stays the last.
        return np.concatenate([batches[random.permutation(full)].ravel(), by_length[full * self._effective_batch :]])


def windows(rows: Rows, chosen: Sequence[int], layout: Layout) -> Iterator[MicroBatch]:
    """The forward passes over the chosen rows, some passes' worth of them sorted or packed together."""
    at_a_time = layout.rows * WINDOW
    if layout.packed_width and len(chosen):
        mean_inputs = float(np.mean(rows.lengths[np.asarray(chosen)])) - 1
        at_a_time = max(at_a_time, int(at_a_time * layout.packed_width / mean_inputs))
    for start in range(0, len(chosen), at_a_time):
        yield from layout.window([rows.row(int(index)) for index in chosen[start : start + at_a_time]])


def _equal_parts(packed: Sequence[Sequence[Tokens]], largest: int) -> Iterator[Sequence[Sequence[Tokens]]]:
    """9 rows of which 4 fit are 3, 3 and 3, not 4, 4 and 1."""
    count = -(-len(packed) // largest)
    width = -(-len(packed) // count)
    for start in range(0, len(packed), width):
        yield packed[start : start + width]
