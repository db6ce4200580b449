"""The rows of each optimizer step, and the share of them that each process takes.

The order of epoch e is a permutation drawn from (seed, e) alone, so the step number is the position in the data, and a
resumed run needs nothing else. The last step of an epoch may have fewer rows.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# The number of batches within which rows are sorted by length, as in transformers' sampler.
MEGABATCH = 50


class RowOrder:
    """The order of rows in training: `order.at(step)` returns the rows of an optimizer step. Steps count from 1.

    `lengths` are int64 [rows], in any unit."""

    def __init__(
        self, lengths: NDArray[np.int64], *, effective_batch: int, seed: int, group_by_length: bool = False
    ) -> None:
        self._lengths = lengths
        self._effective_batch = min(effective_batch, len(lengths))
        self._seed = seed
        self._group_by_length = group_by_length
        self._order = lru_cache(maxsize=2)(self._draw)
        self.steps_per_epoch = steps_per_epoch(len(lengths), effective_batch)

    def at(self, step: int) -> NDArray[np.int64]:
        """Return the row numbers of a step, int64 [effective batch]; fewer in the last step of an epoch."""
        epoch, step_of_epoch = divmod(step - 1, self.steps_per_epoch)
        start = step_of_epoch * self._effective_batch
        return self._order(epoch)[start : start + self._effective_batch]

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        generator = np.random.default_rng([self._seed, epoch])
        order = generator.permutation(len(self._lengths))
        return self._grouped(order, generator) if self._group_by_length else order

    def _grouped(self, order: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """Sort rows by length within groups of batches, then shuffle the batches."""
        group_rows = self._effective_batch * MEGABATCH
        groups = [order[start : start + group_rows] for start in range(0, len(order), group_rows)]
        sorted_rows = np.concatenate([group[np.argsort(-self._lengths[group], kind="stable")] for group in groups])
        batch_count = len(order) // self._effective_batch
        # A last batch with fewer rows stays the last.
        full_rows, last_batch = np.split(sorted_rows, [batch_count * self._effective_batch])
        batches = full_rows.reshape(batch_count, self._effective_batch)
        return np.concatenate([batches[random.permutation(batch_count)].ravel(), last_batch])


def steps_per_epoch(rows: int, effective_batch: int) -> int:
    """Return the number of steps in an epoch; the last step may have fewer rows."""
    return max(1, math.ceil(rows / effective_batch))


def share_of(lengths: NDArray[np.int64], number: int, count: int) -> NDArray[np.int64]:
    """Return the sorted positions of the rows that process `number` of `count` takes. All get about equal tokens: rows
    are dealt back and forth, the longest first. With fewer rows than processes, some processes get none."""
    order = np.argsort(-lengths, kind="stable")
    round_numbers, turn_numbers = np.divmod(np.arange(len(order)), count)
    process_of_row = np.where(round_numbers % 2 == 0, turn_numbers, count - 1 - turn_numbers)
    return np.sort(order[process_of_row == number])
