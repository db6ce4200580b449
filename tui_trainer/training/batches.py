"""The rows of a step as tensors.

Which rows those are (`data/batching/row_order.py`) and how they lie in memory (`data/batching/layout.py`) needs no
torch. A step always learns from the same rows; packing and sorting only decide how they lie, so neither changes the
gradient.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from tui_trainer.data.batching.layout import Pass, RowLayout
from tui_trainer.data.batching.row_order import RowOrder, share_of
from tui_trainer.data.preparing.token_rows import Rows, TokenRow
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.planning.fit import EVALUATION_WINDOW
from tui_trainer.training.ranks import Ranks


@dataclass(frozen=True, kw_only=True)
class Layout(RowLayout):
    """`by_lengths`: packed rows tell the attention where their documents begin (`training/varlen.py`)."""

    by_lengths: bool = False

    def window(self, documents: Sequence[TokenRow]) -> Iterator[MicroBatch]:
        """All forward passes over these documents."""
        return map(self.micro_batch, self.passes(documents))

    def micro_batch(self, rows: Pass) -> MicroBatch:
        """Return one forward pass. A compiled model would be compiled again for each number of positions."""
        return micro_batch(self.batch(rows), by_lengths=self.by_lengths, keeps_padding=bool(self.fixed_width))


@dataclass(slots=True)
class Batches:
    """Effective batches as windows of forward passes. `batches.at(step)`: step counts from 1. Where several processes
    train together, each has the forward passes of its own share of the rows.
    """

    rows: Rows
    layout: Layout
    order: RowOrder
    ranks: Ranks

    def documents(self, step: int) -> list[TokenRow]:
        """What one optimizer step learns from, in this process."""
        indices = self.order.at(step)
        if self.ranks.count > 1:
            indices = indices[share_of(self.rows.lengths[indices], self.ranks.number, self.ranks.count)]
        return [self.rows.example(int(index)) for index in indices]

    def at(self, step: int) -> list[MicroBatch]:
        """The forward passes of one optimizer step."""
        if documents := self.documents(step):
            return list(self.layout.window(documents))
        first = self.rows.example(int(self.order.at(step)[0]))
        return [idle(batch) for batch in self.layout.window([first])]


def idle(batch: MicroBatch) -> MicroBatch:
    """One that is computed and counts for nothing."""
    return replace(batch, samples=0, tokens=0, is_idle=True)


class Prefetcher:
    """Batches made ahead of the training by threads, while a GPU computes.

    `ahead.at(step)`: the window of a step, and the next ones are begun. The order of steps must be ascending.
    """

    def __init__(self, make: Callable[[int], list[MicroBatch]], *, workers: int, ahead: int, last_step: int) -> None:
        self._make = make
        self._ahead, self._last_step = ahead, last_step
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batches")
        self._waiting: dict[int, Future[list[MicroBatch]]] = {}

    def at(self, step: int) -> list[MicroBatch]:
        for coming in range(step, min(step + self._ahead, self._last_step) + 1):
            if coming not in self._waiting:
                self._waiting[coming] = self._pool.submit(self._make, coming)
        return self._waiting.pop(step).result()

    def forget(self) -> None:
        """What was made ahead is not taken: it is made anew when its step comes."""
        for made in self._waiting.values():
            made.cancel()
        self._waiting.clear()

    def close(self) -> None:
        """No more batches are begun; the threads end."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def windows(rows: Rows, chosen: Sequence[int], layout: Layout) -> Iterator[MicroBatch]:
    """The forward passes over the chosen rows, some passes' worth of them sorted or packed together."""
    at_a_time = layout.rows * EVALUATION_WINDOW
    if layout.packed_width and len(chosen):
        of_chosen = np.asarray(chosen)
        mean_inputs = float(np.mean((rows.lengths - rows.documents)[of_chosen]))
        at_a_time = max(at_a_time, int(at_a_time * layout.packed_width / mean_inputs))
    for start in range(0, len(chosen), at_a_time):
        yield from layout.window([rows.example(int(index)) for index in chosen[start : start + at_a_time]])
