"""Split sentences that are too long for a model into windows of whole words.

An ONNX export contains a copy of this file, so it imports nothing from the package.
"""

from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class WordTokens:
    """A window. `firsts` has (position of its first token in the window, number in the sentence) of each word."""

    ids: list[int]
    firsts: list[tuple[int, int]]
    truncated: bool


def windows_of(
    ids: list[int], word_ids: list[int | None], max_length: int, *, lists_all: bool = False
) -> list[WordTokens]:
    """Return windows of whole words, each with the special tokens around it and at most `max_length` tokens.

    Neighbouring windows overlap by about a quarter. Of the windows that share a word, only the one with more context
    around it lists the word in `firsts`; with `lists_all`, each does. A single word that is longer than a window is
    cut, and its window is `truncated`."""
    previous_ids = [None, *word_ids]
    starts = [token for token, word in enumerate(word_ids) if word is not None and previous_ids[token] != word]
    if len(ids) <= max_length or not starts:
        firsts = [(start, word) for start in starts if (word := word_ids[start]) is not None]
        return [WordTokens(ids, firsts, truncated=False)]
    text_end = next(token for token in range(len(ids), 0, -1) if word_ids[token - 1] is not None)
    ids_before, ids_after = ids[: starts[0]], ids[text_end:]
    limit, ends = max(max_length - len(ids_before) - len(ids_after), 1), [*starts[1:], text_end]
    word_ranges: list[tuple[int, int]] = []  # (first word, last word + 1) of each window
    first = 0
    while not word_ranges or word_ranges[-1][1] < len(starts):
        last = first + 1
        while last < len(starts) and ends[last] - starts[first] <= limit:
            last += 1
        word_ranges.append((first, last))
        # The next window begins about a quarter before this one ends, and has at least one more word.
        shared = next((word for word in range(first + 1, last) if ends[last - 1] - starts[word] <= limit // 4), last)
        fits = (word for word in range(shared, last) if last < len(starts) and ends[last] - starts[word] <= limit)
        first = next(fits, last)
    middles = [(next_start + end + 1) // 2 for (_, end), (next_start, _) in pairwise(word_ranges)]
    windows = []
    listed_ranges = word_ranges if lists_all else pairwise([0, *middles, len(starts)])
    for (first, last), word_range in zip(word_ranges, listed_ranges, strict=True):
        window_ids = ids[starts[first] : ends[last - 1]]
        offset = starts[first] - len(ids_before)
        firsts = [(starts[word] - offset, word_ids[starts[word]] or 0) for word in range(*word_range)]
        is_cut, row_ids = len(window_ids) > limit, [*ids_before, *window_ids[:limit], *ids_after]
        windows.append(WordTokens(row_ids, firsts, truncated=is_cut))
    return windows
