"""Which rows a step learns from, and which of them each of several processes takes.

The order of epoch e is a permutation drawn from (seed, e) alone, so the position in the data is the step number and a
resumed run needs nothing else. The last step of an epoch may have fewer rows.
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

# Batches drawn together where they are grouped by length, as in transformers' sampler.
MEGABATCH = 50


class RowOrder:
    """`order.at(step)`: the numbers of the rows behind an optimizer step; step counts from 1.

    `lengths`, int64 [rows], in any unit.
    """

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
        """Numbers of rows, int64 [effective batch], fewer at the end of an epoch."""
        epoch, place = divmod(step - 1, self.steps_per_epoch)
        start = place * self._effective_batch
        return self._order(epoch)[start : start + self._effective_batch]

    def _draw(self, epoch: int) -> NDArray[np.int64]:
        random = np.random.default_rng([self._seed, epoch])
        order = random.permutation(len(self._lengths))
        return self._grouped(order, random) if self._group_by_length else order

    def _grouped(self, order: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        """Within each run of some batches, rows sorted by length; then the batches are drawn anew."""
        width = self._effective_batch * MEGABATCH
        groups = [order[start : start + width] for start in range(0, len(order), width)]
        by_length = np.concatenate([group[np.argsort(-self._lengths[group], kind="stable")] for group in groups])
        full = len(order) // self._effective_batch
        batches = by_length[: full * self._effective_batch].reshape(full, self._effective_batch)
        # A last batch with fewer rows stays the last.
        return np.concatenate([batches[random.permutation(full)].ravel(), by_length[full * self._effective_batch :]])


def steps_per_epoch(rows: int, effective_batch: int) -> int:
    """The last step of an epoch may have fewer rows."""
    return max(1, math.ceil(rows / effective_batch))


def share_of(lengths: NDArray[np.int64], number: int, count: int) -> NDArray[np.int64]:
    """Places, ascending, of the rows that process `number` of `count` takes: about as many tokens each. Rows are dealt
    back and forth, the longest first; with fewer rows than processes some get none.
    """
    order = np.argsort(-lengths, kind="stable")
    rounds, places = np.divmod(np.arange(len(order)), count)
    dealt_to = np.where(rounds % 2 == 0, places, count - 1 - places)
    return np.sort(order[dealt_to == number])
