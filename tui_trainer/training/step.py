"""Make one optimizer step: forward and backward passes over an effective batch, clipping and the update.

A loss is a sum and a count, or several of them by name (`losses/named_losses.py`). Each sum is divided once by the
count of the whole effective batch, so the gradient does not depend on how the batch is split or packed. This module
does not wait for the device: sums, norms and times stay there until `training/recorder.py` reads a group of them.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any

from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import LossSum, NamedLoss, NamedLossSums, idle_sums
from tui_trainer.training.batches import as_idle
from tui_trainer.training.clock import Clock, Span, seconds_between, seconds_of
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import SINGLE_PROCESS, Ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """Result of one step, on the device: `loss_sum` over `token_count` labels and `grad_norm` before clipping (0-dim).

    If the loss has named parts and scores, `sums` has (sum as a 0-dim tensor, count) of each. Times are marks.
    """

    loss_sum: Tensor
    grad_norm: Tensor
    token_count: int
    input_tokens: int
    samples: int
    lr: float
    data_seconds: float
    forwards: tuple[Span, ...]
    """Marks before and after each forward pass."""
    accumulated_mark: Any
    updated_mark: Any
    sums: Mapping[str, tuple[Tensor, int]] = field(default_factory=dict)
    positions: int = 0
    """Number of inputs, including padding."""
    communication: tuple[Span, ...] = ()
    """Marks around each communication with other processes. Its time is within other times, or overlaps them."""

    def seconds(self) -> dict[str, float]:
        """Return the seconds of each part of the step, in order, keyed by journal field, for example `forward_seconds`.

        The device must have finished the step, because this reads its time marks.
        """
        forward_seconds = seconds_of(self.forwards)
        whole_seconds = seconds_between(self.forwards[0][0], self.accumulated_mark)
        return {
            "data_seconds": self.data_seconds,
            "forward_seconds": forward_seconds,
            "backward_seconds": whole_seconds - forward_seconds,
            "optimizer_seconds": seconds_between(self.accumulated_mark, self.updated_mark),
        }


def take_step(
    fetch: Callable[[], Sequence[MicroBatch]],
    loss: LossSum,
    optimizer: RunOptimizer,
    mixed_precision: MixedPrecision,
    clock: Clock,
    *,
    lr: float,
    max_grad_norm: float,
    ranks: Ranks = SINGLE_PROCESS,
    collectives: Collectives | None = None,
) -> StepReport:
    """Fetch an effective batch, accumulate its gradient, clip it (unless `max_grad_norm` is 0) and update the weights.

    If the loss or a gradient is not finite, no weight changes. With several processes (`ranks`, `collectives`) each
    fetches its share of the batch, and the report covers all processes.
    """
    started_at = perf_counter()
    window = fetch()
    collectives = collectives or Collectives()
    communication = collectives.communication
    if communication:
        communication.begin()
    with communication.time_block() if communication else nullcontext():
        if collectives.needs_equal_passes:
            (most_batches,) = ranks.maximum(len(window))
            window = [*window, *[as_idle(window[-1])] * (most_batches - len(window))]
        sums = NamedLossSums.of(loss)
        sums.count(window)
        *counts, input_tokens, samples, positions = ranks.sum_counts([*sums.counts.values(), *_sizes(window)])
        sums.counts = dict(zip(sums.counts, counts, strict=True))
    data_seconds = perf_counter() - started_at
    compute = collectives.forward or loss
    forwards: list[Span] = []
    if isinstance(loss, NamedLoss) and loss.terms:
        # If the loss needs means over the whole effective batch, they take an additional pass without gradients.
        start_mark, terms = clock.mark(), NamedLossSums.of_terms(loss)
        with collectives.no_gradient_context(), mixed_precision.autocast():
            for batch in window:
                batch_terms = loss.terms_of(batch)
                terms.add(idle_sums(batch_terms) if batch.is_idle else batch_terms)
        terms.values, terms.counts = ranks.sum(terms.values), sums.counts
        means = terms.means()
        window = [replace(batch, terms=means) for batch in window]
        forwards.append((start_mark, clock.mark()))
    for number, batch in enumerate(window, 1):
        start_mark = clock.mark()
        with collectives.gradient_context(number == len(window)):
            with mixed_precision.autocast():
                result = compute(batch)
                if batch.is_idle:
                    # A process without rows in this step contributes a gradient of 0.
                    result = idle_sums(result)
            forwards.append((start_mark, clock.mark()))
            factor = ranks.world_size if collectives.averages_gradients else 1
            collectives.backward(sums.loss(result, factor), mixed_precision)
        optimizer.collect()
        sums.add(result)
    collectives.finish()
    sums.values = ranks.sum(sums.values)
    accumulated_mark = clock.mark()
    grad_norm = optimizer.apply(sums.loss_sum, lr=lr, max_grad_norm=max_grad_norm, scaler=mixed_precision.scaler)
    return StepReport(
        loss_sum=sums.loss_sum,
        grad_norm=grad_norm,
        token_count=sums.label_count,
        input_tokens=input_tokens,
        samples=samples,
        lr=lr,
        data_seconds=data_seconds,
        forwards=tuple(forwards),
        accumulated_mark=accumulated_mark,
        updated_mark=clock.mark(),
        positions=positions,
        sums={name: (value, sums.divisor(name)) for name, value in sums.reported.items()},
        communication=communication.end() if communication else (),
    )


def _sizes(window: Sequence[MicroBatch]) -> tuple[int, int, int]:
    """Return (inputs without padding, rows, inputs including padding) of the micro-batches."""
    tokens, samples, positions = map(
        sum, zip(*((b.token_count, b.sample_count, b.position_count) for b in window), strict=True)
    )
    return tokens, samples, positions
