"""Time on the device that computes: marks that are set without waiting, and read when a group of steps is written."""

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
    """On a GPU a mark is an event in its queue; on the CPU, which is done when a call returns, it is the time."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        if not self._on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds_between(before: Any, after: Any) -> float:
    """Seconds from one mark to another. Of a GPU's marks the later one must be over: the caller has waited for it."""
    if isinstance(before, float):
        return float(after - before)
    return float(before.elapsed_time(after)) / 1000


# The time that a process spends in a step on what it does together with the others, waiting for them included.
#
# It is marked as a step's other parts are, without waiting for the device, and each process tells the others of it
# with
# the numbers that are summed once a step anyway.

Span = tuple[Any, Any]
"""The marks before and after it."""
# The older names of the same functions go (torch 2.15).
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Communication:
    """Of one step after the other. What is timed outside of a step does not count."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._spans: list[Span] | None = None

    def begin(self) -> None:
        self._spans = []

    def mark(self) -> Any:
        return self._clock.mark()

    def since(self, mark: Any) -> None:
        """From a mark until now it waited for the others."""
        if self._spans is not None:
            self._spans.append((mark, self._clock.mark()))

    @contextmanager
    def timed(self) -> Iterator[None]:
        before = self._clock.mark()
        yield
        self.since(before)

    def end(self) -> tuple[Span, ...]:
        spans, self._spans = tuple(self._spans or ()), None
        return spans


def seconds_of(spans: Sequence[Span]) -> float:
    """Reads the marks: the step must be over."""
    return sum(seconds_between(*span) for span in spans)


def sum_in_one(gradients: Sequence[Tensor]) -> None:
    """Over all processes, as one flat tensor."""
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(summed.view_as(gradient))


class TimedCollective:
    """As FSDP2 does it by itself (`DefaultAllGather`, `DefaultReduceScatter`), and timed."""

    def __init__(self, collective: Callable[..., Any], communication: Communication) -> None:
        self._collective, self._communication = collective, communication

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, *args: Any, **more: Any) -> Any:
        with self._communication.timed():
            return self._collective(output_tensor, input_tensor, *args, **more)


class GroupTimes:
    """Seconds of each process in communication, added up until they are read."""

    def __init__(self, number: int = 0, count: int = 1) -> None:
        self._number = number
        # Microseconds and steps of each process: this one's own alone, and those of all.
        self._own, self._heard = (np.zeros((count, 2), dtype=np.int64) for _ in range(2))

    def add(self, seconds: float) -> None:
        """Of a step of this process whose marks were read."""
        self._own[self._number] += (round(1e6 * seconds), 1)

    def to_tell(self) -> list[int]:
        """Microseconds and steps since the last time, in the places of this process; 0 in those of the others."""
        told: list[int] = self._own.ravel().tolist()
        self._own.fill(0)
        return told

    def hear(self, numbers: Sequence[int]) -> None:
        """What all of them told, added up."""
        self._heard += np.reshape(numbers, (-1, 2))

    def means(self) -> list[float] | None:
        """Seconds of a step, of each process, since the last time; None where one of them has not told any."""
        heard = self._heard.tolist()
        if not all(steps for _, steps in heard):
            return None
        self._heard.fill(0)
        return [round(microseconds / steps / 1e6, 6) for microseconds, steps in heard]


# The time between steps: what of it the journal accounts for by name, and the rest.

_PERIOD_SECONDS = 4.0


class Between:
    """Adds up from the end of a step to the beginning of the next, and writes a `BetweenSteps` every few seconds; with
    `times` a `RanksTimed` beside it."""

    def __init__(self, journal: JournalWriter, times: GroupTimes | None = None) -> None:
        self._journal, self._times = journal, times
        self._ended: float | None = None
        self._written = perf_counter()
        self._known_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self._steps, self._journal_seconds, self._empty_cache_seconds, self._other_seconds = 0, 0.0, 0.0, 0.0

    def step_begins(self, step: int) -> None:
        now = perf_counter()
        if self._ended is not None:
            self._other_seconds += max(now - self._ended - self._known_seconds, 0.0)
        self._known_seconds = 0.0
        if self._steps and now - self._written >= _PERIOD_SECONDS:
            self.write(step - 1)

    def step_ended(self) -> None:
        self._ended = perf_counter()
        self._steps += 1

    def forget(self) -> None:
        """What was since the last step was a pause, and no cost."""
        self._ended = None

    def count(self, seconds: float) -> None:
        """An event of its own accounts for so many seconds."""
        self._known_seconds += seconds

    @contextmanager
    def _adding_to(self, name: str) -> Iterator[None]:
        """What is done inside is accounted for under this name."""
        started = perf_counter()
        yield
        seconds = perf_counter() - started
        setattr(self, name, getattr(self, name) + seconds)
        self._known_seconds += seconds

    writing = partialmethod(_adding_to, "_journal_seconds")
    emptying_the_cache = partialmethod(_adding_to, "_empty_cache_seconds")

    def write(self, step: int) -> None:
        """What has added up since the last time, where there was a step."""
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
