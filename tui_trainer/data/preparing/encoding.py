"""Texts into tokens with a tokenizer of any kind, in batches and in bounded memory.

A text of many megabytes is encoded in pieces. They are cut where a single line break stands between two other
characters: there the pre-tokenizers of GPT-2, Llama 3 and their kin cut as well, so the tokens are those of the whole.
A text without such a place is cut between words; there, and with tokenizers that mark the beginning of a text, a token
at a cut may differ.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Encode = Callable[[Sequence[str]], list[list[int]]]  # texts -> token ids of each, special tokens included
Tokens = NDArray[np.int32]

BATCH_CHARACTERS = 1 << 20
REACH = 1 << 16  # how far back a good place for a cut is looked for
GOOD_PLACE = re.compile(r"\S\n(?=\S)")
FALLBACK_PLACE = re.compile(r"\S(?=\s\S)")


class DocumentEncoder:
    """Encodes batches of documents and ends each with `eos_id`, where that is not None and does not stand there."""

    def __init__(self, encode: Encode, eos_id: int | None) -> None:
        self._encode = encode
        self._eos_id = eos_id
        self._frame: tuple[list[int], list[int]] | None = None

    def batch(self, texts: Sequence[str]) -> tuple[Tokens, NDArray[np.int64]]:
        """The tokens of all texts one after another, and how many each has: int32 [N], int64 [len(texts)]."""
        if len(texts) == 1 and len(texts[0]) > 2 * BATCH_CHARACTERS:
            return self._long(texts[0])
        rows = [self._ended(ids) for ids in self._encode(texts)]
        lengths = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
        return np.fromiter(chain.from_iterable(rows), dtype=np.int32, count=int(lengths.sum())), lengths

    def _long(self, text: str) -> tuple[Tokens, NDArray[np.int64]]:
        """One text, piece by piece; the special tokens between the pieces are taken out."""
        before, after = self._special_tokens()
        parts: list[Tokens] = []
        for start, end in pieces_of(text):
            ids = self._encode([text[start:end]])[0]
            first = len(before) if start and ids[: len(before)] == before else 0
            inner_end = end < len(text) and bool(after) and ids[-len(after) :] == after
            last = len(ids) - len(after) if inner_end else len(ids)
            parts.append(np.array(ids[first:last], dtype=np.int32))
        if self._eos_id is not None and not (len(parts[-1]) and parts[-1][-1] == self._eos_id):
            parts.append(np.array([self._eos_id], dtype=np.int32))
        tokens = np.concatenate(parts)
        return tokens, np.array([len(tokens)], dtype=np.int64)

    def _special_tokens(self) -> tuple[list[int], list[int]]:
        """What the tokenizer puts before and after a text."""
        if self._frame is None:
            around, inside = self._encode(["", "a"])
            first = next((place for place, token in enumerate(around) if inside[place] != token), len(around))
            self._frame = around[:first], around[first:]
        return self._frame

    def _ended(self, ids: list[int]) -> list[int]:
        if self._eos_id is None or (ids and ids[-1] == self._eos_id):
            return ids
        return [*ids, self._eos_id]


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
