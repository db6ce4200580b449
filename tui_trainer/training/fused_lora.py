"""A LoRA layer as one autograd function: the same sums in fewer passes over memory than layer by layer.

For `y = base(x) + s (x A^T) B^T` (LoRA, arXiv:2106.09685) peft multiplies and adds tensors as large as y, and its
backward pass two as large as x. Here s is a factor of the matmul that adds to y, and both parts of dx go into one
tensor. With `h = x A^T` and `dh = s dy B` the gradients are `dx = dy W + dh A`, `dA = dh^T x` and `dB = s dy^T h`.

The modules stay peft's: what is saved, merged and loaded is as before.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_PROBED_ROWS = 16
# TF32 has a mantissa of 10 bits.
_TF32_ROUNDING = 2.0**-10


class _LoraLinear(torch.autograd.Function):
    """`x` [..., in], `weight` of the base layer [out, in] or in 4 bits, A [r, in], B [out, r], to y [..., out]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Any, a: Tensor, b: Tensor, scaling: float) -> Tensor:
        base = layer.base_layer
        # Cast once, for the layer and its adapter.
        device = x.device.type
        narrow = x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
        y: Tensor = base(narrow)
        rows, narrow_a, narrow_b = narrow.reshape(-1, x.shape[-1]), a.to(y.dtype), b.to(y.dtype)
        h = rows @ narrow_a.t()
        y.view(-1, y.shape[-1]).addmm_(h, narrow_b.t(), alpha=scaling)
        ctx.save_for_backward(rows, h, a, b)
        # Not its weight: where layers are computed again, what was saved is another tensor, without its scales.
        ctx.base, ctx.scaling, ctx.shape, ctx.dtype = base, scaling, x.shape, x.dtype
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        rows, h, a, b = ctx.saved_tensors
        dy = dy.reshape(-1, dy.shape[-1])
        dh = (dy @ b.to(dy.dtype)).mul_(ctx.scaling)
        dx = None
        if ctx.needs_input_grad[0]:
            dx = dy @ _unpacked(ctx.base.weight, dy.dtype)
            dx = dx.addmm_(dh, a.to(dy.dtype)).to(ctx.dtype).view(ctx.shape)
        da = (dh.t() @ rows).to(a.dtype)
        db = (dy.t() @ h).mul_(ctx.scaling).to(b.dtype)
        return dx, None, da, db, None


def _unpacked(weight: Tensor, dtype: torch.dtype) -> Tensor:
    if (state := getattr(weight, "quant_state", None)) is None:
        return weight.to(dtype)
    from bitsandbytes.functional import dequantize_4bit

    unpacked: Tensor = dequantize_4bit(weight.data, state)
    return unpacked.to(dtype)


def switch_on(model: Any) -> int:
    """Each LoRA layer that can be computed so is from now on; their number. With dropout, DoRA or several adapters a
    layer computes more than this function, and stays as it is."""
    layers = [layer for layer in model.modules() if _suits(layer)]
    for layer in layers:
        layer.forward = partial(_forward, layer)
    return len(layers)


def difference(model: Any, autocast: Callable[[], AbstractContextManager[Any]]) -> str:
    """What such a layer does not compute as peft does, one of each kind asked, by a few random rows, and how far it is
    off; empty: nothing. Raises what a kernel raises."""
    layers = [layer for layer in model.modules() if _is_on(layer)]
    for layer in {_kind(layer): layer for layer in layers}.values():
        (a, b), weight = _factors(layer), layer.base_layer.weight
        dtype = a.dtype if weight.dtype == torch.uint8 else weight.dtype
        # Not the run's own generator, whose numbers would be others afterwards.
        drawn = torch.Generator().manual_seed(0)
        x = torch.randn(_PROBED_ROWS, a.shape[1], generator=drawn).to(a.device, dtype).requires_grad_()
        kept = b.detach().clone()
        # New adapters are zeros there, which would hide everything else.
        b.data.copy_(torch.randn(b.shape, generator=drawn) / b.shape[1] ** 0.5)
        try:
            with autocast():
                one, other = type(layer).forward(layer, x), layer.forward(x)
            dy = torch.randn(one.shape, generator=drawn).to(one.device, one.dtype)
            apart, fused = ((y.detach(), *torch.autograd.grad(y, (x, a, b), dy)) for y in (one, other))
        finally:
            b.data.copy_(kept)
        rounding = _TF32_ROUNDING if one.dtype == torch.float32 else torch.finfo(one.dtype).eps
        for what, expected, found in zip(("results", "dx", "dA", "dB"), apart, fused, strict=True):
            far = float((found.double() - expected.double()).norm() / expected.double().norm())
            if not far <= 4 * rounding:
                return f"{what} of {_kind(layer)} differ by {far:.1%}"
    return ""


def switch_off(model: Any) -> None:
    """All layers compute as peft has it."""
    for layer in model.modules():
        if _is_on(layer):
            del layer.forward


def _is_on(layer: Any) -> bool:
    return getattr(vars(layer).get("forward"), "func", None) is _forward


def _kind(layer: Any) -> str:
    a, b = _factors(layer)
    return f"{type(layer).__name__} ({a.shape[1]} to {b.shape[0]}, {layer.base_layer.weight.dtype})"


def _factors(layer: Any) -> tuple[nn.Parameter, nn.Parameter]:
    (name,) = layer.lora_A
    return layer.lora_A[name].weight, layer.lora_B[name].weight


def _suits(layer: Any) -> bool:
    from peft.tuners.lora import Linear, LoraLayer

    if not isinstance(layer, LoraLayer) or "forward" in vars(layer) or len(layer.lora_A) != 1:
        return False
    kind: Any = type(layer)
    base, (name,) = layer.base_layer, layer.lora_A
    if (kind.__module__, kind.__name__) != ("peft.tuners.lora.bnb", "Linear4bit"):
        is_plain = kind.forward is Linear.forward and type(base).forward is nn.Linear.forward
        if not is_plain or getattr(layer, "fan_in_fan_out", False):
            return False
    drops = not isinstance(layer.lora_dropout[name], nn.Identity)
    return not (drops or layer.lora_variant.get(name) or layer.lora_B[name].bias is not None)


def _forward(layer: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    a, b = _factors(layer)
    autocast, dtype = torch.is_autocast_enabled(x.device.type), torch.get_autocast_dtype(x.device.type)
    # The numbers that the layer and the adapter compute in.
    of_layer = getattr(layer.base_layer, "compute_dtype", None) or (dtype if autocast else x.dtype)
    of_adapter = dtype if autocast else a.dtype
    if args or kwargs or layer.disable_adapters or layer.merged or of_layer != of_adapter:
        found: Tensor = type(layer).forward(layer, x, *args, **kwargs)
        return found
    together: Tensor = _LoraLinear.apply(x, layer, a, b, next(iter(layer.scaling.values())))
    return together
