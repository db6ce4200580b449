"""Tensors of which each process has a part (`DTensor`), and the way to whole ones and back. All processes call these
together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


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
    """A whole tensor, which every process has, as `like` lies in them."""
    if not isinstance(like, DTensor):
        return value.to(like.device)
    on_device = value.to(like.to_local().device)
    return distribute_tensor(on_device, like.device_mesh, like.placements, src_data_rank=None)


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
