"""The same model in several processes, and the sum of their gradients: torch's DistributedDataParallel.

Each process learns from its share of the rows of a step (`data/batching/shares.py`). The sum of the losses is divided
by the labels of all processes, so the gradient is the one that a single process would have computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.ranks import Ranks

# As much as DistributedDataParallel sends at a time.
_BUCKET_BYTES = 25 * 2**20


class _Loss(nn.Module):
    """A forward pass with its loss, as one module: whatever of the model the loss calls, it is called within it."""

    def __init__(self, model: nn.Module, loss: Callable[[MicroBatch], Tensor]) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: MicroBatch) -> Tensor:
        loss = self._loss(batch)
        # A process without rows in this step takes part in the sum with a gradient of 0.
        return loss * 0.0 if batch.is_idle else loss


class Replicas:
    """`replicas(batch)`: the summed loss of a forward pass of this process."""

    def __init__(
        self, ranks: Ranks, model: nn.Module, loss: Callable[[MicroBatch], Tensor], optimizer: RunOptimizer
    ) -> None:
        self._ranks, self._optimizer = ranks, optimizer
        module = _Loss(model, loss)
        self._parallel: DistributedDataParallel | None = None
        self._forward: Any = module
        # Weights of 16 bits have their gradients summed in fp32, outside of the model: by hand, after the last pass.
        if not optimizer.has_masters:
            self._forward = self._parallel = DistributedDataParallel(
                module,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                # Heads and experts may have no part in a step. And the buckets stay as they are: other ones would sum
                # in another order, and a resumed run would not go on to the bit.
                find_unused_parameters=True,
            )

    def __call__(self, batch: MicroBatch) -> Tensor:
        return self._forward(batch)  # type: ignore[no-any-return]

    def summing(self, is_last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch: gradients are summed over all processes in the last
        one of a step."""
        return nullcontext() if is_last or self._parallel is None else self._parallel.no_sync()

    def finish(self) -> None:
        """What was not summed in the last backward pass."""
        if self._parallel is None:
            sum_gradients(self._optimizer.trained)

    def scale(self, labels: int) -> float:
        """What a summed loss is divided by: torch's DistributedDataParallel takes the mean over the processes."""
        return labels / self._ranks.count if self._parallel else labels


def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Of all processes, in each; what had no part in a step of this process counts as 0 there."""
    for bucket in _buckets(parameters):
        for parameter in bucket:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat)
        for gradient, summed in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(summed.view_as(gradient))


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(one.nbytes for one in bucket) >= _BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
