"""torchao's optimizers for a simulated card: states of the same parts, shapes and dtypes, in operations of torch.

The library's own step is compiled, and its states are tensors that dispatch themselves, neither of which a simulated
card can do. Numbers in 4 and 8 bits are even steps here. There states are quantised from 4,096 numbers on; here from
fewer, which tiny models have. Source: torchao 0.18, `adam.py`, `subclass_8bit.py` and `subclass_4bit.py` of `optim/`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests.simulated_card.module_stand_ins import imported_as, modules_named

VERSION = "0.18.0"
_QUANTISED_FROM = 256


class OptimState(Tensor):
    """Codes, a scale for each block, and the table of numbers that the codes stand for."""

    @staticmethod
    def __new__(cls, codes: Tensor, scale: Tensor, qmap: Tensor, shape: Any) -> Any:
        return Tensor._make_wrapper_subclass(cls, shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes: Tensor, scale: Tensor, qmap: Tensor, shape: Any) -> None:
        self.codes, self.scale, self.qmap = codes, scale, qmap

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["codes", "scale", "qmap"], self.shape

    @staticmethod
    def __tensor_unflatten__(parts: Any, shape: Any, *_: Any) -> OptimState:
        return OptimState(parts["codes"], parts["scale"], parts["qmap"], shape)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"{func}: only its parts are read and written")


class _AdamW(torch.optim.Optimizer):
    bits, block_size = 8, 256

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            group["lr"] = torch.tensor(float(lr))

    def _new_buffer(self, p: Tensor, signed: bool) -> Tensor:
        count = p.numel()
        if count < _QUANTISED_FROM or count % self.block_size:
            return torch.zeros_like(p)
        shape = p.shape if self.bits == 8 else (count // 2,)
        codes = torch.zeros(shape, dtype=torch.uint8, device=p.device)
        scale = torch.zeros(count // self.block_size, device=p.device)
        table = torch.linspace(-1.0 if signed else 0.0, 1, 2**self.bits).to(p.device)
        return OptimState(codes, scale, table, p.shape)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            assert isinstance(group["lr"], Tensor), "lr was changed to a non-Tensor object"
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = torch.tensor(0.0)
                    state["exp_avg"], state["exp_avg_sq"] = self._new_buffer(p, True), self._new_buffer(p, False)
                state["step"] += 1
                self._update(group, p, state)

    def _update(self, group: Any, p: Tensor, state: Any) -> None:
        assert p.dtype == torch.float32, "what is trained is fp32"
        lr, count = float(group["lr"]), float(state["step"])
        moments = []
        for key, beta, value in zip(("exp_avg", "exp_avg_sq"), group["betas"], (p.grad, p.grad.square()), strict=True):
            moment = self._numbers(state[key], p).lerp(value, 1 - beta)
            self._keep(state[key], moment)
            moments.append(moment / (1 - beta**count))
        p.mul_(1 - lr * group["weight_decay"]).sub_(lr * moments[0] / (moments[1].sqrt() + group["eps"]))

    def _numbers(self, kept: Tensor, p: Tensor) -> Tensor:
        if not isinstance(kept, OptimState):
            return kept
        codes = kept.codes.flatten()
        if self.bits == 4:
            codes = torch.stack([codes >> 4, codes & 15], dim=-1).flatten()
        return (kept.qmap[codes.int()].view(len(kept.scale), -1) * kept.scale[:, None]).view(p.shape)

    def _keep(self, kept: Tensor, moment: Tensor) -> None:
        if not isinstance(kept, OptimState):
            kept.copy_(moment)
            return
        blocks = moment.reshape(len(kept.scale), -1)
        scale = blocks.abs().amax(1).clamp(min=1e-12)
        top = 2**self.bits - 1
        low = kept.qmap[:1]
        codes = ((blocks / scale[:, None] - low) / (1 - low) * top).round().clamp(0, top).to(torch.uint8).flatten()
        if self.bits == 4:
            codes = codes[::2] * 16 + codes[1::2]
        kept.codes.copy_(codes.view(kept.codes.shape))
        kept.scale.copy_(scale)


@contextmanager
def torchao_stand_in() -> Iterator[None]:
    """`import torchao.optim` finds this one."""
    modules = modules_named("torchao", "torchao.optim")
    optim = modules["torchao"].optim = modules["torchao.optim"]
    optim.AdamW8bit = type("AdamW8bit", (_AdamW,), {})
    optim.AdamW4bit = type("AdamW4bit", (_AdamW,), {"bits": 4, "block_size": 128})
    # peft asks for layers of torchao's.
    no_layers = patch("peft.tuners.lora.torchao.is_torchao_available", lambda: False)
    with imported_as(modules), no_layers:
        yield
