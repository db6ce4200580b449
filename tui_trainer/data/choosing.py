"""Which rows of a table are trained on, held out, or left out: by hashes of their texts and their classes alone."""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.cache import ExampleCut
from tui_trainer.data.split import split_rows

TRAIN, HELD_OUT, LEFT_OUT = 0, 1, 2


@dataclass(slots=True)
class Survey:
    """Of the rows of one source that can be used, in file order: hash of the text and number of the class.

    `rows` counts all that were read.
    """

    hashes: array[int] = field(default_factory=lambda: array("Q"))
    strata: array[int] = field(default_factory=lambda: array("q"))
    characters: int = 0
    rows: int = 0

    def add(self, text: str, stratum: int) -> None:
        self.hashes.append(_hash(text))
        self.strata.append(stratum)
        self.characters += len(text)

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class Choice:
    """For each source, on which side each row stands: int8 [rows]."""

    sides: tuple[NDArray[np.int8], ...]
    repeated: int
    leaked: int


def choose(surveys: Sequence[Survey], cut: ExampleCut) -> Choice:
    hashes = [np.frombuffer(survey.hashes, dtype=np.uint64) for survey in surveys]
    repeats = [_repeats(part) for part in hashes]
    sides = np.where(repeats[0] & cut.dedup, LEFT_OUT, TRAIN).astype(np.int8)
    others: tuple[NDArray[np.int8], ...] = ()
    if len(surveys) > 1:
        others = (np.where(repeats[1] & cut.dedup, LEFT_OUT, HELD_OUT).astype(np.int8),)
        held_out = hashes[1]
    else:
        usable = np.flatnonzero(sides == TRAIN)
        strata = np.frombuffer(surveys[0].strata, dtype=np.int64)
        sides[usable[split_rows(strata[usable], cut.eval_fraction, cut.seed)]] = HELD_OUT
        held_out = hashes[0][sides == HELD_OUT]
    leaks = (sides == TRAIN) & np.isin(hashes[0], held_out)
    if cut.dedup:
        sides[leaks] = LEFT_OUT
    repeated = sum(int(part.sum()) for part in repeats)
    return Choice((sides, *others), repeated, int(leaks.sum()))


def _repeats(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which have an equal one before them."""
    _, first = np.unique(hashes, return_index=True)
    found = np.ones(len(hashes), dtype=np.bool_)
    found[first] = False
    return found


def _hash(text: str) -> int:
    """Of the text with its letters in one form and its white space made equal."""
    import xxhash

    return int(xxhash.xxh3_64_intdigest(" ".join(unicodedata.normalize("NFC", text).split()).encode()))
