"""Attention of packed rows by the lengths of their documents, on a GPU: no mask is built, and none is computed.

The library flash-attn takes lengths as transformers hands them down, and knows no mask. In SDPA's place comes a kernel
for rows of several documents, registered as an attention function of transformers: FlashAttention 3 where it is
installed and the card is what it was written for, else torch's own, before torch 2.10 that of flash-attn. What a kernel
takes differs between them and their versions, so its own signature decides. Whether a model really hands the lengths
down to its attention is not taken for granted: the probe (`probes.py`) looks at its logits and gradients.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from tui_trainer.hardware.gpu_models import FLASH_KERNELS, HOPPER
from tui_trainer.hardware.libraries import read_versions
from tui_trainer.models.modules import soft_cap_of
from tui_trainer.models.towers import language_config

NAME = "tui_trainer_varlen"
# With one of them a kernel says that it takes fewer heads of keys than of queries; `causal` is flash-attn's, which
# always does.
_SHARES_KEYS = {"enable_gqa", "causal"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function for documents laid end to end. `repeats_keys`: it gets keys and values of as many heads as queries."""

    name: str
    function: Callable[..., Any]
    repeats_keys: bool = False


def kernels(device: torch.device, model: Any = None) -> list[Kernel]:
    """Those of this machine, the fastest first. One whose arguments do not say whether it takes the model's fewer heads
    of keys is there twice: torch 2.11's does not name what it passes to FlashAttention, which takes them."""
    own = find_kernel()
    hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
    found = (
        _of_library("flash_attention_3") if hopper else None,
        Kernel("torch", own) if own else None,
        None if own else _of_library("flash_attention_2"),
    )
    config = None if model is None else language_config(model.config)
    heads, keys = (getattr(config, f"num_{name}_heads", None) for name in ("attention", "key_value"))
    shares = config is None or keys not in (None, heads)
    return [
        replace(kernel, repeats_keys=repeats)
        for kernel in found
        if kernel
        for repeats in ((False, True) if shares and not _takes(kernel) & _SHARES_KEYS else (False,))
    ]


def switch_on(model: Any, kernel: Kernel) -> str:
    """Let the model's attention go by lengths; why it does not, or empty: it does now."""
    if (before := model.config._attn_implementation) != "sdpa":
        return f"the model computes attention with {before}"
    # What no probe can see, which computes without dropout and compares packed with lone documents only.
    config = language_config(model.config)
    if any(getattr(config, name, None) for name in ("attention_dropout", "attn_pdrop")):
        return "it does not support dropout"
    if soft_cap_of(model):
        return "it does not support soft capping"
    if getattr(config, "sliding_window", None) and "window_size" not in _takes(kernel):
        return "it does not support sliding windows"
    AttentionInterface.register(NAME, attention_by(kernel))
    model.set_attn_implementation(NAME)
    return "" if model.config._attn_implementation == NAME else "the model only accepts its own attention"


def switch_off(model: Any) -> None:
    """From that kernel back to SDPA with a mask of documents; what the user chose stays."""
    if model.config._attn_implementation == NAME:
        model.set_attn_implementation("sdpa")


@contextmanager
def with_masks(model: Any) -> Iterator[None]:
    """Use SDPA with masks inside the block, for generation: several prompts are padded at the left, and transformers
    builds no mask for `NAME`."""
    is_by_lengths = model.config._attn_implementation == NAME
    switch_off(model)
    try:
        yield
    finally:
        if is_by_lengths:
            model.set_attn_implementation(NAME)


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
        return Kernel(library.distribution, import_module(library.module).flash_attn_varlen_func)
    except (ImportError, OSError, AttributeError):
        # Built for another torch or another CUDA: the checklist names what is installed and cannot be loaded.
        return None


@cache
def find_kernel() -> Callable[..., Any] | None:
    """torch's attention by lengths, from torch 2.10 on; None before."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Callable[..., Any] = varlen_attn
    return kernel


def _takes(kernel: Kernel) -> frozenset[str]:
    return frozenset(inspect.signature(kernel.function).parameters)


def attention_by(kernel: Kernel) -> Callable[..., tuple[Tensor, None]]:
    """An attention function as transformers calls it, on that kernel."""
    takes = _takes(kernel)

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
        if groups > 1 and kernel.repeats_keys:
            key_BKTD, value_BKTD = (x.repeat_interleave(groups, dim=1) for x in (key_BKTD, value_BKTD))
        # Norms of queries and keys with fp32 weights give fp32, which the kernel does not take.
        three = (x.to(value_BKTD.dtype) for x in (query_BHTD, key_BKTD, value_BKTD))
        flat = [x.transpose(1, 2).reshape(batch * tokens, x.shape[1], x.shape[3]) for x in three]
        more, flat[0] = _settings(takes, scaling, flat[0], gqa=groups > 1, window=kwargs.get("sliding_window"))
        result = kernel.function(*flat, cu_seq_lens, cu_seq_lens, longest, longest, **more)
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
