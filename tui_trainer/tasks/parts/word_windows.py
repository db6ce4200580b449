"""Sentences that are longer than a model reads, in windows of whole words.

An ONNX export has a copy of this file beside its graphs: it imports nothing of the package.
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class WordTokens:
    """`firsts`: (place among the tokens, number of the word) for each word that has one."""

    ids: list[int]
    firsts: list[tuple[int, int]]
    truncated: bool


def windows_of(ids: list[int], word_ids: list[int | None], max_length: int) -> list[WordTokens]:
    """Return windows of whole words with the special tokens around each, `max_length` tokens at the most.

    Neighbours share about a quarter of their tokens; `firsts` of each has the words of which it holds more around them
    than its neighbours. A word that alone is longer than a window is read up to there, and its window is `truncated`.
    """
    starts = [at for at, word in enumerate(word_ids) if word is not None and word_ids[at - 1 : at] != [word]]
    if len(ids) <= max_length or not starts:
        return [WordTokens(ids, [(at, word) for at in starts if (word := word_ids[at]) is not None], truncated=False)]
    end = next(at for at in range(len(ids), 0, -1) if word_ids[at - 1] is not None)
    before, behind = ids[: starts[0]], ids[end:]
    room, stops = max(max_length - len(before) - len(behind), 1), [*starts[1:], end]
    cuts: list[tuple[int, int]] = []  # numbers of the first word and of the one behind the last
    first = 0
    while not cuts or cuts[-1][1] < len(starts):
        last = first + 1
        while last < len(starts) and stops[last] - starts[first] <= room:
            last += 1
        cuts.append((first, last))
        # The next one begins about a quarter before this one ends, and holds at least one word more.
        shared = next((at for at in range(first + 1, last) if stops[last - 1] - starts[at] <= room // 4), last)
        fits = (at for at in range(shared, last) if last < len(starts) and stops[last] - starts[at] <= room)
        first = next(fits, last)
    halves = [0, *((later[0] + cut[1] + 1) // 2 for cut, later in pairwise(cuts)), len(starts)]
    windows = []
    for (first, last), own in zip(cuts, pairwise(halves), strict=True):
        part = ids[starts[first] : stops[last - 1]]
        firsts = [(starts[at] - starts[first] + len(before), word_ids[starts[at]] or 0) for at in range(*own)]
        windows.append(WordTokens([*before, *part[:room], *behind], firsts, truncated=len(part) > room))
    return windows
