"""Compute attention of packed rows on a GPU from the lengths of their documents, without a mask.

If the user chose flash-attn, it gets the lengths from transformers. Otherwise a kernel for concatenated documents takes
the place of SDPA: FlashAttention 3 on Hopper if it is installed, else torch's kernel, and before torch 2.10 that of
flash-attn. The arguments of kernels depend on their versions, so their signatures are inspected. The probe
(`probes.py`) checks by logits and gradients that a model passes the lengths on.
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

ATTENTION_NAME = "tui_trainer_varlen"
# A kernel with one of these arguments supports fewer key heads than query heads. Only flash-attn has `causal`.
_SHARES_KEYS = {"enable_gqa", "causal"}


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that computes attention for concatenated documents."""

    name: str
    function: Callable[..., Any]
    repeats_keys: bool = False
    """Whether key and value heads are repeated until there are as many as query heads."""


def kernels(device: torch.device, model: Any = None) -> list[Kernel]:
    """Return the kernels that this machine has, fastest first.

    If a signature does not show whether the kernel supports fewer key heads than query heads, the kernel is listed
    twice, with and without repeated keys. The kernel of torch 2.11 supports them without such an argument.
    """
    torch_kernel = find_kernel()
    is_hopper = device.type == "cuda" and torch.cuda.get_device_capability(device)[0] == HOPPER
    candidates = (
        _of_library("flash_attention_3") if is_hopper else None,
        Kernel("torch", torch_kernel) if torch_kernel else None,
        None if torch_kernel else _of_library("flash_attention_2"),
    )
    config = None if model is None else language_config(model.config)
    heads, key_heads = (getattr(config, f"num_{name}_heads", None) for name in ("attention", "key_value"))
    can_share = config is None or key_heads not in (None, heads)
    return [
        replace(kernel, repeats_keys=repeats_keys)
        for kernel in candidates
        if kernel
        for repeats_keys in ((False, True) if can_share and not _parameter_names(kernel) & _SHARES_KEYS else (False,))
    ]


def switch_on(model: Any, kernel: Kernel) -> str:
    """Make the model compute attention with the kernel. Return the reason if it cannot, otherwise an empty string."""
    if (old_attention := model.config._attn_implementation) != "sdpa":
        return f"the model computes attention with {old_attention}"
    # The probe cannot find these problems: it has no dropout, and compares packed with separate documents only.
    config = language_config(model.config)
    if any(getattr(config, name, None) for name in ("attention_dropout", "attn_pdrop")):
        return "this kernel does not support dropout"
    if soft_cap_of(model):
        return "this kernel does not support soft capping"
    if getattr(config, "sliding_window", None) and "window_size" not in _parameter_names(kernel):
        return "this kernel does not support sliding windows"
    AttentionInterface.register(ATTENTION_NAME, attention_by(kernel))
    model.set_attn_implementation(ATTENTION_NAME)
    return "" if model.config._attn_implementation == ATTENTION_NAME else "the model only accepts its own attention"


def switch_off(model: Any) -> None:
    """Undo `switch_on`: use SDPA with masks that separate documents. Attention chosen by the user does not change."""
    if model.config._attn_implementation == ATTENTION_NAME:
        model.set_attn_implementation("sdpa")


@contextmanager
def with_masks(model: Any) -> Iterator[None]:
    """Return a context in which the model uses SDPA with masks. Generation needs masks, because it pads prompts at the
    left, and transformers builds none for attention by lengths."""
    is_by_lengths = model.config._attn_implementation == ATTENTION_NAME
    switch_off(model)
    try:
        yield
    finally:
        if is_by_lengths:
            model.set_attn_implementation(ATTENTION_NAME)


def goes_by_lengths(model: Any) -> bool:
    """Return whether the model uses flash-attn, which gets the lengths of documents from transformers.

    transformers may use a kernel from the hub in its place (kernels-community/flash-attn2).
    """
    return "flash" in str(model.config._attn_implementation)


def _of_library(name: str) -> Kernel | None:
    """Return the kernel from this flash-attn package; None if the package is not installed or cannot be loaded."""
    library = FLASH_KERNELS[name]
    if library.missing_reason(read_versions((library.distribution,))):
        return None
    try:
        return Kernel(library.distribution, import_module(library.module).flash_attn_varlen_func)
    except (ImportError, OSError, AttributeError):
        # The package was built for another torch or CUDA. The checklist names such packages.
        return None


@cache
def find_kernel() -> Callable[..., Any] | None:
    """Return torch's function for attention by lengths; None before torch 2.10."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Callable[..., Any] = varlen_attn
    return kernel


def _parameter_names(kernel: Kernel) -> frozenset[str]:
    return frozenset(inspect.signature(kernel.function).parameters)


def attention_by(kernel: Kernel) -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function for transformers that calls the kernel."""
    names = _parameter_names(kernel)

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
        """Return the attention output [B, T, H, D]. Without lengths in `kwargs`, compute it with torch's SDPA.

        Shapes: H query heads, K key and value heads, head size D.
        """
        cu_seq_lens, longest_tokens = kwargs.get("cu_seq_lens_q"), kwargs.get("max_length_q")
        if cu_seq_lens is None or longest_tokens is None:
            return sdpa_attention_forward(
                module, query_BHTD, key_BKTD, value_BKTD, attention_mask, dropout=dropout, scaling=scaling, **kwargs
            )
        batch, heads, tokens, _ = query_BHTD.shape
        groups = heads // key_BKTD.shape[1]
        if groups > 1 and kernel.repeats_keys:
            key_BKTD, value_BKTD = (x.repeat_interleave(groups, dim=1) for x in (key_BKTD, value_BKTD))
        # Norms with fp32 weights return queries and keys in fp32, which the kernel refuses.
        tensors = (x.to(value_BKTD.dtype) for x in (query_BHTD, key_BKTD, value_BKTD))
        inputs = [x.transpose(1, 2).reshape(batch * tokens, x.shape[1], x.shape[3]) for x in tensors]
        options, inputs[0] = _settings(names, scaling, inputs[0], gqa=groups > 1, window=kwargs.get("sliding_window"))
        result = kernel.function(*inputs, cu_seq_lens, cu_seq_lens, longest_tokens, longest_tokens, **options)
        output: Tensor = result[0] if isinstance(result, tuple) else result
        return output.reshape(batch, tokens, heads, -1), None

    return attend


def _settings(
    parameter_names: frozenset[str], scaling: float | None, query: Tensor, *, gqa: bool, window: int | None
) -> tuple[dict[str, Any], Tensor]:
    """Return (keyword arguments for causal attention, query). The query is scaled if the kernel takes no scale."""
    options: dict[str, Any] = {}
    if "window_size" in parameter_names:
        options["window_size"] = (window - 1 if window else -1, 0)
    for name in parameter_names & {"causal", "is_causal"}:
        # Later versions of torch's kernel have no such argument, and take a window instead.
        options[name] = True
    if gqa and "enable_gqa" in parameter_names:
        options["enable_gqa"] = True
    if scaling is None:
        return options, query
    for name in parameter_names & {"scale", "softmax_scale"}:
        options[name] = scaling
        return options, query
    return options, query * (scaling * query.shape[-1] ** 0.5)
