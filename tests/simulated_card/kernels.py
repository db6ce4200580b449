"""What kernels compute that torch has for CUDA only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.nn.attention import varlen as _registers  # noqa: F401  # the operations below

from tests.flash_stand_in import attend

_WITH_AUTOGRAD = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())
_CUDNN = SDPBackend.CUDNN_ATTENTION.value
VARLEN, VARLEN_BACKWARD = torch.ops.torch_attn._varlen_attn.default, torch.ops.torch_attn._varlen_attn_backward.default


def _attend(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, longest_q: int, longest_k: int,
    is_causal: bool = False, scale: float | None = None, window: Any = None, *rest: Any, **more: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    _take(query, key, value, ends_q, longest_q)
    if torch.are_deterministic_algorithms_enabled() and (rest[-1] if rest else more.get("backend")) == _CUDNN:
        # A card would say nothing, and compute another gradient each time.
        raise RuntimeError("cuDNN's attention does not have a deterministic backward pass")
    heads, tokens = query.shape[1], query.shape[0]
    found = _in_fp32(query, key, value, ends_q, ends_k, is_causal, scale, window).to(query.dtype)
    return found, torch.zeros(heads, tokens), torch.zeros(2, dtype=torch.uint64)


def _attend_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, _out: Tensor, _lse: Tensor, ends_q: Tensor,
    ends_k: Tensor, longest_q: int, longest_k: int, is_causal: bool, _state: Tensor, scale: float | None = None,
    window: Any = None, *_: Any, **__: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    _take(query, key, value, ends_q, longest_q)
    # A kernel runs where autograd is set aside.
    with torch._C._ForceDispatchKeyGuard(*_WITH_AUTOGRAD), torch.enable_grad():
        three = [x.detach().float().requires_grad_() for x in (query, key, value)]
        found = _in_fp32(*three, ends_q, ends_k, is_causal, scale, window)
        gradients = torch.autograd.grad(found, three, gradient.float())
    return tuple(x.to(query.dtype) for x in gradients)


def _in_fp32(
    query: Tensor, key: Tensor, value: Tensor, ends_q: Tensor, ends_k: Tensor, is_causal: bool, scale: Any, window: Any
) -> Tensor:
    left = window[0] if window else -1
    causal = is_causal or bool(window and window[1] == 0)
    return attend(query.float(), key.float(), value.float(), ends_q, ends_k, scale, causal, (left, -1), 0.0)


def _take(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int) -> None:
    """What the kernels on a card refuse, and what they compute wrongly."""
    if {query.dtype, key.dtype, value.dtype} - {query.dtype} or query.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if ends.dtype != torch.int32:
        raise RuntimeError("cu_seqlens_q must have dtype int32")
    assert int(ends[-1]) == len(query), "lengths end where the tokens do"
    assert longest >= int(ends.diff().max()), "what is longer than the longest would not be computed"


def _count(numbers: Tensor, *args: Any, **settings: Any) -> Tensor:
    """Count integers, which `histc` does on CUDA only: transformers counts the tokens of each expert with it."""
    return HISTC(numbers.float(), *args, **settings).to(numbers.dtype)


def _wide_product(
    factor: Tensor, x: Tensor, y: Tensor, out_dtype: torch.dtype, *, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Multiply in 16 bits with a result in fp32. Checks are those of `_addmm_dtype_out_cuda` in torch 2.11."""
    assert factor.dtype == x.dtype == y.dtype in (torch.float16, torch.bfloat16) and out_dtype == torch.float32
    assert factor.shape == (len(x), y.shape[1]) and beta == 0
    return alpha * (x.float() @ y.float())


HISTC, WIDE_PRODUCT = torch.ops.aten.histc.default, torch.ops.aten.addmm.dtype
KERNELS = {VARLEN: _attend, VARLEN_BACKWARD: _attend_backward, HISTC: _count, WIDE_PRODUCT: _wide_product}
