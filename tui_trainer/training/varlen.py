"""Attention of packed rows by the lengths of their documents, on a GPU: no mask is built, and none is computed.

The library flash-attn takes lengths as transformers hands them down, and knows no mask. In SDPA's place comes a kernel
for rows of several documents, registered as an attention function of transformers: FlashAttention 3 where it is
installed and the card is what it was written for, else torch's own, before torch 2.10 that of flash-attn. What a kernel
takes differs between them and their versions, so its own signature decides. Whether a model really hands the lengths
down to its attention is not taken for granted: the probe (`leak_probe.py`) looks at its logits and gradients.
"""

import inspect
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tui_trainer.hardware.flash_kernels import FLASH_KERNELS, HOPPER
from tui_trainer.hardware.libraries import read_versions

NAME = "tui_trainer_varlen"
# Flash kernels: Ampere and newer, 16 bits, heads of at most 256.
_LEAST_CAPABILITY, _LARGEST_HEAD = (8, 0), 256
# With one of them a kernel takes fewer heads of keys than of queries; `causal` is flash-attn's, which always does.
_SHARES_KEYS = {"enable_gqa", "causal"}
Kernel = Callable[..., Any]


def kernels(device: torch.device) -> list[Kernel]:
    """Those of this machine, the fastest first."""
    own = find_kernel()
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
    found = (
        _of_library("flash_attention_3") if hopper else None,
        own,
        None if own else _of_library("flash_attention_2"),
    )
    return [kernel for kernel in found if kernel]


def switch_on(model: Any, device: torch.device, dtype: torch.dtype, kernel: Kernel) -> bool:
    """Let the model's attention go by lengths, where card, precision and kernel can; whether it does now."""
    if device.type != "cuda" or dtype == torch.float32:
        return False
    if torch.cuda.get_device_capability(device) < _LEAST_CAPABILITY or not _suits(model, kernel):
        return False
    AttentionInterface.register(NAME, attention_by(kernel))
    model.set_attn_implementation(NAME)
    # A model whose attention has another door is left as it was.
    return bool(model.config._attn_implementation == NAME)


def switch_off(model: Any) -> None:
    """From that kernel back to SDPA with a mask of documents; what the user chose stays."""
    if model.config._attn_implementation == NAME:
        model.set_attn_implementation("sdpa")


def goes_by_lengths(model: Any) -> bool:
    """Whether its attention takes lengths already: the user chose flash-attn, from its own package or as a kernel of
    the hub, which transformers takes in its place (kernels-community/flash-attn2)."""
    return "flash" in str(model.config._attn_implementation)


def _of_library(name: str) -> Kernel | None:
    """The kernel for documents of flash-attn's packages, where that version of it is installed."""
    library = FLASH_KERNELS[name]
    if library.lack(read_versions((library.distribution,))):
        return None
    try:
        kernel: Kernel = import_module(library.module).flash_attn_varlen_func
    except (ImportError, OSError, AttributeError):
        # Built for another torch or another CUDA.
        return None
    return kernel


@cache
def find_kernel() -> Kernel | None:
    """torch's attention by lengths, from torch 2.10 on; None before."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Kernel = varlen_attn
    return kernel


def attention_by(kernel: Kernel) -> Callable[..., tuple[Tensor, None]]:
    """An attention function as transformers calls it, on that kernel."""
    takes = frozenset(inspect.signature(kernel).parameters)

    def attend(
        module: nn.Module,
        query_BHTD: Tensor,
        key_BKTD: Tensor,
        value_BKTD: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> tuple[Tensor, None]:
        """H heads, K of them for keys and values, head size D. Returns [B, T, H, D]. Without lengths: torch's SDPA."""
        cu_seq_lens, longest = kwargs.get("cu_seq_lens_q"), kwargs.get("max_length_q")
        if cu_seq_lens is None or longest is None:
            return sdpa_attention_forward(
                module, query_BHTD, key_BKTD, value_BKTD, attention_mask, dropout=dropout, scaling=scaling, **kwargs
            )
        batch, heads, tokens, _ = query_BHTD.shape
        groups = heads // key_BKTD.shape[1]
        if groups > 1 and not takes & _SHARES_KEYS:
            key_BKTD, value_BKTD = (x.repeat_interleave(groups, dim=1) for x in (key_BKTD, value_BKTD))
        # Norms of queries and keys with fp32 weights give fp32, which the kernel does not take.
        three = (x.to(value_BKTD.dtype) for x in (query_BHTD, key_BKTD, value_BKTD))
        flat = [x.transpose(1, 2).reshape(batch * tokens, x.shape[1], x.shape[3]) for x in three]
        more, flat[0] = _settings(takes, scaling, flat[0], gqa=groups > 1, window=kwargs.get("sliding_window"))
        result = kernel(*flat, cu_seq_lens, cu_seq_lens, longest, longest, **more)
        output: Tensor = result[0] if isinstance(result, tuple) else result
        return output.reshape(batch, tokens, heads, -1), None

    return attend


def _settings(
    takes: frozenset[str], scaling: float | None, query: Tensor, *, gqa: bool, window: int | None
) -> tuple[dict[str, Any], Tensor]:
    """The kernel's switches for causal attention, and the query, scaled beforehand where the kernel takes no scale."""
    more: dict[str, Any] = {}
    if "window_size" in takes:
        more["window_size"] = (window - 1 if window else -1, 0)
    for name in takes & {"causal", "is_causal"}:
        # torch's later kernels have windows in its place.
        more[name] = True
    if gqa and "enable_gqa" in takes:
        more["enable_gqa"] = True
    if scaling is None:
        return more, query
    for name in takes & {"scale", "softmax_scale"}:
        more[name] = scaling
        return more, query
    return more, query * (scaling * query.shape[-1] ** 0.5)


def _suits(model: Any, kernel: Kernel) -> bool:
    """The kernel has no dropout and no head beyond 256, and older ones cannot cut a window.

    It stands in for SDPA only: what a user chose stays, and a model without SDPA has more in its attention (sinks).
    """
    config = model.config
    if config._attn_implementation != "sdpa" or "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        return False
    rates = (getattr(config, name, 0.0) or 0.0 for name in ("attention_dropout", "attn_pdrop"))
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    cuts = "window_size" in inspect.signature(kernel).parameters
    return not any(rates) and head <= _LARGEST_HEAD and (cuts or not getattr(config, "sliding_window", None))
