"""The time that a process spends in a step on what it does together with the others, waiting for them included.

It is marked as a step's other parts are, without waiting for the device, and each process tells the others of it with
the numbers that are summed once a step anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from tui_trainer.training.clock import Clock, seconds_between

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
