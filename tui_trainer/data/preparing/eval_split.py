"""Which documents are held out for evaluation: whole ones, drawn with a seed.

Only lengths are needed, so the texts need not be in memory. Pure: the same lengths and seed give the same split on
every machine and with every numpy (a bit generator's raw stream is fixed; see numpy NEP 19).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

LARGEST_MISS = 0.5  # how far the held-out share may be from the wanted one, relative to it


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """`held_out[i]` says whether document i is evaluated on.

    Where the whole documents of a source cannot give the share, none of them is held out and the end of one is taken
    instead: `tails` has the number of the document, and how many characters; `notes` says so.
    """

    held_out: NDArray[np.bool_]
    tails: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def split_documents(lengths: Sequence[int] | NDArray[np.int64], eval_fraction: float, seed: int) -> Split:
    """Hold out documents with about `eval_fraction` of all characters; never all of them, and none for 0.

    `lengths` are characters per document, 1 or more each.
    """
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction {eval_fraction} is not in [0, 1)")
    sizes = np.asarray(lengths, dtype=np.int64)
    nothing = np.zeros(len(sizes), dtype=np.bool_)
    if eval_fraction == 0 or len(sizes) == 0:
        return Split(held_out=nothing)
    wanted = eval_fraction * int(sizes.sum())
    chosen = _draw(sizes, wanted, seed)
    if chosen and abs(int(sizes[chosen].sum()) - wanted) <= LARGEST_MISS * wanted:
        held_out = nothing.copy()
        held_out[chosen] = True
        return Split(held_out=held_out)
    return _tail_of_the_longest(sizes, wanted, nothing)


def split_each(
    lengths: Sequence[int],
    names: Sequence[str],
    counts: Sequence[int],
    eval_fraction: float,
    seed: int,
    usable: NDArray[np.bool_] | None = None,
) -> Split:
    """The same for documents of several sources, `counts` of each in turn: every source gives its share.

    Only documents that are `usable`, bool [documents], are held out. `names` of the sources are for the notes.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    held_out, tails, notes = np.zeros(len(sizes), dtype=np.bool_), dict[int, int](), list[str]()
    start = 0
    for name, count in zip(names, counts, strict=True):
        places = np.arange(start, start + count)
        if usable is not None:
            places = places[usable[places]]
        part = split_documents(sizes[places], eval_fraction, seed)
        held_out[places[part.held_out]] = True
        tails |= {int(places[document]): characters for document, characters in part.tails.items()}
        notes += [f"{name}: {note}" for note in part.notes] if len(names) > 1 else part.notes
        start += count
    return Split(held_out=held_out, tails=tails, notes=tuple(notes))


def tail_start(text: str, tail_characters: int) -> int:
    """Where the tail begins: at the line break nearest to the wanted place, if one is near; 0 < start < len(text)."""
    wanted = len(text) - tail_characters
    reach = max(1, tail_characters // 2)
    before = text.rfind("\n", max(0, wanted - reach), wanted) + 1
    after = text.find("\n", wanted, wanted + reach) + 1
    near = [place for place in (before, after) if 0 < place < len(text)]
    return min(near, key=lambda place: abs(place - wanted), default=wanted)


def torn(text: str, tail_characters: int) -> tuple[str, str]:
    """What of a document is trained on, and its end, which is held out."""
    start = tail_start(text, tail_characters)
    return text[:start], text[start:]


def _draw(sizes: NDArray[np.int64], wanted: float, seed: int) -> list[int]:
    """Documents in a seeded order that fit into `wanted`, then one more if that comes closer; one always stays."""
    raw = np.random.PCG64(seed).random_raw(len(sizes))
    order = np.argsort(raw, kind="stable").tolist()
    chosen: list[int] = []
    rest: list[int] = []
    room = wanted
    for index in order:
        if sizes[index] <= room:  # never all: their sum is more than wanted
            chosen.append(index)
            room -= int(sizes[index])
        else:
            rest.append(index)
    if len(rest) > 1:
        nearest = min(rest, key=lambda index: abs(room - int(sizes[index])))
        if abs(room - int(sizes[nearest])) < room:
            chosen.append(nearest)
    return chosen


def _tail_of_the_longest(sizes: NDArray[np.int64], wanted: float, nothing: NDArray[np.bool_]) -> Split:
    longest = int(sizes.argmax())
    size = int(sizes[longest])
    if size < 2:
        return Split(held_out=nothing, notes=("nothing is held out: no document has two characters",))
    tail = min(max(1, round(wanted)), size - 1)
    why = "there is one document" if len(sizes) == 1 else "whole documents cannot give the share of data.eval_fraction"
    note = f"{why}: the last {tail:,} or so of the {size:,} characters of document {longest + 1} are held out"
    return Split(held_out=nothing, tails={longest: tail}, notes=(note,))


def split_rows(strata: NDArray[np.int64], eval_fraction: float, seed: int) -> NDArray[np.int64]:
    """Numbers of the rows that are held out: `eval_fraction` of each stratum as nearly as whole rows allow.

    `strata` [N] says which class each row has. At least one row of each class stays for training.
    """
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction {eval_fraction} is not in [0, 1)")
    if not len(strata) or not eval_fraction:
        return np.zeros(0, dtype=np.int64)
    drawn = np.argsort(np.random.PCG64(seed).random_raw(len(strata)), kind="stable")
    ordered = drawn[np.argsort(strata[drawn], kind="stable")]
    sizes = np.unique(strata, return_counts=True)[1]
    # What a class cannot give in whole rows is carried over to the next one, so that the sum is right.
    ends = np.round(np.cumsum(sizes) * eval_fraction).astype(np.int64)
    wanted = np.minimum(np.diff(ends, prepend=0), sizes - 1)
    starts = np.cumsum(sizes) - sizes
    chosen = [ordered[start : start + count] for start, count in zip(starts, wanted, strict=True)]
    return np.sort(np.concatenate(chosen))
