"""Memory of a step of the program on tensors that have a shape and no numbers: what torch would allocate for it.

The model, its adapters, the loss, the sum of gradients and the optimizer's state are the program's own; only the update
is left out, whose fused form allocates nothing. Each storage counts from the operation that makes it until nothing
holds it any more, in blocks of 512 bytes as CUDA's allocator gives them. What an allocator cannot fill, and CUDA's
context, are not in it. For a card torch's kernels for the CPU stand for its own: SDPA keeps what flash attention keeps,
and attention by lengths has no form there, so a card's rows are never packed.
"""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from typing import Any
from unittest.mock import patch

import torch
from memory_grid_cases import Case
from memory_grid_child import batch_of, build, loss_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tui_trainer.config.sections import TrainingSection
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.models.counting import fake_tensors
from tui_trainer.training.clock import Clock
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.step import take_step

_BLOCK_BYTES = 512
_STEPS = 2
CPU = torch.device("cpu")


class Allocations(TorchDispatchMode):
    """Bytes of all storages that are alive, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.peak_bytes = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for result in tree_leaves(found):
            if isinstance(result, Tensor):
                self.count(result)
        return found

    def count(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, -(-storage.nbytes() // _BLOCK_BYTES) * _BLOCK_BYTES
        if key not in self._alive:
            self._alive.add(key)
            self.bytes += size
            self.peak_bytes = max(self.peak_bytes, self.bytes)
            weakref.finalize(storage, self._free, key, size).atexit = False

    def _free(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.bytes -= size


def simulated_peak_bytes(case: Case, device: str, *, in_16_bits: bool = False) -> int:
    """Bytes at the peak of the second step of a configuration on a `cpu` or `cuda`, and of an evaluation before it.

    `in_16_bits`: weights of 16 bits train as they are, with gradients and moments alike, as other programs do; ours
    have a copy in fp32.
    """
    dropout = nullcontext() if device == "cpu" else patch.object(torch.nn.functional, "dropout", _dropout)
    with fake_tensors(case.head), dropout, Allocations() as allocations:
        model = build(case, CPU)
        mixed_precision = MixedPrecision(case.precision, CPU)
        optimizer = RunOptimizer(model, TrainingSection(), lr=1e-4, has_masters=not in_16_bits)
        for parameter in optimizer.trained_parameters:
            optimizer.torch_optimizer.state[parameter] = {
                key: torch.zeros_like(parameter) for key in ("exp_avg", "exp_avg_sq")
            }
        # Made in fp32 here, a model of a run is read tensor by tensor as it will be.
        allocations.peak_bytes = allocations.bytes
        loss = loss_of(case, model)
        window = [_batch_of(case, case.rows) for _ in range(case.accumulation)]
        held_out = _batch_of(case, case.eval_rows or case.rows)
        model.eval()
        with torch.no_grad(), mixed_precision.autocast():
            loss(held_out)
        model.train()

        def give_up(*_: Any, **__: Any) -> Tensor:
            optimizer.collect()
            optimizer.discard_step()
            return torch.zeros(())

        with patch.object(optimizer, "apply", give_up):
            for _ in range(_STEPS):
                take_step(lambda: window, loss, optimizer, mixed_precision, Clock(CPU), lr=1e-4, max_grad_norm=1.0)
        return allocations.peak_bytes


class _Dropout(torch.autograd.Function):
    """On a card a mask of one byte is kept, on a CPU one as wide as the numbers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(torch.empty_like(x, dtype=torch.bool))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return torch.empty_like(gradient)


def _dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    return _Dropout.apply(x) if training and p else x


def _batch_of(case: Case, rows: int) -> MicroBatch:
    """With the mask that transformers makes of the positions of packed documents, which are numbers."""
    batch = batch_of(case, rows)
    if case.packed:
        batch.inputs["attention_mask"] = torch.ones(rows, 1, case.row_tokens, case.row_tokens, dtype=torch.bool)
    return batch
