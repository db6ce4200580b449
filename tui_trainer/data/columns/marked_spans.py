"""A text with marked spans as words with tags: what annotation tools write, in IOB2.

Words are runs of letters, digits and the marks that belong to them; every other sign that is no white space is a word
of its own. Spans count characters (code points) from 0, and their end is not in them any more.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from tui_trainer.data.columns.row import kind_of_value
from tui_trainer.data.columns.tags import OUTSIDE
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

# What tools call the parts of a span: spaCy and Prodigy, doccano, Label Studio, the pipelines of transformers.
_NAMES = {
    "start": ("start", "start_offset", "begin"),
    "end": ("end", "end_offset", "stop"),
    "label": ("label", "type", "entity_group", "entity", "tag"),
}
_JOINERS = frozenset("_\u200c\u200d")  # the joiners of Indic and Persian words
_HINT = 'a span is [start, end, "LABEL"], or an object with start, end and label'


class Span(NamedTuple):
    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """`cut` spans began or ended inside a word, and were made to cover the whole of it."""

    words: list[str]
    tags: list[str]
    cut: int = 0


def tagged_text(text: str, values: object, where: str) -> Tagged:
    """Raises DataError for spans that cannot be read, that overlap, or that lie outside of the text."""
    refuse_surrogates(text, where)
    spans = sorted(_span(value, number, len(text), where) for number, value in enumerate(_listed(values, where), 1))
    for one, other in pairwise(spans):
        if other.start < one.end:
            raise DataError(f"the spans {_shown(one)} and {_shown(other)} overlap", where=where)
    places = word_places(text)
    if not places:
        raise DataError("the text has no words", where=where)
    tags, cut = _tags(places, spans, where)
    return Tagged([text[start:end] for start, end in places], tags, cut)


def word_places(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word."""
    # Vowel signs of Tamil and Hindi are marks, and no letters.
    inside = (sign.isalnum() or sign in _JOINERS or unicodedata.category(sign)[0] == "M" for sign in text)
    kinds = ("w" if is_inside else " " if sign.isspace() else "." for sign, is_inside in zip(text, inside, strict=True))
    return [found.span() for found in re.finditer(r"w+|\.", "".join(kinds))]


def _tags(places: Sequence[tuple[int, int]], spans: Sequence[Span], where: str) -> tuple[list[str], int]:
    tags, cut, word = [OUTSIDE] * len(places), 0, 0
    for span in spans:
        while word < len(places) and places[word][1] <= span.start:
            word += 1
        first = word
        while word < len(places) and places[word][0] < span.end:
            if word == first and tags[word] != OUTSIDE:
                raise DataError(f"the span {_shown(span)} shares a word with the one before it", where=where)
            tags[word] = f"{'B' if word == first else 'I'}-{span.label}"
            word += 1
        if word == first:
            raise DataError(f"the span {_shown(span)} holds no word", where=where)
        cut += places[first][0] < span.start or places[word - 1][1] > span.end
        # The next span may begin in the word that this one ends in.
        word -= 1
    return tags, cut


def _listed(values: object, where: str) -> Sequence[object]:
    if not isinstance(values, list | tuple):
        raise DataError(f"the spans are {kind_of_value(values)}, not a list", where=where, hint=_HINT)
    return values


def _span(value: object, number: int, length: int, where: str) -> Span:
    if isinstance(value, Mapping):
        parts: list[Any] = [next((value[name] for name in names if name in value), None) for names in _NAMES.values()]
    else:
        parts = list(value) if isinstance(value, list | tuple) else []
    if len(parts) != 3 or not all(type(part) is int for part in parts[:2]) or not isinstance(parts[2], str):
        raise DataError(f"span {number:,} cannot be read", where=where, hint=_HINT)
    start, end, named = parts
    span = Span(start, end, named.strip())
    if not span.label:
        raise DataError(f"span {number:,} has no label", where=where, hint=_HINT)
    if not 0 <= span.start < span.end <= length:
        raise DataError(f"the span {_shown(span)} is not within the {length:,} characters of the text", where=where)
    return span


def _shown(span: Span) -> str:
    return f"{span.start}-{span.end} ({one_line(span.label, 30)})"
