"""One optimizer step: the loop that everything else stands around.

The loss is a sum and a count, and the sum is divided once by the count of the whole effective batch, so the gradient is
the same however the batch is cut or packed. Nothing here waits for the device: sums, norms and times stay on it until
`training/recorder.py` reads a group of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.clock import Clock, seconds_between
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision

LossSum = Callable[[MicroBatch], Tensor]
"""Nats summed over the labels that count."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """One step in its parts."""

    data: float
    forward: float
    backward: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.data + self.forward + self.backward + self.optimizer


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """`loss_sum` (over `tokens` labels) and `grad_norm` (before clipping) are 0-dim tensors, times are marks."""

    loss_sum: Tensor
    grad_norm: Tensor
    tokens: int
    input_tokens: int
    samples: int
    lr: float
    data_seconds: float
    forwards: tuple[tuple[Any, Any], ...]
    """Marks before and after each forward pass."""
    accumulated: Any
    updated: Any
    positions: int = 0
    """Of all inputs, padding included."""

    def seconds(self) -> StepSeconds:
        """Reads the marks: the step must be over."""
        forward = sum(seconds_between(before, after) for before, after in self.forwards)
        whole = seconds_between(self.forwards[0][0], self.accumulated)
        return StepSeconds(
            data=self.data_seconds,
            forward=forward,
            backward=whole - forward,
            optimizer=seconds_between(self.accumulated, self.updated),
        )


def take_step(
    fetch: Callable[[], Sequence[MicroBatch]],
    loss_sum: LossSum,
    optimizer: RunOptimizer,
    mixed_precision: MixedPrecision,
    clock: Clock,
    *,
    lr: float,
    max_grad_norm: float,
) -> StepReport:
    """Fetch a whole effective batch, accumulate its gradient, clip and update. `max_grad_norm` 0: not clipped.

    A loss or gradient that is not finite changes no weight.
    """
    started = perf_counter()
    window = fetch()
    data_seconds = perf_counter() - started
    tokens = sum(batch.label_count for batch in window)
    forwards: list[tuple[Any, Any]] = []
    total: Tensor | None = None
    for batch in window:
        before = clock.mark()
        with mixed_precision.autocast():
            loss = loss_sum(batch)
        forwards.append((before, clock.mark()))
        mixed_precision.backward(loss / tokens)
        optimizer.collect()
        detached = loss.detach().double()
        total = detached if total is None else total + detached
    assert total is not None, "an effective batch has at least one row"
    accumulated = clock.mark()
    grad_norm = optimizer.apply(total, lr=lr, max_grad_norm=max_grad_norm, scaler=mixed_precision.scaler)
    return StepReport(
        loss_sum=total,
        grad_norm=grad_norm,
        tokens=tokens,
        input_tokens=sum(batch.tokens for batch in window),
        samples=sum(batch.samples for batch in window),
        lr=lr,
        data_seconds=data_seconds,
        forwards=tuple(forwards),
        accumulated=accumulated,
        updated=clock.mark(),
        positions=sum(batch.positions for batch in window),
    )
