"""bitsandbytes for a simulated card: its layers, weights and optimizers with the same shapes, dtypes and places.

transformers packs, peft adapts and the product trains and saves through it as through the library, whose kernels are
CUDA's. Numbers are coarser than NF4's: 16 even steps for each block of 64. Source of what is kept, and of where the
host waits: bitsandbytes 0.50, `nn/modules.py` and `optim/optimizer.py`. There states are in 8 bits from 4,096 weights
and paged from 100,000 on; here from fewer, which tiny models have.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.simulated_card.card import CUDA, CardTensor, now, plain
from tests.simulated_card.module_stand_ins import imported_as, modules_named

VERSION = "0.50.2"
_BLOCK, _IN_8_BITS_FROM, _PAGED_FROM, _OPTIMIZER_BLOCK = 64, 256, 1024, 256


class Params4bit(CardTensor):
    """Packed weights [n / 2, 1] in uint8 on the card; before that, the weight as it is."""

    @staticmethod
    def __new__(cls, data: Tensor, requires_grad: bool = False, **kept: Any) -> Any:
        if isinstance(data, CardTensor):
            made: Any = Tensor._make_subclass(cls, plain(data), requires_grad, device_for_backend_keys=CUDA)
        else:
            made = nn.Parameter(data, requires_grad)
        vars(made).update({"quant_state": None, "blocksize": _BLOCK, "bnb_quantized": False, **kept}, _is_param=True)
        return made

    def to(self, *args: Any, **kwargs: Any) -> Any:
        device = torch._C._nn._parse_to(*args, **kwargs)[0]
        if self.bnb_quantized or device is None or device.type != "cuda":
            return super().to(*args, **kwargs)
        whole = self.detach().float().reshape(-1, _BLOCK)
        scales = whole.abs().amax(1, keepdim=True).clamp(min=1e-12)
        codes = ((whole / scales + 1) * 7.5).round().to(torch.uint8).flatten()
        packed = Params4bit((codes[::2] * 16 + codes[1::2]).unsqueeze(1), **{**vars(self), "bnb_quantized": True})
        packed.quant_state = SimpleNamespace(absmax=scales, shape=tuple(self.shape), dtype=self.dtype)
        return packed


def dequantize_4bit(packed: Tensor, state: Any) -> Tensor:
    codes = torch.stack([packed // 16, packed % 16], dim=-1).reshape(-1, _BLOCK)
    return ((codes.float() / 7.5 - 1) * state.absmax).reshape(state.shape).to(state.dtype)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        ctx.packed, ctx.state = packed, packed.quant_state
        return nn.functional.linear(x, dequantize_4bit(packed, ctx.state).to(x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient @ dequantize_4bit(ctx.packed, ctx.state).to(gradient.dtype), None, None


class Linear4bit(nn.Linear):
    def __init__(
        self, features: int, out_features: int, bias: bool = True, compute_dtype: Any = None,
        compress_statistics: bool = True, quant_type: str = "fp4", quant_storage: Any = torch.uint8, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(features, out_features, bias, device)
        kept = {"compress_statistics": compress_statistics, "quant_type": quant_type, "quant_storage": quant_storage}
        self.weight = Params4bit(self.weight.data, requires_grad=False, **kept)
        self.compute_dtype = compute_dtype

    def forward(self, x: Tensor) -> Tensor:
        given = x.dtype
        x = x.to(self.compute_dtype or given)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        with torch.autocast("cuda", enabled=False):
            return _Product.apply(x, self.weight, bias).to(given)


class Linear8bitLt(nn.Linear):
    """transformers and peft ask whether a layer is one."""


class _AdamW(torch.optim.Optimizer):
    bits, is_paged = 8, False

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._map: Tensor | None = None

    def init_state(self, group: Any, p: Tensor, group_index: int, index: int) -> None:
        in_8_bits = self.bits == 8 and p.numel() >= _IN_8_BITS_FROM
        dtype = torch.uint8 if in_8_bits else torch.float32
        state = self.state[p]
        state["step"] = 0
        for number in "12":
            state[f"state{number}"] = self._buffer(p, dtype)
            if in_8_bits:
                self._map = torch.linspace(0, 1, 256).to(p.device) if self._map is None else self._map
                # One table for all parameters.
                state[f"qmap{number}"] = self._map
                blocks = -(-p.numel() // _OPTIMIZER_BLOCK)
                state[f"absmax{number}"] = torch.zeros(blocks, dtype=torch.float32, device=p.device)

    def _buffer(self, p: Tensor, dtype: torch.dtype) -> Tensor:
        if not self.is_paged or p.numel() < _PAGED_FROM:
            return torch.zeros_like(p, dtype=dtype)
        # Managed memory, which torch takes for the host's.
        paged = torch.zeros(p.shape, dtype=dtype)
        paged.is_paged = True
        return paged

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group_index, group in enumerate(self.param_groups):
            for index, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                if not self.state[p]:
                    self.init_state(group, p, group_index, index)
                self._update(group, p, self.state[p])
                torch.cuda.synchronize()

    def _update(self, group: Any, p: Tensor, state: Any) -> None:
        """AdamW's step; moments in 8 bits are steps of 1/255 of their block's largest."""
        assert p.dtype == torch.float32, "what is trained is fp32"
        state["step"] += 1
        moments = [self._moment(p, state, number) for number in "12"]
        for moment, beta, value in zip(moments, group["betas"], (p.grad, p.grad.square()), strict=True):
            moment.lerp_(value, 1 - beta)
        first, second = (m / (1 - beta ** state["step"]) for m, beta in zip(moments, group["betas"], strict=True))
        p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(group["lr"] * first / (second.sqrt() + group["eps"]))
        for number, moment in zip("12", moments, strict=True):
            self._keep(p, state, number, moment)

    def _moment(self, p: Tensor, state: Any, number: str) -> Tensor:
        kept = state[f"state{number}"]
        # The card reads the host's memory by itself.
        kept = kept.clone() if isinstance(kept, CardTensor) else now().put(kept.clone())
        return self._blocks(kept, state[f"absmax{number}"], p) if kept.dtype == torch.uint8 else kept

    def _blocks(self, kept: Tensor, scales: Tensor, p: Tensor) -> Tensor:
        flat = kept.flatten().float() / 127.5 - 1
        each = scales.repeat_interleave(_OPTIMIZER_BLOCK, output_size=len(scales) * _OPTIMIZER_BLOCK)
        return (flat * each[: len(flat)]).view(p.shape)

    def _keep(self, p: Tensor, state: Any, number: str, moment: Tensor) -> None:
        kept = state[f"state{number}"]
        if kept.dtype == torch.uint8:
            scales = state[f"absmax{number}"]
            padded = nn.functional.pad(moment.flatten(), (0, len(scales) * _OPTIMIZER_BLOCK - moment.numel()))
            blocks = padded.view(-1, _OPTIMIZER_BLOCK)
            scales.copy_(blocks.abs().amax(1))
            codes = ((blocks / scales.clamp(min=1e-30)[:, None] + 1) * 127.5).round().to(torch.uint8)
            moment = codes.flatten()[: moment.numel()].view(p.shape)
        if isinstance(kept, CardTensor):
            kept.copy_(moment)
        else:
            # The card writes there by itself.
            kept.numpy()[...] = plain(moment).numpy()


def _optimizer(name: str, bits: int, is_paged: bool) -> type[_AdamW]:
    return type(name, (_AdamW,), {"bits": bits, "is_paged": is_paged})


def _modules() -> dict[str, ModuleType]:
    found = modules_named("bitsandbytes", "bitsandbytes.nn", "bitsandbytes.optim", "bitsandbytes.functional")
    top, layers, optim, functional = found.values()
    vars(layers).update(Params4bit=Params4bit, Linear4bit=Linear4bit, Linear8bitLt=Linear8bitLt)
    vars(optim).update(
        {name: _optimizer(name, bits, paged) for name, bits, paged in (
            ("AdamW8bit", 8, False), ("PagedAdamW8bit", 8, True), ("PagedAdamW32bit", 32, True),
        )}
    )  # fmt: skip
    functional.dequantize_4bit = dequantize_4bit
    vars(top).update(
        __version__=VERSION, nn=layers, optim=optim, functional=functional, supported_torch_devices={"cuda", "cpu"}
    )
    return found


@contextmanager
def bitsandbytes_stand_in() -> Iterator[None]:
    """`import bitsandbytes` finds this one, and so do transformers and peft."""
    modules = _modules()
    with ExitStack() as stack:
        enter = stack.enter_context
        # peft's is loaded anew, and finds these.
        enter(imported_as({**modules, "peft.tuners.lora.bnb": ModuleType("")}))
        del sys.modules["peft.tuners.lora.bnb"]
        yes = {"return_value": True}
        for name in ("utils.import_utils", "quantizers.quantizer_bnb_4bit", "integrations.bitsandbytes"):
            enter(patch(f"transformers.{name}.is_bitsandbytes_available", **yes))
        enter(patch("transformers.integrations.bitsandbytes.bnb", modules["bitsandbytes"], create=True))
        for name in ("import_utils", "tuners.lora.model"):
            enter(patch(f"peft.{name}.is_bnb_available", **yes))
            enter(patch(f"peft.{name}.is_bnb_4bit_available", **yes))
        yield
