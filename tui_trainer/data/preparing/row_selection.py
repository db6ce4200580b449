"""Which rows are trained on, how often, held out, or left out: by hashes of their texts and their classes alone."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.preparing.cache import DocumentCut, ExampleCut, RowsCut
from tui_trainer.data.preparing.eval_split import Split, split_each, split_rows
from tui_trainer.data.preparing.mixture import copies_of
from tui_trainer.data.preparing.reading_texts import Survey as TextSurvey
from tui_trainer.data.preparing.text_hash import text_hash

TRAIN, HELD_OUT, LEFT_OUT = 0, 1, 2


@dataclass(slots=True)
class Survey:
    """Of the rows of one side that can be used, in order: hash of the text and number of the class; how many rows and
    characters each of its sources has in `counts` and `characters`.
    """

    hashes: array[int] = field(default_factory=lambda: array("Q"))
    strata: array[int] = field(default_factory=lambda: array("q"))
    counts: list[int] = field(default_factory=list)
    characters: list[int] = field(default_factory=list)

    def begin_source(self) -> None:
        self.counts.append(0)
        self.characters.append(0)

    def add(self, text: str, stratum: int) -> None:
        self.hashes.append(text_hash(text))
        self.strata.append(stratum)
        self.counts[-1] += 1
        self.characters[-1] += len(text)

    def __len__(self) -> int:
        return len(self.hashes)


@dataclass(frozen=True, slots=True)
class Choice:
    """For each survey, on which side each row stands, int8 [rows], and how often it is used in an epoch, int16 [rows]:
    held-out rows once.
    """

    sides: tuple[NDArray[np.int8], ...]
    copies: tuple[NDArray[np.int16], ...]
    repeated: int
    leaked: int

    @property
    def trained(self) -> NDArray[np.int16]:
        """How often each row of the first survey is trained on: int16 [rows]."""
        return np.where(self.sides[0] == TRAIN, self.copies[0], 0).astype(np.int16)

    def passes(self, survey: int, start: int, stop: int) -> Iterator[NDArray[np.int8]]:
        """The sides of these rows, once for each time that some of them are used."""
        sides, copies = self.sides[survey][start:stop], self.copies[survey][start:stop]
        for number in range(int(copies.max(initial=0))):
            yield np.where(copies > number, sides, LEFT_OUT).astype(np.int8)


def choose(surveys: Sequence[Survey], cut: ExampleCut) -> Choice:
    """Rows of tables. Of each source, and of each class in it, the same share is held out."""
    first = surveys[0]
    strata = np.frombuffer(first.strata, dtype=np.int64)
    sources = np.repeat(np.arange(len(first.counts)), first.counts)
    groups = sources * (strata.max(initial=0) + 1) + strata

    def hold_out(usable: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        places = np.flatnonzero(usable)
        return places[split_rows(groups[places], cut.eval_fraction, cut.seed)], np.zeros(0, dtype=np.int64)

    return _choose([survey.hashes for survey in surveys], first.counts, cut, hold_out)


def choose_documents(surveys: Sequence[TextSurvey], names: Sequence[str], cut: DocumentCut) -> tuple[Choice, Split]:
    """Documents, of which the end of one may be held out alone. Of each source the same share of its characters is held
    out. `names` of the sources are for notes.
    """
    first = surveys[0]
    split = Split(held_out=np.zeros(len(first.lengths), dtype=np.bool_))

    def hold_out(usable: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        nonlocal split
        split = split_each(first.lengths, names, first.counts, cut.eval_fraction, cut.seed, usable)
        return np.flatnonzero(split.held_out), np.array(sorted(split.tails), dtype=np.int64)

    choice = _choose([survey.hashes for survey in surveys], first.counts, cut, hold_out)
    return choice, split


def characters_used(surveys: Sequence[Survey], choice: Choice) -> int:
    """Characters of all rows that are used, as if those of a source were equally long."""
    total = 0.0
    for survey, copies in zip(surveys, choice.copies, strict=True):
        starts = np.cumsum([0, *survey.counts[:-1]])
        total += float((np.add.reduceat(copies, starts, dtype=np.int64) / survey.counts * survey.characters).sum())
    return round(total)


HoldOut = Callable[[NDArray[np.bool_]], tuple[NDArray[np.int64], NDArray[np.int64]]]
"""Of the usable rows, bool [rows], the numbers of those that are held out, and of those that lose a part to them."""


def _choose(all_hashes: Sequence[array[int]], counts: Sequence[int], cut: RowsCut, hold_out: HoldOut) -> Choice:
    """Repeats first, then what is held out, then leaks, then weights: so weights count what is left of a source."""
    hashes = [np.frombuffer(some, dtype=np.uint64) for some in all_hashes]
    repeats = [_repeats(some) for some in hashes]
    sides = [
        np.where(found & cut.dedup, LEFT_OUT, side).astype(np.int8)
        for found, side in zip(repeats, (TRAIN, HELD_OUT), strict=False)
    ]
    torn = np.zeros(0, dtype=np.int64)
    if len(hashes) == 1:
        held_out, torn = hold_out(sides[0] == TRAIN)
        sides[0][held_out] = HELD_OUT
    measured = hashes[0][sides[0] == HELD_OUT] if len(hashes) == 1 else hashes[1]
    leaks = (sides[0] == TRAIN) & np.isin(hashes[0], measured)
    # A document leaks no part of itself, but a repeat of it does.
    of_torn = (sides[0] == TRAIN) & np.isin(hashes[0], hashes[0][torn])
    of_torn[torn] = False
    leaks |= of_torn
    if cut.dedup:
        sides[0][leaks] = LEFT_OUT
    copies = copies_of(sides[0] == TRAIN, counts, cut.weights, cut.seed)
    leaked = int(leaks.sum() if cut.dedup else (leaks & (copies > 0)).sum())
    copies[sides[0] == HELD_OUT] = 1
    used = [copies, *((side == HELD_OUT).astype(np.int16) for side in sides[1:])]
    return Choice(tuple(sides), tuple(used), sum(int(found.sum()) for found in repeats), leaked)


def _repeats(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which have an equal one before them."""
    _, first = np.unique(hashes, return_index=True)
    found = np.ones(len(hashes), dtype=np.bool_)
    found[first] = False
    return found
