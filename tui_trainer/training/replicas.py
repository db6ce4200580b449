"""The same model in several processes, and the sum of their gradients: torch's DistributedDataParallel.

Each process learns from its share of the rows of a step (`data/batching/row_order.py`). The sum of the losses is
divided by the labels of all processes, so the gradient is the one that a single process would have computed.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import Found, LossSum
from tui_trainer.training.clock import Communication, sum_in_one
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.optimizer import RunOptimizer

# As much as DistributedDataParallel sends at a time.
_BUCKET_BYTES = 25 * 2**20


class LossModule(nn.Module):
    """A forward pass with its loss, as one module: whatever of the model the loss calls, it is called within it."""

    def __init__(self, model: nn.Module, loss: LossSum) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: MicroBatch) -> Found:
        return self._loss(batch)


class Replicas(Collectives):
    def __init__(
        self,
        model: nn.Module,
        loss: LossSum,
        optimizer: RunOptimizer,
        communication: Communication,
    ) -> None:
        self.communication: Communication = communication
        self._last_gradient: Any = None
        module = LossModule(model, loss)
        self._parallel: DistributedDataParallel | None = None
        self.forward: LossSum = module
        self._buckets: list[list[nn.Parameter]] = []
        if optimizer.masters:
            # Weights of 16 bits have their gradients summed in fp32, outside of the model: by hand, at the end.
            self._buckets = list(_buckets(optimizer.trained))
        else:
            self.takes_mean = True
            here, named = optimizer.trained[0].device, (*module.named_parameters(), *module.named_buffers())
            # Towers on the host: they are the same in all processes, and no collective of cards reaches them.
            elsewhere = [name for name, tensor in named if tensor.device != here]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, elsewhere)
            self.forward = self._parallel = DistributedDataParallel(
                module,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                # Heads and experts may have no part in a step. And the buckets stay as they are: other ones would sum
                # in another order, and a resumed run would not go on to the bit.
                find_unused_parameters=True,
            )
            # The first layer gets its gradient last: from then on the backward pass is over but for the others.
            optimizer.trained[0].register_post_accumulate_grad_hook(self._note_last_gradient)

    def _note_last_gradient(self, _: Tensor) -> None:
        self._last_gradient = self.communication.mark()

    def summing(self, is_last: bool) -> AbstractContextManager[object]:
        """Gradients are summed over all processes in the last pass of a step."""
        return nullcontext() if is_last or self._parallel is None else self._parallel.no_sync()

    def finish(self) -> None:
        began, self._last_gradient = self._last_gradient or self.communication.mark(), None
        for bucket in self._buckets:
            for parameter in bucket:
                if parameter.grad is None:
                    # What had no part in a step of this process counts as 0 there.
                    parameter.grad = torch.zeros_like(parameter)
            sum_in_one([parameter.grad for parameter in bucket if parameter.grad is not None])
        self.communication.since(began)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(one.nbytes for one in bucket) >= _BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
