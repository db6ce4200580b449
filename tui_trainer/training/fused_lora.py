"""Compute a LoRA layer as one autograd function, which reads and writes memory less often than peft's separate layers.

For `y = base(x) + s (x A^T) B^T` (LoRA, arXiv:2106.09685) peft multiplies and adds tensors as large as y, and its
backward pass adds two tensors as large as x. Here the matmul that adds to y also multiplies by s, and both parts of dx
go into one tensor. With `h = x A^T` and `dh = s dy B`: `dx = dy W + dh A`, `dA = dh^T x`, `dB = s dy^T h`.

The modules remain peft's, so saving, merging and loading do not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from tui_trainer.training.precision import MixedPrecision

_PROBED_ROWS = 16
# TF32 has a mantissa of 10 bits.
_TF32_ROUNDING = 2.0**-10
# Attribute of a layer with its copies of A and s B while they may be used. A list is not saved with the parameters.
_COPIES = "tui_trainer_adapter_copies"


class _LoraLinear(torch.autograd.Function):
    """Autograd function of one LoRA layer, from x [..., in] to y [..., out].

    The weight of the base layer is [out, in] or quantized to 4 bits. A is [r, in] and B is [out, r].
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, dtype: torch.dtype, base: Any, a: Tensor, b: Tensor, scaling: float, copies: Any
    ) -> Tensor:
        # x is cast once, for both the base layer and its adapter.
        narrow = x.to(dtype)
        y: Tensor = base(narrow)
        if copies and copies[0].dtype == y.dtype:
            # The copy of B is already multiplied by the scale.
            (narrow_a, narrow_b), ctx.scale = copies, 1.0
        else:
            narrow_a, narrow_b, ctx.scale = a.to(y.dtype), b.to(y.dtype), scaling
        rows = narrow.reshape(-1, x.shape[-1])
        h = functional.linear(rows, narrow_a)
        y.view(-1, y.shape[-1]).addmm_(h, narrow_b.t(), alpha=ctx.scale)
        ctx.save_for_backward(rows, h, narrow_a, narrow_b)
        # Not the weight: if layers are recomputed, a saved 4-bit weight comes back as a tensor without its scales.
        ctx.base, ctx.scaling, ctx.shape, ctx.dtypes = base, scaling, x.shape, (x.dtype, a.dtype, b.dtype)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, h, a, b = ctx.saved_tensors
        dy = dy.reshape(-1, dy.shape[-1])
        dh = _scaled(torch.mm(dy, b), ctx.scale)
        dx = None
        dtype_x, dtype_a, dtype_b = ctx.dtypes
        if ctx.needs_input_grad[0]:
            dx = torch.mm(dy, _unpacked(ctx.base.weight, dy.dtype))
            dx = dx.addmm_(dh, a).to(dtype_x).view(ctx.shape)
        da, db = _gradient(dh, rows, 1.0, a, dtype_a), _gradient(dy, h, ctx.scaling, b, dtype_b)
        return dx, None, None, da, db, None, None


def _scaled(x: Tensor, factor: float) -> Tensor:
    return x if factor == 1.0 else x.mul_(factor)


def _gradient(dy: Tensor, x: Tensor, scale: float, factor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return `scale dy^T x`, the gradient of an adapter matrix, in `dtype`.

    On a GPU a matmul of 16-bit tensors can return its fp32 sums directly, without rounding and without a cast.
    """
    if has_wide_results(dy) and dy.dtype != dtype == torch.float32:
        # With beta = 0 the values of the factor are not read: torch 2.11 only takes the shape of the result from it.
        return torch.addmm(factor, dy.t(), x, out_dtype=dtype, beta=0, alpha=scale)
    return _scaled(torch.mm(dy.t(), x), scale).to(dtype)


def has_wide_results(tensor: Tensor) -> bool:
    """Return whether torch can multiply 16-bit tensors with an fp32 result on the device of `tensor`."""
    return tensor.is_cuda


def _unpacked(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if (state := getattr(weight, "quant_state", None)) is None:
        return weight.to(dtype)
    from bitsandbytes.functional import dequantize_4bit

    weight_values: Tensor = dequantize_4bit(weight.data, state)
    return weight_values.to(dtype)


class FusedAdapters:
    """LoRA layers of a model that are fused with their adapters; none before `switch_on`."""

    def __init__(self, model: Any, mixed_precision: MixedPrecision) -> None:
        self._model, self._mixed_precision = model, mixed_precision
        self.layers: list[Any] = []
        self._copies: _Copies | None = None

    def switch_on(self) -> int:
        """Fuse each LoRA layer that supports it, and return the number of fused layers.

        Layers with dropout, DoRA or several adapters are not fused, because they compute more than this function.
        """
        self.layers = [layer for layer in self._model.modules() if _can_be_fused(layer)]
        for layer in self.layers:
            # Looked up once, because small models wait for the host: hundreds of these layers are called in a step.
            (name,) = layer.lora_A
            layer.forward = partial(_forward, layer, layer.base_layer, layer.lora_A[name], layer.lora_B[name])
        return len(self.layers)

    def switch_off(self) -> None:
        """Let peft compute all layers again."""
        for layer in self.layers:
            del layer.forward
        self.layers = []

    @contextmanager
    def copies(self) -> Iterator[None]:
        """Return a context in which all passes use 16-bit copies of the adapters, which are cast once at its start.

        Weights may change only after the last pass in the context. Weights that FSDP2 shards have no copies, because
        FSDP2 already gathers them in 16 bits.
        """
        if not self.layers:
            yield
            return
        self._copies = self._copies or _Copies(self.layers, self._mixed_precision.dtype)
        with self._copies.filled():
            yield

    def describe_difference(self) -> str:
        """Compare fused layers, one of each kind, with peft's computation on a few random rows.

        Returns a phrase that says what differs and by how much, or an empty string. Raises any error of the kernels.
        """
        for layer in {_kind(layer): layer for layer in self.layers}.values():
            (a, b), weight = _factors(layer), layer.base_layer.weight
            dtype = layer.base_layer.compute_dtype if weight.dtype == torch.uint8 else weight.dtype
            # The run's own generator must not be used, because its later numbers would change.
            generator = torch.Generator().manual_seed(0)
            x = torch.randn(_PROBED_ROWS, a.shape[1], generator=generator).to(a.device, dtype).requires_grad_()
            old_b = b.detach().clone()
            # In new adapters B is zero, which would hide all differences.
            b.data.copy_(torch.randn(b.shape, generator=generator) / b.shape[1] ** 0.5)
            try:
                with self._mixed_precision.autocast(), _Copies([layer], self._mixed_precision.dtype).filled():
                    reference, actual = type(layer).forward(layer, x), layer.forward(x)
                dy = torch.randn(reference.shape, generator=generator).to(reference.device, reference.dtype)
                results = [(y.detach(), *torch.autograd.grad(y, (x, a, b), dy)) for y in (reference, actual)]
            finally:
                b.data.copy_(old_b)
            precision = self._mixed_precision
            rounding = torch.finfo(precision.dtype).eps if precision.is_coarse else _TF32_ROUNDING
            for name, ours, theirs in zip(("results", "dx", "dA", "dB"), results[1], results[0], strict=True):
                distance = float((ours.double() - theirs.double()).norm() / theirs.double().norm())
                if not distance <= 4 * rounding:
                    return f"{name} of {_kind(layer)} differ from peft's by {distance:.1%}"
        return ""


class _Copies:
    """Copies of A and of s B in `dtype`, for layers whose adapters have another dtype. They are allocated once."""

    def __init__(self, layers: list[Any], dtype: torch.dtype) -> None:
        factors = [(layer, _factors(layer)) for layer in layers]
        factors = [(layer, pair) for layer, pair in factors if not any(isinstance(x, DTensor) for x in pair)]
        self._layers = [(layer, pair) for layer, pair in factors if not any(x.dtype == dtype for x in pair)]
        self._a: list[Tensor] = [a for _, (a, _) in self._layers]
        self._b: list[Tensor] = [b for _, (_, b) in self._layers]
        # An evaluation may be the first to need the copies, and training cannot use tensors made in inference mode.
        with torch.inference_mode(False), torch.no_grad():
            self._narrow_a = [torch.empty_like(a, dtype=dtype) for a in self._a]
            self._narrow_b = [torch.empty_like(b, dtype=dtype) for b in self._b]

    @contextmanager
    def filled(self) -> Iterator[None]:
        """Return a context in which the layers use the copies, filled with the current weights."""
        if self._layers:
            self._fill()
        for (layer, _), *pair in zip(self._layers, self._narrow_a, self._narrow_b, strict=True):
            vars(layer)[_COPIES] = pair
        try:
            yield
        finally:
            for layer, _ in self._layers:
                del vars(layer)[_COPIES]

    @torch.no_grad()
    def _fill(self) -> None:
        """Cast all adapter matrices with a few kernels, instead of one kernel for each matrix."""
        scaled_b = torch._foreach_mul(tuple(self._b), [_scaling(layer) for layer, _ in self._layers])
        torch._foreach_copy_([*self._narrow_a, *self._narrow_b], [*self._a, *scaled_b])


def _scaling(layer: Any) -> float:
    (scaling,) = layer.scaling.values()
    return float(scaling)


def _kind(layer: Any) -> str:
    a, b = _factors(layer)
    return f"{type(layer).__name__} ({a.shape[1]} to {b.shape[0]}, {layer.base_layer.weight.dtype})"


def _factors(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    (name,) = layer.lora_A
    return layer.lora_A[name].weight, layer.lora_B[name].weight


def _can_be_fused(layer: Any) -> bool:
    from peft.tuners.lora import Linear, LoraLayer

    if not isinstance(layer, LoraLayer) or "forward" in vars(layer) or len(layer.lora_A) != 1:
        return False
    layer_class: Any = type(layer)
    base_layer, (name,) = layer.base_layer, layer.lora_A
    if (layer_class.__module__, layer_class.__name__) != ("peft.tuners.lora.bnb", "Linear4bit"):
        is_plain = layer_class.forward is Linear.forward and type(base_layer).forward is nn.Linear.forward
        if not is_plain or getattr(layer, "fan_in_fan_out", False):
            return False
    has_dropout = not isinstance(layer.lora_dropout[name], nn.Identity)
    return not (has_dropout or layer.lora_variant.get(name) or layer.lora_B[name].bias is not None)


def _forward(layer: Any, base: Any, lora_a: nn.Linear, lora_b: nn.Linear, x: Tensor, *args: Any, **more: Any) -> Tensor:
    a, b, attributes, device = lora_a.weight, lora_b.weight, vars(layer), x.device.type
    autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    # The dtype in which the layer and the adapter compute.
    layer_dtype, adapter_dtype = vars(base).get("compute_dtype") or autocast or x.dtype, autocast or a.dtype
    if args or more or layer.disable_adapters or layer.merged or layer_dtype != adapter_dtype:
        separate_output: Tensor = type(layer).forward(layer, x, *args, **more)
        return separate_output
    output: Tensor = _LoraLinear.apply(x, autocast or x.dtype, base, a, b, _scaling(layer), attributes.get(_COPIES))
    return output
