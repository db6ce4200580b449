"""How the processes of a run train one model together: what a step, a checkpoint and a reading pass ask of it.

As it is here, one process trains all of it; each strategy says what it does otherwise.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeGuard
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from tui_trainer.losses.several_parts import LossSum
from tui_trainer.training.clock import Communication
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.tuning.full import InParts, Method

# Tensors of which each process has a part (`DTensor`): which part that is, and the way to whole ones and back, which
# all processes go together.

Box = tuple[slice, ...]
"""A part of a tensor: from where to where along each dimension."""


def whole(tensor: Tensor | InParts) -> Tensor:
    """All of a tensor in every process; one that is not sharded as it is."""
    if isinstance(tensor, InParts):
        return tensor.gather()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def fill(tensor: Tensor | InParts, value: Tensor) -> None:
    """With a whole tensor, which every process has."""
    if not isinstance(tensor, InParts):
        tensor.copy_(placed_as(value, tensor))
    elif tensor.fill:
        tensor.fill(value)


def placed_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, as `like` lies in them; one that lies so already as it is."""
    if isinstance(value, DTensor):
        return value
    if not isinstance(like, DTensor):
        return value.to(like.device)
    placed = distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None)
    part = placed.to_local()
    if part.device == like.to_local().device:
        return placed
    # What is distributed lies on the cards of the mesh; parts may be on the host.
    on_host: DTensor = torch.empty_like(like, dtype=value.dtype)  # type: ignore[assignment]
    on_host.to_local().copy_(part)
    return on_host


def is_in_boxes(tensor: Tensor | InParts) -> TypeGuard[DTensor]:
    """Whether each process has one box of it. Where it was split twice along one dimension it has several
    (`_StridedShard`)."""
    return (
        isinstance(tensor, DTensor)
        and tensor.numel() > 0
        and all(isinstance(placed, Replicate) or type(placed) is Shard for placed in tensor.placements)
    )


def box_of(tensor: DTensor) -> Box:
    """What this process has of one that `is_in_boxes`; it may be empty."""
    # What torch.distributed.checkpoint asks a tensor.
    [chunk] = tensor.__create_chunk_list__()
    return tuple(slice(start, start + size) for start, size in zip(chunk.offsets, chunk.sizes, strict=True))


def writes_part(tensor: DTensor, name: str) -> bool:
    """Whether this process writes its part: it has one, and of those with the same it is the one for this name."""
    mesh, copy, copies = tensor.device_mesh, 0, 1
    for along, placed in enumerate(tensor.placements):
        if isinstance(placed, Replicate):
            copy = copy * mesh.size(along) + mesh.get_local_rank(along)
            copies *= mesh.size(along)
    return tensor.to_local().numel() > 0 and crc32(name.encode()) % copies == copy


def gather_model(model: nn.Module, in_whole: Callable[[nn.Parameter], Tensor], *, keep: bool) -> None:
    """Make all its weights whole, on the host, where `keep`; others let them go. It does not compute any more."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in made:
                found = in_whole(parameter)
                made[id(parameter)] = nn.Parameter(
                    found.cpu() if keep else torch.empty(0), requires_grad=parameter.requires_grad
                )
            module._parameters[name] = made[id(parameter)]


class Together:
    forward: LossSum | None = None
    """A forward pass with its loss, where the loss is not computed by itself."""
    communication: Communication | None = None
    splits_weights = False
    """Whether each process has a part of the model: then all of them compute what one of them needs."""
    splits_state = False
    """Whether each process has a part of what a checkpoint has."""
    passes_together = False
    """Whether all processes take part in every pass, and so make as many of them."""
    takes_mean = False
    """Whether the mean of the gradients is taken over the processes, where their sum is meant."""

    def summing(self, is_last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch."""
        return nullcontext()

    def backward(self, loss: Tensor, mixed_precision: MixedPrecision) -> None:
        mixed_precision.backward(loss)

    def finish(self) -> None:
        """After the backward passes of a step: what of the gradients is not summed yet."""

    def reading(self) -> AbstractContextManager[object]:
        """Around forward passes that nothing is learnt from."""
        return torch.inference_mode()

    def looking(self) -> AbstractContextManager[object]:
        """The same where training goes on from there: what a model keeps of a pass in inference mode is of no use
        to it."""
        return self.reading() if self.splits_weights else torch.no_grad()

    def weights(self, method: Method, model: Any) -> dict[str, Tensor | InParts]:
        """What a checkpoint has of the model, by name."""
        return method.saved(model)

    def weights_were_loaded(self) -> None:
        """Into the model, from a checkpoint."""

    def whole(self, parameter: nn.Parameter) -> Tensor:
        """All of it, in every process."""
        return whole(parameter.detach())

    def close(self) -> None:
        """Let go of what holds processes together."""
