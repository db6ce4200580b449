"""The kernels of flash-attn 2 and 3 in plain products, for machines without a GPU.

Everything around them is transformers' own: which kernel a batch gets, and with which lengths, windows and caps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import modeling_flash_attention_utils as flash
from transformers.integrations import flash_attention

NAMES = ("flash_attention_2", "flash_attention_3")


def flash_attn_func(
    q: Tensor, k: Tensor, v: Tensor, dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
) -> Tensor:  # fmt: skip
    """[rows, tokens, heads, size]; each row is one sequence."""
    calls.plain += 1
    batch, length, width = len(q), q.shape[1], k.shape[1]
    ends_q, ends_k = (torch.arange(batch + 1) * tokens for tokens in (length, width))
    flat = [x.flatten(0, 1) for x in (q, k, v)]
    return attend(*flat, ends_q, ends_k, softmax_scale, causal, window_size, softcap).unflatten(0, (batch, length))


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int,
    dropout_p: float = 0.0, softmax_scale: float | None = None, causal: bool = False,
    window_size: tuple[int, int] = (-1, -1), softcap: float = 0.0, deterministic: bool = False,
) -> Tensor:  # fmt: skip
    """[tokens, heads, size]; sequences end where `cu_seqlens` says, which are int32 from 0 on."""
    calls.by_lengths += 1
    assert cu_seqlens_q.dtype == torch.int32 and int(cu_seqlens_q[-1]) == len(q)
    # The kernel starts no blocks beyond it: what is longer would not be computed.
    assert max_seqlen_q >= int(cu_seqlens_q.diff().max())
    return attend(q, k, v, cu_seqlens_q, cu_seqlens_k, softmax_scale, causal, window_size, softcap)


def attend(
    q: Tensor, k: Tensor, v: Tensor, ends_q: Tensor, ends_k: Tensor, scale: float | None, causal: bool,
    window: tuple[int, int], softcap: float,
) -> Tensor:  # fmt: skip
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    (which_q, at_q), (which_k, at_k) = (_places(ends) for ends in (ends_q, ends_k))
    # As the kernel has it, the last query stands at the last key.
    at_q = at_q + (ends_k.diff() - ends_q.diff())[which_q]
    before = at_q[:, None] - at_k
    seen = which_q[:, None] == which_k
    if causal:
        seen &= before >= 0
    if window[0] >= 0:
        seen &= before <= window[0]
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).to(v.dtype)
    return torch.einsum("hqk,khd->qhd", weights, v)


def _places(ends: Tensor) -> tuple[Tensor, Tensor]:
    """(which sequence, where in it) of each token."""
    lengths = ends.diff().long()
    which = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    return which, torch.arange(len(which)) - ends[:-1].long()[which]


calls = SimpleNamespace(plain=0, by_lengths=0)


@contextmanager
def flash_stand_in() -> Iterator[SimpleNamespace]:
    """`attn_implementation = "flash_attention_2"` or `_3` takes the kernels above; yields how often each was called."""
    calls.plain = calls.by_lengths = 0
    kernels: dict[str, Any] = {
        "flash_attn_func": flash_attn_func, "flash_attn_varlen_func": flash_attn_varlen_func,
        "flash_attn_with_kvcache": None,
    }  # fmt: skip
    modules = {name: ModuleType(name) for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn_interface")}
    for name in ("flash_attn", "flash_attn_interface"):
        vars(modules[name]).update(kernels)
    vars(modules["flash_attn.bert_padding"]).update(pad_input=flash._pad_input, unpad_input=flash._unpad_input)
    available = [
        patch.dict(flash.FLASH_ATTENTION_COMPATIBILITY_MATRIX[version], general_availability_check=lambda: True)
        for version in (2, 3)
    ]
    sys.modules.update(modules)
    with (
        patch.multiple(flash, is_flash_attn_2_available=lambda: True, is_flash_attn_3_available=lambda: True),
        patch.object(PreTrainedModel, "_flash_attn_can_dispatch", _can_dispatch),
        # fp32 stays fp32, which the kernels on a GPU do not take and these do.
        patch.object(flash_attention, "get_target_dtype", lambda query, module: None),
        available[0],
        available[1],
    ):
        flash._loaded_implementation = None
        try:
            yield calls
        finally:
            flash._loaded_implementation = None
            # One by one: `patch.dict` would forget the models that were imported meanwhile.
            for name in modules:
                del sys.modules[name]


def _can_dispatch(model: PreTrainedModel, flash_attn_version: int, is_init_check: bool = False) -> bool:
    if not model._supports_flash_attn:
        raise ValueError(f"{type(model).__name__} does not support Flash Attention")
    return True
