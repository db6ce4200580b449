"""Tensors of which each process has a part (`DTensor`): which part that is, and the way to whole ones and back, which
all processes go together.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeGuard
from zlib import crc32

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

Box = tuple[slice, ...]
"""A part of a tensor: from where to where along each dimension."""


@dataclass(frozen=True, slots=True)
class InParts:
    """A tensor that DeepSpeed has in parts, by what is asked of it before it is gathered."""

    shape: torch.Size
    dtype: torch.dtype
    gather: Callable[[], Tensor]
    """The whole, in every process."""
    fill: Callable[[Tensor], None] | None = None
    """With a whole that every process has."""

    @property
    def nbytes(self) -> int:
        return self.shape.numel() * self.dtype.itemsize


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
