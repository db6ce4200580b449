"""Tensors of which each process has a part (`DTensor`), and the way to whole ones and back. All processes call these
together.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor in every process; one that is not sharded as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def placed_as(value: Tensor, like: Tensor) -> Tensor:
    """A whole tensor, which every process has, as `like` lies in them."""
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


def gather_model(model: nn.Module, *, keep: bool) -> None:
    """Make all its weights whole, on the host, where `keep`; others let them go. It does not compute any more."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in made:
                found = whole(parameter.detach())
                made[id(parameter)] = nn.Parameter(
                    found.cpu() if keep else torch.empty(0), requires_grad=parameter.requires_grad
                )
            module._parameters[name] = made[id(parameter)]
