"""Layers split by width: each process computes a part of every layer, for the same rows (tensor parallel).

Which matrices are split, and along which side, says the model itself (transformers' `base_model_tp_plan`); a split
weight is a `DTensor` (`training/sharded_tensors.py`). What is whole (norms) has the same gradient in all processes.
"""

from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tui_trainer.training.communication import Communication, in_one
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.ranks import Ranks
from tui_trainer.training.together import Together

# Of heads that are split: each process has the gradient of its own heads only.
_SUMMED = "replicated_with_grad_allreduce"


class TensorParallel(Together):
    """The model split over `ranks`. Passes are made as with a whole one, by all of them together."""

    splits_weights = splits_state = True

    def __init__(self, ranks: Ranks, device: torch.device, model: Any, communication: Communication) -> None:
        """`model` is whole, on the host; afterwards the part of this process is on the device."""
        from torch.distributed.device_mesh import init_device_mesh

        self.communication: Communication = communication
        self._summed = _split(model, init_device_mesh(device.type, (ranks.count,)))
        for parameter in model.parameters():
            if not isinstance(parameter, DTensor):
                parameter.data = parameter.data.to(device)
        for buffer in model.buffers():
            buffer.data = buffer.data.to(device)
        self._whole: list[tuple[nn.Parameter, bool]] = []
        self._split: list[nn.Parameter] = []

    def follow(self, optimizer: RunOptimizer) -> None:
        """What is trained, with the copies in fp32 that it may have."""
        for name, parameter in optimizer.trained_by_name.items():
            if isinstance(parameter, DTensor):
                self._split.append(parameter)
            else:
                self._whole.append((parameter, name in self._summed))

    def finish(self) -> None:
        """The same gradients of whole weights in all, to the bit."""
        for parameter in self._split:
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:  # type: ignore[attr-defined]
                parameter.grad = gradient.redistribute(placements=parameter.placements)  # type: ignore[attr-defined]
        # Kernels that sum in any order would let the rest drift apart.
        for is_summed, send in ((True, dist.all_reduce), (False, partial(dist.broadcast, src=0))):
            found = [p.grad for p, summed in self._whole if summed is is_summed and p.grad is not None]
            with self.communication.timed():
                in_one(found, send)

    def reading(self) -> AbstractContextManager[object]:
        """Not in inference mode: what is made of parts there could not be used for training."""
        return torch.no_grad()


def _split(model: Any, mesh: Any) -> frozenset[str]:
    """Put parts in the place of the weights that the model's plan names; the names of those whose gradients are to be
    summed."""
    # It registers the styles.
    import transformers.distributed.tensor_parallel  # noqa: F401
    from transformers.distributed.parallel_utils import ALL_PARALLEL_STYLES

    made: dict[int, nn.Parameter] = {}
    summed: list[str] = []
    for module_name, module in model.named_modules():
        # `model.layers.3.mlp.up_proj` is `model.layers.*.mlp.up_proj` in a plan.
        style_name = model.tp_plan.get(".".join("*" if word.isdigit() else word for word in module_name.split(".")))
        if style_name is None:
            continue
        if style_name == _SUMMED:
            summed += [f"{module_name}.{name}" for name, _ in module.named_parameters(recurse=False)]
            continue
        style = ALL_PARALLEL_STYLES[style_name]
        for name, parameter in list(module.named_parameters(recurse=False)):
            # Tied weights stay one: the table of words and the head are split alike.
            if id(parameter) not in made:
                style.shard_param(module, name, mesh)
                made[id(parameter)] = _in_own_memory(module._parameters[name])
            module._parameters[name] = made[id(parameter)]
        style.install_forward(module, mesh)
    return frozenset(summed)


def _in_own_memory(parameter: Any) -> nn.Parameter:
    """A part that is a view would keep the whole tensor."""
    local = parameter.to_local().detach().clone(memory_format=torch.contiguous_format)
    made = DTensor.from_local(
        local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
        stride=parameter.stride(),
    )  # fmt: skip
    return nn.Parameter(made, requires_grad=parameter.requires_grad)
