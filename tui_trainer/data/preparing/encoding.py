"""Texts into tokens with a tokenizer of any kind, in batches and in bounded memory.

A text of many megabytes is encoded in pieces. They are cut where a single line break stands between two other
characters: there the pre-tokenizers of GPT-2, Llama 3 and their kin cut as well, so the tokens are those of the whole.
A text without such a place is cut between words; there, and with tokenizers that mark the beginning of a text, a token
at a cut may differ.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[Sequence[str]], list[list[int]]]  # texts -> token ids of each, special tokens included
Tokens = NDArray[np.int32]

BATCH_CHARACTERS = 1 << 20
REACH = 1 << 16  # how far back a good place for a cut is looked for
GOOD_PLACE = re.compile(r"\S\n(?=\S)")
FALLBACK_PLACE = re.compile(r"\S(?=\s\S)")


def encode_texts(encode: Encode, texts: Sequence[str], eos_id: int | None) -> list[Tokens]:
    """The tokens of each text, int32 [N], ended with `eos_id` where that is not None and does not stand there."""
    end = np.array([] if eos_id is None else [eos_id], dtype=np.int32)
    found: list[Tokens] = []
    for batch in _batches(texts):
        is_long = len(batch[0]) > 2 * BATCH_CHARACTERS
        rows = [_long(encode, batch[0])] if is_long else [np.array(ids, dtype=np.int32) for ids in encode(batch)]
        found += [row if len(row) and row[-1] == eos_id else np.concatenate((row, end)) for row in rows]
    return found


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    """BATCH_CHARACTERS each at the most; a longer text stands alone."""
    batch: list[str] = []
    waiting = 0
    for text in texts:
        if batch and waiting + len(text) > BATCH_CHARACTERS:
            yield batch
            batch, waiting = [], 0
        batch.append(text)
        waiting += len(text)
    if batch:
        yield batch


def _long(encode: Encode, text: str) -> Tokens:
    """One text, piece by piece; the special tokens between the pieces are taken out."""
    around, inside = encode(["", "a"])
    first = next((place for place, token in enumerate(around) if inside[place] != token), len(around))
    before, after = around[:first], around[first:]
    parts: list[Tokens] = []
    for start, end in pieces_of(text):
        ids = encode([text[start:end]])[0]
        first = len(before) if start and ids[: len(before)] == before else 0
        inner_end = end < len(text) and bool(after) and ids[-len(after) :] == after
        parts.append(np.array(ids[first : len(ids) - len(after) if inner_end else len(ids)], dtype=np.int32))
    return np.concatenate(parts)


def pieces_of(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the pieces of a long text, about BATCH_CHARACTERS each."""
    start = 0
    while len(text) - start > 2 * BATCH_CHARACTERS:
        end = _place(text, start + BATCH_CHARACTERS)
        yield start, end
        start = end
    yield start, len(text)


def _place(text: str, wanted: int) -> int:
    """The last good place before `wanted`, else the last end of a word, else `wanted`."""
    low = wanted - REACH
    for pattern in (GOOD_PLACE, FALLBACK_PLACE):
        places = [found.end() for found in pattern.finditer(text, low, wanted)]
        if places:
            return places[-1]
    return wanted
