"""Texts into token ids, and nothing else: without offsets, masks and the objects that carry them.

Most of what transformers does with a batch beside the tokenizing is for those. Where a tokenizer is one of the common
kind, its Rust part is asked directly; one with a way of its own is called as everybody calls it. Both give equal ids.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_SEGMENTS = "token_type_ids"


@dataclass(frozen=True, slots=True)
class CutIds:
    """Of each text: its ids, their segments (all 0 without a second text) if they were asked for, and whether it lost
    its end."""

    ids: list[list[int]]
    segments: list[list[int]]
    is_cut: list[bool]


def token_ids(
    tokenizer: Any, texts: Sequence[str], *, special_tokens: bool = True, split_special_tokens: bool | None = None
) -> list[list[int]]:
    """Ids of each text, whole. `split_special_tokens`: what is spelt like a special token is text; None: as the
    tokenizer is set."""
    if not texts:
        return []
    split = tokenizer.split_special_tokens if split_special_tokens is None else split_special_tokens
    if not _is_common(tokenizer):
        more = {"add_special_tokens": special_tokens, "split_special_tokens": split, "return_attention_mask": False}
        found: list[list[int]] = tokenizer(list(texts), **more, verbose=False)["input_ids"]
        return found
    return [encoding.ids for encoding in _encodings(tokenizer, list(texts), None, special_tokens, split)]


def cut_token_ids(
    tokenizer: Any,
    texts: Sequence[str],
    limit: int,
    *,
    pairs: Sequence[str] | None = None,
    segments: bool = False,
    as_target: bool = False,
) -> CutIds:
    """The first `limit` ids of each text, or text and second text, with the special ones; of a pair the longer text
    is cut. `as_target`: as what is answered, where a tokenizer tells that from what is asked."""
    tokenizer.truncation_side = "right"
    if not texts:
        return CutIds([], [], [])
    if _is_common(tokenizer):
        rows = list(texts) if pairs is None else list(zip(texts, pairs, strict=True))
        found = _encodings(tokenizer, rows, limit, True, tokenizer.split_special_tokens)
        return CutIds(
            [row.ids for row in found],
            [row.type_ids for row in found] if segments else [],
            [bool(row.overflowing) for row in found],
        )
    second = {} if pairs is None else {"text_pair": list(pairs)}
    asked = {"text_target" if as_target else "text": list(texts), **second, "return_attention_mask": False}
    cut = tokenizer(**asked, return_token_type_ids=segments, truncation=True, max_length=limit, verbose=False)
    whole = tokenizer(**asked, verbose=False)["input_ids"]
    is_cut = [len(all_of_it) > len(kept) for all_of_it, kept in zip(whole, cut["input_ids"], strict=True)]
    return CutIds(cut["input_ids"], cut[_SEGMENTS] if segments else [], is_cut)


def _is_common(tokenizer: Any) -> bool:
    """Whether calling it does no more than asking its Rust part."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    own = any(getattr(kind, name, None) is not getattr(PreTrainedTokenizerFast, name, None) for name in _METHODS)
    return issubclass(kind, PreTrainedTokenizerFast) and not own and not hasattr(kind, "_switch_to_input_mode")


_METHODS = ("__call__", "_encode_plus", "set_truncation_and_padding")


def _encodings(
    tokenizer: Any, rows: Sequence[Any], limit: int | None, special_tokens: bool, split_special_tokens: bool
) -> list[Any]:
    from transformers.tokenization_utils_base import TruncationStrategy
    from transformers.utils.generic import PaddingStrategy

    tokenizer.set_truncation_and_padding(
        padding_strategy=PaddingStrategy.DO_NOT_PAD,
        truncation_strategy=TruncationStrategy.DO_NOT_TRUNCATE if limit is None else TruncationStrategy.LONGEST_FIRST,
        max_length=limit,
        stride=0,
        pad_to_multiple_of=None,
        padding_side=None,
    )
    backend = tokenizer.backend_tokenizer
    if backend.encode_special_tokens != split_special_tokens:
        backend.encode_special_tokens = split_special_tokens
    found: list[Any] = backend.encode_batch_fast(rows, add_special_tokens=special_tokens)
    return found
