"""One optimiser step: the loop that everything else stands around.

Shapes: ids_BT and labels_BT are int64; B rows of a micro-batch, T tokens. The loss is a sum and a count, and the sum is
divided once by the count of the whole effective batch, so the gradient is the same however the batch is cut.
Nothing here waits for the device: sums and norms stay tensors until `training/recorder.py` reads a group of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import Tensor
from torch.optim import Optimizer

LossSum = Callable[[Tensor, Tensor], Tensor]
"""`loss_sum(ids_BT, labels_BT)`: cross entropy in nats, summed over the labels that count."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes. `label_tokens` is counted where the rows are padded, not on the device."""

    input_ids: Tensor
    labels: Tensor
    label_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """What one step did; tensors are scalars on the device. Seconds are wall time."""

    loss_sum: Tensor
    grad_norm: Tensor
    tokens: int
    samples: int
    lr: float
    data_seconds: float
    forward_seconds: float
    backward_seconds: float
    optimiser_seconds: float

    @property
    def step_seconds(self) -> float:
        return self.data_seconds + self.forward_seconds + self.backward_seconds + self.optimiser_seconds


def take_step(
    fetch: Callable[[], Sequence[MicroBatch]],
    loss_sum: LossSum,
    parameters: Sequence[Tensor],
    optimiser: Optimizer,
    *,
    lr: float,
    max_grad_norm: float,
) -> StepReport:
    """Fetch a whole effective batch, accumulate its gradient, clip and update. `max_grad_norm` 0: not clipped.

    A loss or gradient that is not finite changes no weight: the fused optimiser skips the update on the device.
    """
    started = perf_counter()
    window = fetch()
    tokens = sum(micro_batch.label_tokens for micro_batch in window)
    fetched = perf_counter()
    forward_seconds, total = 0.0, None
    for micro_batch in window:
        before = perf_counter()
        loss = loss_sum(micro_batch.input_ids, micro_batch.labels)
        forward_seconds += perf_counter() - before
        (loss / tokens).backward()
        detached = loss.detach().double()
        total = detached if total is None else total + detached
    assert total is not None, "an effective batch has at least one row"
    accumulated = perf_counter()
    grad_norm = _clip(parameters, max_grad_norm)
    _update(optimiser, torch.isfinite(grad_norm) & torch.isfinite(total), lr)
    return StepReport(
        loss_sum=total,
        grad_norm=grad_norm,
        tokens=tokens,
        samples=sum(len(micro_batch.input_ids) for micro_batch in window),
        lr=lr,
        data_seconds=fetched - started,
        forward_seconds=forward_seconds,
        backward_seconds=accumulated - fetched - forward_seconds,
        optimiser_seconds=perf_counter() - accumulated,
    )


def _clip(parameters: Sequence[Tensor], max_grad_norm: float) -> Tensor:
    """Clip to `max_grad_norm` and return the norm before; 0 only measures."""
    if max_grad_norm:
        return torch.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def _update(optimiser: Optimizer, is_finite: Tensor, lr: float) -> None:
    for group in optimiser.param_groups:
        group["lr"] = lr
    # Fused optimisers read these two names (torch.amp uses the same door): no waiting, and no poisoned weights.
    optimiser.grad_scale = None  # type: ignore[attr-defined]
    optimiser.found_inf = (~is_finite).float()  # type: ignore[attr-defined]
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
