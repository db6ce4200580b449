"""From words to tokens: which token stands for which word.

A word is known to the model by its first token. Words that a tokenizer makes nothing of (a lone variation selector)
have none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tui_trainer.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class WordTokens:
    """`firsts`: (place among the tokens, number of the word) for each word that has one."""

    ids: list[int]
    firsts: list[tuple[int, int]]
    truncated: bool


def with_words_spaced(tokenizer: Any) -> Any:
    """The same tokenizer, which spells a lone word as it is spelt within a text: with the space before it.

    Byte-level tokenizers (RoBERTa, GPT-2) tell the two apart, and are made for the beginning of a text. What is set
    here is saved with the tokenizer: by some classes of transformers in tokenizer.json, by others as a setting. Those
    that cut a text by a pattern first (Qwen, Llama 3) have no such switch, and are left as they are.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    refuse_slow(tokenizer)
    backend = tokenizer.backend_tokenizer
    cutter = backend.pre_tokenizer
    if isinstance(cutter, ByteLevel) and not cutter.add_prefix_space:
        cutter.add_prefix_space = True
        backend.pre_tokenizer = cutter
        tokenizer.add_prefix_space = True
    return tokenizer


def refuse_slow(tokenizer: Any) -> None:
    """Raises ConfigError for a tokenizer that cannot tell which word a token is part of."""
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        message = f"its tokenizer ({kind}) is a slow one, which does not tell which word a token is part of"
        hint = "take a model with a tokenizer.json"
        raise ConfigError(Problem(message=message, key="model.model_name_or_path", hint=hint))


def word_tokens(tokenizer: Any, rows: Sequence[Sequence[str]], max_length: int) -> list[WordTokens]:
    """Of each row of words its tokens with the special ones: `max_length` at the most, and whole words only."""
    encoded = tokenizer(
        [list(words) for words in rows],
        is_split_into_words=True,
        truncation=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        verbose=False,
    )
    return [_aligned(row.ids, row.word_ids, max_length) for row in encoded.encodings]


def _aligned(ids: list[int], word_ids: list[int | None], max_length: int) -> WordTokens:
    inside = [place for place, word in enumerate(word_ids) if word is not None]
    closing = len(ids) - 1 - inside[-1] if inside else 0
    truncated = bool(inside) and len(ids) > max_length
    if truncated:
        end = max(max_length - closing, inside[0])
        while end > inside[0] and word_ids[end] == word_ids[end - 1]:
            end -= 1
        ids, word_ids = ids[:end] + ids[len(ids) - closing :], word_ids[:end] + [None] * closing
    firsts = [
        (place, word)
        for place, word in enumerate(word_ids)
        if word is not None and (place == 0 or word_ids[place - 1] != word)
    ]
    return WordTokens(ids, firsts, truncated)


def closing_tokens(tokenizer: Any) -> int:
    """How many special tokens stand behind the last word."""
    found: list[int | None] = tokenizer([["a"]], is_split_into_words=True, verbose=False).encodings[0].word_ids
    return found[::-1].index(0)
