"""The interface of strategies for training one model in several processes, and functions for sharded tensors.

`Collectives` itself is the strategy of one process, and each other strategy overrides what it does differently.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tui_trainer.losses.named_losses import LossSum
from tui_trainer.training.clock import Communication
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.tuning.full import Method, SplitTensor

# Conversions from and to sharded tensors (`DTensor`), each process holding its part. All must call them together.

Box = tuple[slice, ...]
"""A rectangular part of a tensor, as one slice for each dimension."""


def gather_tensor(tensor: Tensor | SplitTensor) -> Tensor:
    """Return the whole tensor in every process. A tensor that is not sharded is returned unchanged."""
    if isinstance(tensor, SplitTensor):
        return tensor.gather()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(tensor: Tensor | SplitTensor, value: Tensor) -> None:
    """Copy `value`, which is whole in every process, into a whole or sharded tensor."""
    if not isinstance(tensor, SplitTensor):
        tensor.copy_(place_like(value, tensor))
    elif tensor.fill:
        tensor.fill(value)


def place_like(value: Tensor, like: Tensor) -> Tensor:
    """Return `value`, which is whole in every process, with the sharding and device of `like`.

    If `value` is already sharded, it is returned unchanged.
    """
    if isinstance(value, DTensor):
        return value
    if not isinstance(like, DTensor):
        return value.to(like.device)
    placed_tensor = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    local_part = placed_tensor.to_local()
    if local_part.device == like.to_local().device:
        return placed_tensor
    # `distribute_tensor` uses the devices of the mesh, but parts may be on the host.
    host_tensor: DTensor = torch.empty_like(like, dtype=value.dtype)  # type: ignore[assignment]
    host_tensor.to_local().copy_(local_part)
    return host_tensor


def is_in_boxes(tensor: Tensor | SplitTensor) -> TypeGuard[DTensor]:
    """Return whether a tensor is sharded so that each process has one box. If it is split twice along one dimension, a
    process has several boxes (`_StridedShard`)."""
    return (
        isinstance(tensor, DTensor)
        and tensor.numel() > 0
        and all(isinstance(placement, Replicate) or type(placement) is Shard for placement in tensor.placements)
    )


def box_of(tensor: DTensor) -> Box:
    """Return the box of this process, possibly empty, in a tensor for which `is_in_boxes` is true."""
    # torch.distributed.checkpoint calls the same method.
    [chunk] = tensor.__create_chunk_list__()
    return tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))


def writes_part(tensor: DTensor, name: str) -> bool:
    """Return whether this process writes its part of a tensor. If several processes have equal parts, only one does."""
    device_mesh, copy_index, copy_count = tensor.device_mesh, 0, 1
    for dimension, placement in enumerate(tensor.placements):
        if isinstance(placement, Replicate):
            copy_index = copy_index * device_mesh.size(dimension) + device_mesh.get_local_rank(dimension)
            copy_count *= device_mesh.size(dimension)
    return tensor.to_local().numel() > 0 and crc32(name.encode()) % copy_count == copy_index


def gather_model(model: nn.Module, gather_whole: Callable[[nn.Parameter], Tensor], *, keep: bool) -> None:
    """Gather sharded weights after training. With `keep` the model gets whole weights on the host, else empty ones."""
    replacements: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in replacements:
                gathered_weight = gather_whole(parameter)
                replacements[id(parameter)] = nn.Parameter(
                    gathered_weight.cpu() if keep else torch.empty(0), requires_grad=parameter.requires_grad
                )
            module._parameters[name] = replacements[id(parameter)]


class Collectives:
    forward: LossSum | None = None
    """Module that computes a forward pass and its loss; None if the loss is called without such a module."""
    communication: Communication | None = None
    splits_weights = False
    """Whether weights are sharded. All processes must then take part in every forward pass."""
    splits_state = False
    """Whether the tensors of a checkpoint are sharded, so that all processes write it."""
    needs_equal_passes = False
    """Whether all processes must make the same number of passes in a step."""
    averages_gradients = False
    """Whether gradients are averaged over processes. The loss is then multiplied by the number of processes."""

    def gradient_context(self, is_last: bool) -> AbstractContextManager[object]:
        """Return the context for the forward and backward pass of a micro-batch, which may be the last of the step."""
        return nullcontext()

    def backward(self, loss: Tensor, mixed_precision: MixedPrecision) -> None:
        mixed_precision.backward(loss)

    def finish(self) -> None:
        """Sum those gradients over the processes that the backward passes of a step have not summed."""

    def evaluation_context(self) -> AbstractContextManager[object]:
        """Return the context for forward passes without a backward pass, such as evaluations."""
        return torch.inference_mode()

    def no_gradient_context(self) -> AbstractContextManager[object]:
        """Return the context for forward passes without gradients in the middle of a training step."""
        return self.evaluation_context() if self.splits_weights else torch.no_grad()

    def weights(self, method: Method, model: Any) -> dict[str, Tensor | SplitTensor]:
        """Return the tensors of the model that a checkpoint contains, keyed by name."""
        return method.checkpoint_tensors(model)

    def update_copies(self) -> None:
        """Update other copies of the weights. Called after a checkpoint was loaded into the model."""

    def whole(self, parameter: nn.Parameter) -> Tensor:
        """Return the whole parameter in every process."""
        return gather_tensor(parameter.detach())

    def close(self) -> None:
        """Free communication resources."""
