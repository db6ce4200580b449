"""Train copies of a model in several processes and sum their gradients, with torch's DistributedDataParallel.

Each process trains on its share of the rows of a step (`data/batching/row_order.py`). The sum of the losses is divided
by the number of labels in all processes, so the gradient equals that of a run of one process.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import LossResult, LossSum
from tui_trainer.training.clock import Communication, sum_in_one
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.optimizer import RunOptimizer

# The default bucket size of DistributedDataParallel.
_BUCKET_BYTES = 25 * 2**20


class LossModule(nn.Module):
    """Module that computes forward pass and loss, so that wrappers of the module see all calls of the model."""

    def __init__(self, model: nn.Module, loss: LossSum) -> None:
        super().__init__()
        self.model = model
        self._loss = loss

    def forward(self, batch: MicroBatch) -> LossResult:
        return self._loss(batch)


class Replicas(Collectives):
    def __init__(self, model: nn.Module, loss: LossSum, optimizer: RunOptimizer, communication: Communication) -> None:
        self.communication: Communication = communication
        self._last_gradient: Any = None
        module = LossModule(model, loss)
        self._parallel: DistributedDataParallel | None = None
        self.forward: LossSum = module
        self._buckets: list[list[nn.Parameter]] = []
        if optimizer.masters:
            # The gradients of 16-bit weights are summed in fp32 outside the model, at the end of a step.
            self._buckets = list(_buckets(optimizer.trained_parameters))
        else:
            self.averages_gradients = True
            device = optimizer.trained_parameters[0].device
            named_tensors = (*module.named_parameters(), *module.named_buffers())
            # Towers on the host are equal in all processes, and collectives between GPUs cannot read host memory.
            host_names = [name for name, tensor in named_tensors if tensor.device != device]
            DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, host_names)
            self.forward = self._parallel = DistributedDataParallel(
                module,
                broadcast_buffers=False,
                gradient_as_bucket_view=True,
                # Some steps do not use every head or expert. This also fixes the buckets: other buckets would sum in
                # another order, and a resumed run would differ in the last bits.
                find_unused_parameters=True,
            )
            # The first layer gets its gradient last. The time after that is spent waiting for other processes.
            optimizer.trained_parameters[0].register_post_accumulate_grad_hook(self._note_last_gradient)

    def _note_last_gradient(self, _: Tensor) -> None:
        self._last_gradient = self.communication.mark()

    def gradient_context(self, is_last: bool) -> AbstractContextManager[object]:
        """Return the context for one pass of a step. Gradients are summed over all processes only in the last pass."""
        return nullcontext() if is_last or self._parallel is None else self._parallel.no_sync()

    def finish(self) -> None:
        start_mark, self._last_gradient = self._last_gradient or self.communication.mark(), None
        for bucket in self._buckets:
            for parameter in bucket:
                if parameter.grad is None:
                    # If this process did not use a weight in the step, its gradient is 0 here.
                    parameter.grad = torch.zeros_like(parameter)
            sum_in_one([parameter.grad for parameter in bucket if parameter.grad is not None])
        self.communication.count_since(start_mark)


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        bucket.append(parameter)
        if sum(weight.nbytes for weight in bucket) >= _BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket
