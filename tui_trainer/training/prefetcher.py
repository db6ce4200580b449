"""Batches made ahead of the training by threads, while a GPU computes."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from tui_trainer.losses.micro_batch import MicroBatch

Window = list[MicroBatch]


class Prefetcher:
    """`ahead.at(step)`: the window of a step, and the next ones are begun. The order of steps must be ascending."""

    def __init__(self, make: Callable[[int], Window], *, workers: int, ahead: int, last_step: int) -> None:
        self._make = make
        self._ahead, self._last_step = ahead, last_step
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="batches")
        self._waiting: dict[int, Future[Window]] = {}

    def at(self, step: int) -> Window:
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
