"""Measure the time of steps, the communication in them, and the time between them. Marks are set without waiting for
the device, and read when steps are written to the journal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partialmethod
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tui_trainer.runs.events import BetweenSteps, RanksTimed
from tui_trainer.runs.journal import JournalWriter


class Clock:
    """A source of time marks: events in the queue of a GPU, or the current time on a CPU."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        if not self._on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds_between(before: Any, after: Any) -> float:
    """Return the seconds from one mark to another. A GPU must have reached the later mark."""
    if isinstance(before, float):
        return float(after - before)
    return float(before.elapsed_time(after)) / 1000


# Time in communication: the time of a step that a process spends exchanging data with other processes, including waits.
#
# Marks are set without waiting for the device. The processes exchange these times with the counts of each step.

Span = tuple[Any, Any]
"""Time marks before and after a part of a step."""
# torch 2.15 deprecates the older names of these functions.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Communication:
    """Time marks around each communication in the current step. Communication outside steps is not counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: list[Span] | None = None

    def begin(self) -> None:
        self._spans = []

    def mark(self) -> Any:
        return self._clock.mark()

    def count_since(self, mark: Any) -> None:
        """Count the time from a mark until now as communication."""
        if self._spans is not None:
            self._spans.append((mark, self._clock.mark()))

    @contextmanager
    def time_block(self) -> Iterator[None]:
        start_mark = self._clock.mark()
        yield
        self.count_since(start_mark)

    def end(self) -> tuple[Span, ...]:
        spans, self._spans = tuple(self._spans or ()), None
        return spans


def seconds_of(spans: Sequence[Span]) -> float:
    """Return the total seconds of the spans. The device must have reached all of their marks."""
    return sum(seconds_between(*span) for span in spans)


def sum_in_one(gradients: Sequence[Tensor]) -> None:
    """Sum gradients over all processes in place, as one flat tensor."""
    flat_gradients = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat_gradients)
    for gradient, summed_part in zip(gradients, flat_gradients.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed_part.view_as(gradient))


class TimedCollective:
    """Wrapper that times one of FSDP2's own collectives (`DefaultAllGather`, `DefaultReduceScatter`)."""

    def __init__(self, collective: Callable[..., Any], communication: Communication) -> None:
        self._collective, self._communication = collective, communication

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **more: Any) -> Any:
        with self._communication.time_block():
            return self._collective(output_tensor, input_tensor, *args, **more)


class GroupTimes:
    """Seconds that each process has spent in communication since the last call of `means`."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self._number = number
        # One row of (microseconds, steps) for each process. In `_own` only the row of this process is filled.
        self._rank_sums, self._all = (np.zeros((count, 2), dtype=np.int64) for _ in range(2))

    def add(self, seconds: float) -> None:
        """Add the communication time of one step of this process."""
        self._rank_sums[self._number] += (round(1e6 * seconds), 1)

    def take(self) -> list[int]:
        """Return [microseconds, steps] for each process in turn, since the last call. Other processes have zeros."""
        numbers: list[int] = self._rank_sums.ravel().tolist()
        self._rank_sums.fill(0)
        return numbers

    def add_all(self, numbers: Sequence[int]) -> None:
        """Add the element-wise sum of what `take` has returned in all processes."""
        self._all += np.reshape(numbers, (-1, 2))

    def means(self) -> list[float] | None:
        """Return the mean seconds per step of each process since the last call; None if a process has no step yet."""
        sums = self._all.tolist()
        if not all(steps for _, steps in sums):
            return None
        self._all.fill(0)
        return [round(microseconds / steps / 1e6, 6) for microseconds, steps in sums]


# Time between steps: parts that the journal names, and the rest.

_PERIOD_SECONDS = 4.0


class BetweenStepsTimer:
    """Sums of the time from the end of each step to the beginning of the next.

    Every few seconds the sums are written to the journal as a `BetweenSteps`, and `times` as a `RanksTimed`.
    """

    def __init__(self, journal: JournalWriter, times: GroupTimes | None = None) -> None:
        self._journal, self._times = journal, times
        self._ended: float | None = None
        self._written = perf_counter()
        self._known_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self._steps, self._journal_seconds, self._empty_cache_seconds, self._other_seconds = 0, 0.0, 0.0, 0.0

    def step_begins(self, step: int) -> None:
        now_seconds = perf_counter()
        if self._ended is not None:
            self._other_seconds += max(now_seconds - self._ended - self._known_seconds, 0.0)
        self._known_seconds = 0.0
        if self._steps and now_seconds - self._written >= _PERIOD_SECONDS:
            self.write(step - 1)

    def step_ended(self) -> None:
        self._ended = perf_counter()
        self._steps += 1

    def forget(self) -> None:
        """Do not count the time since the last step, because the run was paused."""
        self._ended = None

    def count(self, seconds: float) -> None:
        """Exclude these seconds from the sums, because another event of the journal reports them."""
        self._known_seconds += seconds

    @contextmanager
    def _adding_to(self, name: str) -> Iterator[None]:
        """Return a context that adds the time of its block to the attribute `name`."""
        started_at = perf_counter()
        yield
        seconds = perf_counter() - started_at
        setattr(self, name, getattr(self, name) + seconds)
        self._known_seconds += seconds

    writing = partialmethod(_adding_to, "_journal_seconds")
    emptying_the_cache = partialmethod(_adding_to, "_empty_cache_seconds")

    def write(self, step: int) -> None:
        """Write the sums since the last call, if there was a step."""
        if not self._steps:
            return
        self._written = perf_counter()
        self._journal.append(
            BetweenSteps(
                step=step,
                steps=self._steps,
                journal_seconds=round(self._journal_seconds, 6),
                empty_cache_seconds=round(self._empty_cache_seconds, 6),
                other_seconds=round(self._other_seconds, 6),
            )
        )
        if self._times and (means := self._times.means()):
            self._journal.append(RanksTimed(step=step, communication_seconds=means))
        self._clear()
