"""Which rows a step learns from, and the rows as tensors.

The order of epoch e is a permutation drawn from (seed, e) alone, so the position in the data is the step number and a
resumed run needs nothing else. The last step of an epoch may have fewer rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from tui_trainer.data.collate import Batch
from tui_trainer.data.rows import Rows
from tui_trainer.planning.cadence import steps_per_epoch
from tui_trainer.training.step import MicroBatch

Collate = Callable[[Sequence[NDArray[np.int32]]], Batch]


class Batches:
    """Effective batches cut into micro-batches. `batches.at(step)`: step counts from 1."""

    def __init__(self, rows: Rows, collate: Collate, *, effective_batch: int, micro_batch: int, seed: int) -> None:
        self.rows = rows
        self._collate = collate
        self._effective_batch = min(effective_batch, len(rows))
        self._micro_batch = micro_batch
        self._seed = seed
        self._epoch = -1
        self._order: NDArray[np.int64] = np.empty(0, dtype=np.int64)
        self.steps_per_epoch = steps_per_epoch(len(rows), self._effective_batch)

    def at(self, step: int) -> list[MicroBatch]:
        """The micro-batches of one optimiser step."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        if epoch != self._epoch:
            self._order = np.random.default_rng([self._seed, epoch]).permutation(len(self.rows))
            self._epoch = epoch
        start = place * self._effective_batch
        chosen = self._order[start : start + self._effective_batch]
        return list(micro_batches(self.rows, chosen, self._collate, self._micro_batch))


def micro_batches(
    rows: Rows, chosen: Sequence[int] | NDArray[np.int64], collate: Collate, micro_batch: int
) -> Iterator[MicroBatch]:
    """The chosen rows, `micro_batch` at a time, padded to the longest of each."""
    for start in range(0, len(chosen), micro_batch):
        batch = collate([rows.row(int(index)) for index in chosen[start : start + micro_batch]])
        yield MicroBatch(torch.from_numpy(batch.input_ids), torch.from_numpy(batch.labels), batch.label_tokens)
