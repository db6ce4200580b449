"""Initialize adapters with a part of frozen weights, and subtract it from these: the largest singular values (PiSSA,
arXiv:2404.02948) or the first columns of a QR decomposition (OLoRA, arXiv:2406.01775). peft computes both.

The changed weights are not saved. Instead the saved adapter is the difference to the initial values A0 and B0, which
fits the original weights: `W - s B0 A0 + s B A` is `W + s [B, -B0] [A; A0]`, a LoRA of twice the rank. Source:
`subtract_mutated_init` of peft, which drops modules that are saved as a whole.

A resumed run does not decompose weights: A0 and B0 are in its checkpoint, and are subtracted by the same matmul.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from tui_trainer.errors import CheckpointError
from tui_trainer.tuning.full import SplitTensor

if TYPE_CHECKING:
    from torch import Tensor

_ADAPTER = "default"
_Factor = Literal["lora_A", "lora_B"]
# The dimension of A and of B that has the size r.
_RANK_DIMENSION: dict[_Factor, int] = {"lora_A": 0, "lora_B": 1}


class InitialAdapters:
    """Initial adapters of a model: A0 [r, in] and B0 [out, r] of each layer, in fp32 on the host."""

    def __init__(self, adapted: Any) -> None:
        """Find the adapted layers. Their weights change later, in `decompose` or when a checkpoint is loaded."""
        from peft.tuners.lora import LoraLayer

        modules = dict(adapted.named_modules())
        self._layers: dict[str, Any] = {name: part for name, part in modules.items() if isinstance(part, LoraLayer)}
        self._initial_values: dict[str, dict[_Factor, Tensor]] = {name: {} for name in self._layers}

    def __len__(self) -> int:
        """Return the number of adapted layers."""
        return len(self._layers)

    def decompose(self, init: str, goes_on: Callable[[int], bool]) -> bool:
        """Initialize the adapter of each layer by the method `init`, and subtract it from the layer's weight.

        `goes_on` gets the number of finished layers, and returns False to stop. Returns whether all layers are done.
        """
        import torch

        for number, (name, layer) in enumerate(self._layers.items()):
            if not goes_on(number):
                return False
            base = layer.get_base_layer()
            weight, stored_weight = base.weight.data, base.weight.data.clone()
            if layer.fan_in_fan_out and init == "olora":
                # peft does not transpose such weights here (0.21).
                base.weight.data = weight.t().contiguous()
            with torch.no_grad():
                layer.olora_init(_ADAPTER) if init == "olora" else layer.pissa_init(_ADAPTER, init)
            base.weight.data = stored_weight
            for key in _RANK_DIMENSION:
                factor = self._factor(name, key)
                # A slice would keep the whole decomposition in memory.
                factor.data = factor.data.contiguous().clone()
                self._initial_values[name][key] = factor.detach().cpu().clone()
            self._subtract(name)
        return True

    def saved(self, weights: dict[str, Tensor]) -> dict[str, Tensor | SplitTensor]:
        """Return the adapter with twice the rank, under peft's names. Filling a tensor of it changes frozen weights."""
        import torch

        saved_tensors: dict[str, Tensor | SplitTensor] = dict(weights)
        for name in self._layers:
            for key, dimension in _RANK_DIMENSION.items():
                factor = self._factor(name, key)
                shape = torch.Size(size * (2 if i == dimension else 1) for i, size in enumerate(factor.shape))
                gather, fill = partial(self._gather, name, key), partial(self._fill, name, key)
                saved_tensors[f"{name}.{key}.weight"] = SplitTensor(shape, factor.dtype, gather, fill)
        return saved_tensors

    def _factor(self, name: str, key: _Factor) -> Any:
        return getattr(self._layers[name], key)[_ADAPTER].weight

    def _gather(self, name: str, key: _Factor) -> Tensor:
        import torch

        factor, initial = self._factor(name, key).detach(), self._initial_values[name][key]
        return torch.cat([factor, initial.to(factor.device) * (1 if key == "lora_A" else -1)], _RANK_DIMENSION[key])

    def _fill(self, name: str, key: _Factor, value: Tensor) -> None:
        factor, initial_factors = self._factor(name, key), self._initial_values[name]
        dimension = _RANK_DIMENSION[key]
        current_value, initial_value = value.chunk(2, dimension)
        factor.data.copy_(current_value)
        initial_value = initial_value.clone() if key == "lora_A" else -initial_value
        if key not in initial_factors:
            initial_factors[key] = initial_value
            if len(initial_factors) == len(_RANK_DIMENSION):
                self._subtract(name)
        elif not initial_factors[key].equal(initial_value):
            problem = "was initialised differently from the adapter in this checkpoint"
            raise CheckpointError(f"the adapter on {name} {problem}")

    def _subtract(self, name: str) -> None:
        """Subtract the initial adapter from the weight of a layer. New and resumed runs get exactly the same weight."""
        layer, initial_factors = self._layers[name], self._initial_values[name]
        weight = layer.get_base_layer().weight
        a, b = (initial_factors[key].to(weight.device) for key in _RANK_DIMENSION)
        product = layer.scaling[_ADAPTER] * b @ a
        weight.data = (weight.data.float() - (product.t() if layer.fan_in_fan_out else product)).to(weight.dtype)


def initial_adapters_of(model: Any) -> InitialAdapters | None:
    """Return the initial adapters that were subtracted from the frozen weights (PiSSA, OLoRA), or None."""
    adapters: InitialAdapters | None = getattr(model, "initial_adapters", None)
    return adapters


def saved_config(model: Any) -> Any:
    """Return peft's settings for the saved form of an adapter, whose rank may be twice as high."""
    config = model.peft_config[_ADAPTER]
    if initial_adapters_of(model) is None:
        return config
    config = copy.copy(config)
    config.lora_alpha = _plain(config.lora_alpha * (2**0.5 if config.use_rslora else 2))
    config.r *= 2
    config.inference_mode = True
    return config


def _plain(alpha: float) -> float:
    """Return the int 16 for 16.0, because tools that read adapter_config.json expect whole numbers."""
    return int(alpha) if float(alpha).is_integer() else alpha
