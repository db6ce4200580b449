"""liger-kernel for a simulated card, where triton does not run: its functions with the same names, for the same layers.

What it changes in a model and in the modules of transformers is what the library changes, and its kernels round where
that rounds: once, at the end. Source: liger-kernel 0.8.5, `transformers/monkey_patch.py`, `ops/rms_norm.py` (mode
`llama`), `ops/swiglu.py`, `ops/rope.py` and `ops/cross_entropy.py`. Patching a model by the library itself, and taking
that back, is tested where it is installed (`tests/training/test_liger.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from tests.simulated_card.module_stand_ins import imported_as, modules_named

VERSION = "0.8.5"
FAMILIES = ("llama", "qwen2")
calls = SimpleNamespace(norms_backward=0, losses=0, warps=0)


class RMSNormFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.eps = eps
        return norm(x, weight, eps)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None]:
        calls.norms_backward += 1
        # Once: with recomputed layers they are there for one reading.
        saved = ctx.saved_tensors
        with torch.enable_grad(), torch.autocast("cuda", enabled=False):
            x, weight = (t.detach().float().requires_grad_() for t in saved)
            found = torch.autograd.grad(_normed(x, weight, ctx.eps), (x, weight), gradient.float())
        return found[0].to(saved[0].dtype), found[1].to(saved[1].dtype), None


def _normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    with torch.autocast("cuda", enabled=False):
        return _normed(x.float(), weight.float(), eps).to(x.dtype)


def _norm_forward(self: Any, x: Tensor) -> Tensor:
    return RMSNormFunction.apply(x, self.weight, self.variance_epsilon)


def _mlp_forward(self: Any, x: Tensor) -> Tensor:
    gate, up = self.gate_proj(x), self.up_proj(x)
    return self.down_proj((nn.functional.silu(gate.float()) * up.float()).to(gate.dtype))


def rotary(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
    cos, sin = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
    return tuple((x.float() * cos + _half_turned(x.float()) * sin).to(x.dtype) for x in (q, k))


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


def apply_to_instance(model: Any, cross_entropy: bool, fused_linear_cross_entropy: bool) -> None:
    assert not cross_entropy and not fused_linear_cross_entropy, "the loss here is another"
    kind = model.config.model_type
    if kind not in FAMILIES:
        return
    names = sys.modules[f"transformers.models.{kind}.modeling_{kind}"]
    names.apply_rotary_pos_emb = rotary
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.in_place = True
            module.forward = MethodType(_norm_forward, module)
            module._get_name = MethodType(lambda self: "LigerRMSNorm", module)
        elif type(module).__name__.endswith("MLP"):
            module.forward = MethodType(_mlp_forward, module)


class CrossEntropyKernel:
    """`ops/cross_entropy.py`: called with a grid, as Triton's kernels are, and by name."""

    arg_names = (
        "X_ptr", "X_stride", "Y_ptr", "Y_stride", "weight_ptr", "loss_ptr", "z_loss_ptr", "loss_stride", "n_cols",
        "n_non_ignore", "sum_non_ignore_weight", "weight_sum", "ignore_index", "lse_square_scale", "label_smoothing",
        "reduction", "softcap", "RETURN_Z_LOSS", "BLOCK_SIZE", "HAS_WEIGHT", "HAS_SOFTCAPPING", "HAS_GRADIENTS",
    )  # fmt: skip

    def __getitem__(self, grid: tuple[int]) -> Callable[..., None]:
        def launch(*, num_warps: int, **given: Any) -> None:
            assert given.keys() == set(self.arg_names) and grid == given["X_ptr"].shape[:1]
            assert given["reduction"] == "mean" and not given["HAS_WEIGHT"] and not given["lse_square_scale"]
            calls.losses, calls.warps = calls.losses + 1, num_warps
            losses, gradient = cross_entropy(given["X_ptr"], given["Y_ptr"], given["label_smoothing"], given["softcap"])
            given["loss_ptr"].copy_(losses / given["n_non_ignore"])
            if given["HAS_GRADIENTS"]:
                given["X_ptr"].copy_(gradient / given["n_non_ignore"])

        return launch


def cross_entropy(logits_NV: Tensor, labels_N: Tensor, smoothing: float, cap: float | None) -> tuple[Tensor, Tensor]:
    """Losses and the gradient of their sum, in fp32."""
    logits = logits_NV.float()
    tanh = None if cap is None else torch.tanh(logits / cap)
    logits = logits if tanh is None else cap * tanh
    wanted = torch.full_like(logits, smoothing / logits.shape[1])
    wanted = wanted.scatter_add(1, labels_N[:, None], torch.full_like(logits[:, :1], 1 - smoothing))
    shares = logits.softmax(dim=-1)
    losses = -(wanted * logits.log_softmax(dim=-1)).sum(dim=-1)
    gradient = shares - wanted
    return losses, gradient if tanh is None else gradient * (1 - tanh.square())


@contextmanager
def liger_stand_in() -> Iterator[None]:
    """`import liger_kernel` finds this one, and so does transformers."""
    calls.norms_backward = calls.losses = 0
    modules = modules_named(
        "liger_kernel", "liger_kernel.transformers", "liger_kernel.ops", "liger_kernel.ops.cross_entropy"
    )
    modules["liger_kernel.ops.cross_entropy"].liger_cross_entropy_kernel = CrossEntropyKernel()
    modules["liger_kernel.transformers"]._apply_liger_kernel_to_instance = apply_to_instance
    with (
        imported_as(modules),
        patch("transformers.integrations.liger.is_liger_kernel_available", lambda: True),
    ):
        yield
