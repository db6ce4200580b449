"""One optimizer step: the loop that everything else stands around.

The loss is a sum and a count, and the sum is divided once by the count of the whole effective batch, so the gradient is
the same however the batch is cut or packed. Nothing here waits for the device: sums, norms and times stay on it until
`training/recorder.py` reads a group of them.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.batches import idle
from tui_trainer.training.clock import Clock, seconds_between
from tui_trainer.training.communication import Span, seconds_of
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import ALONE, Ranks
from tui_trainer.training.together import LossSum, Together


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
    forwards: tuple[Span, ...]
    """Marks before and after each forward pass."""
    accumulated: Any
    updated: Any
    positions: int = 0
    """Of all inputs, padding included."""
    communication: tuple[Span, ...] = ()
    """With the other processes, where there are some: part of the rest, and beside it where a card does both at one
    time."""

    def seconds(self) -> dict[str, float]:
        """Of its parts, in their order and by their names in the journal. Reads the marks: the step must be over."""
        forward = seconds_of(self.forwards)
        whole = seconds_between(self.forwards[0][0], self.accumulated)
        return {
            "data_seconds": self.data_seconds,
            "forward_seconds": forward,
            "backward_seconds": whole - forward,
            "optimizer_seconds": seconds_between(self.accumulated, self.updated),
        }


def take_step(
    fetch: Callable[[], Sequence[MicroBatch]],
    loss_sum: LossSum,
    optimizer: RunOptimizer,
    mixed_precision: MixedPrecision,
    clock: Clock,
    *,
    lr: float,
    max_grad_norm: float,
    ranks: Ranks = ALONE,
    together: Together | None = None,
) -> StepReport:
    """Fetch a whole effective batch, accumulate its gradient, clip and update. `max_grad_norm` 0: not clipped.

    A loss or gradient that is not finite changes no weight. Where several processes train together (`together`), each
    fetches its share, and the report is about all of them.
    """
    started = perf_counter()
    window = fetch()
    together = together or Together()
    communication = together.communication
    if communication:
        communication.begin()
    with communication.timed() if communication else nullcontext():
        if together.passes_together:
            (most,) = ranks.highest(len(window))
            window = [*window, *[idle(window[-1])] * (most - len(window))]
        tokens, input_tokens, samples, positions = ranks.sum_counts(_counts(window))
    data_seconds = perf_counter() - started
    compute = together.forward or loss_sum
    divisor = tokens / ranks.count if together.takes_mean else tokens
    forwards: list[Span] = []
    total: Tensor | None = None
    for number, batch in enumerate(window, 1):
        before = clock.mark()
        with together.summing(number == len(window)):
            with mixed_precision.autocast():
                loss = compute(batch)
                if batch.is_idle:
                    # A process without rows in this step takes part in the sum with a gradient of 0.
                    loss = loss * 0.0
            forwards.append((before, clock.mark()))
            together.backward(loss / divisor, mixed_precision)
        optimizer.collect()
        detached = loss.detach().double()
        total = detached if total is None else total + detached
    assert total is not None, "an effective batch has at least one row"
    together.finish()
    total = ranks.sum(total)
    accumulated = clock.mark()
    grad_norm = optimizer.apply(total, lr=lr, max_grad_norm=max_grad_norm, scaler=mixed_precision.scaler)
    return StepReport(
        loss_sum=total,
        grad_norm=grad_norm,
        tokens=tokens,
        input_tokens=input_tokens,
        samples=samples,
        lr=lr,
        data_seconds=data_seconds,
        forwards=tuple(forwards),
        accumulated=accumulated,
        updated=clock.mark(),
        positions=positions,
        communication=communication.end() if communication else (),
    )


def _counts(window: Sequence[MicroBatch]) -> tuple[int, int, int, int]:
    """(labels, inputs that are no padding, rows, inputs)."""
    each = [(batch.label_count, batch.tokens, batch.samples, batch.positions) for batch in window]
    labels, tokens, samples, positions = map(sum, zip(*each, strict=True))
    return labels, tokens, samples, positions
