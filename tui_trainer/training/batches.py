"""Turn the rows of a step into tensors.

`data/batching/row_order.py` chooses the rows and `data/batching/layout.py` lays them out, both without torch. A step
always trains on the same rows: packing and sorting change only their layout, so neither changes the gradient.
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
    """Row layout that makes tensors. With `by_lengths`, attention gets document lengths (`training/varlen.py`)."""

    by_lengths: bool = False

    def micro_batches(self, documents: Sequence[TokenRow]) -> Iterator[MicroBatch]:
        """Return the micro-batches of these documents, one for each forward pass."""
        return map(self.micro_batch, self.passes(documents))

    def micro_batch(self, rows: Pass) -> MicroBatch:
        """Return the rows of one forward pass as tensors. They keep all padding if the layout has a fixed width."""
        return micro_batch(self.batch(rows), by_lengths=self.by_lengths, keeps_padding=bool(self.fixed_width))


@dataclass(slots=True)
class Batches:
    """The effective batch of each step, as micro-batches. Steps count from 1.

    If several processes train together, each process gets the micro-batches of its own share of the rows."""

    rows: Rows
    layout: Layout
    order: RowOrder
    ranks: Ranks

    def documents(self, step: int) -> list[TokenRow]:
        """Return the documents that this process trains on in one optimizer step."""
        indices = self.order.at(step)
        if self.ranks.world_size > 1:
            indices = indices[share_of(self.rows.lengths[indices], self.ranks.rank, self.ranks.world_size)]
        return [self.rows.example(int(index)) for index in indices]

    def micro_batches_of(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of one optimizer step; an idle one if this process has no rows in the step."""
        if documents := self.documents(step):
            return list(self.layout.micro_batches(documents))
        first_row = self.rows.example(int(self.order.at(step)[0]))
        return [as_idle(batch) for batch in self.layout.micro_batches([first_row])]


def as_idle(batch: MicroBatch) -> MicroBatch:
    """Return the batch marked as idle: the model computes it, but it adds nothing to the loss or the counts."""
    return replace(batch, sample_count=0, token_count=0, is_idle=True)


class Prefetcher:
    """Threads that prepare batches ahead of training, while a GPU computes.

    `micro_batches_of(step)` returns a step's micro-batches, and begins to prepare those of the next `steps` steps. Call
    it with ascending steps."""

    def __init__(self, make: Callable[[int], list[MicroBatch]], *, workers: int, steps: int, last_step: int) -> None:
        self._make, self._steps, self._last_step = make, steps, last_step
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batches")
        self._waiting: dict[int, Future[list[MicroBatch]]] = {}

    def micro_batches_of(self, step: int) -> list[MicroBatch]:
        for next_step in range(step, min(step + self._steps, self._last_step) + 1):
            if next_step not in self._waiting:
                self._waiting[next_step] = self._pool.submit(self._make, next_step)
        return self._waiting.pop(step).result()

    def forget(self) -> None:
        """Discard the prefetched batches; each is prepared again when its step comes."""
        for future in self._waiting.values():
            future.cancel()
        self._waiting.clear()

    def close(self) -> None:
        """Stop preparing batches and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def micro_batches_of_rows(rows: Rows, row_numbers: Sequence[int], layout: Layout) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the rows with these numbers. Rows of several passes are sorted or packed together."""
    window_rows = layout.rows_per_pass * EVALUATION_WINDOW
    if layout.packed_width and len(row_numbers):
        chosen_rows = np.asarray(row_numbers)
        mean_inputs = float(np.mean((rows.lengths - rows.documents)[chosen_rows]))
        window_rows = max(window_rows, int(window_rows * layout.packed_width / mean_inputs))
    for start in range(0, len(row_numbers), window_rows):
        window = row_numbers[start : start + window_rows]
        yield from layout.micro_batches([rows.example(int(index)) for index in window])
