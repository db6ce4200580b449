"""Which columns hold the words of a row and their tags, the words and tags of each row, and the entities that the tags
mark.

Three forms: a list of words beside a list of tags; the same as two texts whose parts are separated by white space, or
printed as lists; and a text with marked spans, as annotation tools write it, whose words get tags in IOB2. Tables with
one word a row are joined to sentences before (`data/sources/conll_rows.py`), or refused.

Words of a text are runs of letters, digits and the marks that belong to them; every other sign that is no white space
is a word of its own. Spans count characters (code points) from 0, and their end is not in them any more.

Entities are read leniently, as conlleval does and seqeval in its default mode: B and S begin one, so does whatever
follows O, E or S, and so does a change of the type. An I- that nothing begins is therefore the first word of an entity,
and IOB1, IOB2, BIOES and BILOU (whose L and U are E and S) need one rule only.

Source: conlleval of the CoNLL-2000 shared task, startOfChunk and endOfChunk; seqeval 1.2.2, get_entities.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, Literal, NamedTuple

from tui_trainer.data.columns.row import (
    AUTO,
    Row,
    columns_of,
    file_of,
    kind_of_value,
    listed,
    missing_column,
    refuse_rejected,
    string_of,
    transposed,
    usual_columns,
    value_of,
    written_value,
)
from tui_trainer.data.columns.text_columns import ColumnChoices, checked_text
from tui_trainer.data.columns.usual_names import SPAN_COLUMNS, TAG_COLUMNS, TEXT_COLUMNS, WORD_COLUMNS
from tui_trainer.data.decoding import refuse_surrogates
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import quantity

Scheme = Literal["IOB1", "IOB2", "BIOES", "plain"]

OUTSIDE = "O"
UNTYPED = "entity"  # what an entity is called whose tags are B and I alone
_TAG = re.compile(r"([BIMELSU])(?:-(.+))?", re.DOTALL)
_AS = {"M": "I", "L": "E", "U": "S"}
_ORDER = "BIES"


# What tools call the parts of a span: spaCy and Prodigy, doccano, Label Studio, the pipelines of transformers, BigBio,
# and the services of Amazon and Microsoft.
_NAMES = {
    "start": ("start", "start_offset", "begin", "start_char", "char_start", "start_idx", "BeginOffset", "offset"),
    "end": ("end", "end_offset", "stop", "end_char", "char_end", "end_idx", "EndOffset"),
    "label": ("label", "labels", "type", "entity_group", "entity_type", "entity", "tag", "category", "Type"),
}
_PLACES_NAMES = ("span", "offsets", "position")
_JOINERS = frozenset("_\u200c\u200d")  # the joiners of Indic and Persian words
_SPAN_TEXTS = ("text", "surface", "mention", "word")
_PLACES = "start and end count characters from 0; end is exclusive"
_HINT = 'a span is [start, end, "LABEL"], or an object with start, end and label'
_LABEL_STUDIO = {"data", "annotations"}
_SHAPES = 'write {"tokens": ["Ann", "sleeps"], "ner_tags": ["B-PER", "O"]} or '
_SHAPES += '{"text": "Ann sleeps", "entities": [[0, 3, "PER"]]}'
_LIST_HINT = "write it as JSON, or as words separated by spaces"
_NUMBERS = "write the names of the tags (B-PER, O; PER for spans), or save the data with datasets as Parquet, which "
_NUMBERS += "keeps the names"


class Entity(NamedTuple):
    """Words `start` to `end`, which is not in it any more."""

    start: int
    end: int
    kind: str


class Parts(NamedTuple):
    """A tag in two: B, I, E, S or O, and the type of the entity."""

    prefix: str
    kind: str


_NOTHING = Parts(OUTSIDE, "")


@lru_cache(maxsize=4096)
def parts_of(tag: str) -> Parts:
    """What is no tag of an entity counts as O."""
    found = _TAG.fullmatch(tag)
    if not found:
        return _NOTHING
    return Parts(_AS.get(found[1], found[1]), found[2] or UNTYPED)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order."""
    found: list[Entity] = []
    before, start = _NOTHING, 0
    for place, now in enumerate((*map(parts_of, tags), _NOTHING)):
        changes = before.kind != now.kind
        if before.prefix != OUTSIDE and (before.prefix in "ES" or now.prefix in "OBS" or changes):
            found.append(Entity(start, place, before.kind))
        if _begins(before, now):
            start = place
        before = now
    return found


def _begins(before: Parts, now: Parts) -> bool:
    if now.prefix == OUTSIDE:
        return False
    return now.prefix in "BS" or before.prefix in "OES" or before.kind != now.kind


def marks_entities(names: Iterable[str]) -> bool:
    """Whether a set of tags speaks of entities; otherwise each tag stands for itself, as a part of speech does.

    Tags without a type are taken for B and I of entities where both are there, and O.
    """
    inside = set(names) - {OUTSIDE}
    if all("-" in name and _TAG.fullmatch(name) for name in inside):
        return bool(inside)
    return {"B", "I", OUTSIDE} <= set(names) and all(len(name) == 1 and _TAG.fullmatch(name) for name in inside)


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """O first, then type by type, B before I before E before S; plain tags by the alphabet."""
    names = set(names)
    if not marks_entities(names):
        return tuple(sorted(names))

    def place(name: str) -> tuple[str, int, str]:
        prefix, kind = parts_of(name)
        return ("", 0, "") if prefix == OUTSIDE else (kind, _ORDER.index(prefix), name)

    return tuple(sorted(names, key=place))


@dataclass(slots=True)
class TagSurvey:
    """How the tags of many sentences are written. `counts` has every tag with its number.

    `loose` entities begin with I-, `needless` ones with a B- that IOB1 writes as I-.
    """

    counts: Counter[str] = field(default_factory=Counter)
    loose: int = 0
    needless: int = 0

    def add(self, tags: Sequence[str]) -> None:
        self.counts.update(tags)
        before = _NOTHING
        for now in map(parts_of, tags):
            if now.prefix == "I" and _begins(before, now):
                self.loose += 1
            elif now.prefix == "B" and before.kind != now.kind:
                self.needless += 1
            before = now

    @property
    def scheme(self) -> Scheme:
        """BIOES stands for BILOU too."""
        if not marks_entities(self.counts):
            return "plain"
        if any(parts_of(name).prefix in "ES" for name in self.counts if name != OUTSIDE):
            return "BIOES"
        return "IOB1" if self.loose and not self.needless else "IOB2"


class Span(NamedTuple):
    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """`cut` spans began or ended inside a word, and were made to cover the whole of it.

    `counts_utf16`: the spans count UTF-16 units, as JavaScript does, and not characters.
    """

    words: list[str]
    tags: list[str]
    cut: int = 0
    counts_utf16: bool = False


def tagged_text(text: str, values: object, where: str) -> Tagged:
    """Return the words of the text with their tags.

    Raises DataError for spans that cannot be read, that overlap, that lie outside of the text, or that mark another
    text than the one they name.
    """
    refuse_surrogates(text, where)
    named = [(_span(value, number, where), _own_text(value)) for number, value in enumerate(_spans(values, where), 1)]
    counts_utf16 = False
    if wrong := _misplaced(text, named):
        moved = _in_characters(text, named)
        if moved is None or _misplaced(text, moved):
            raise DataError(wrong, where=where, hint=_PLACES)
        named, counts_utf16 = moved, True
    spans = sorted(span for span, _ in named)
    for one, other in pairwise(spans):
        if other.start < one.end:
            raise DataError(f"the spans {_shown(one)} and {_shown(other)} overlap", where=where)
    places = word_places(text)
    if not places:
        raise DataError("the text has no words", where=where)
    tags, cut = _marked(places, spans, where)
    return Tagged([text[start:end] for start, end in places], tags, cut, counts_utf16)


def _spans(values: object, where: str) -> Sequence[object]:
    """Raises DataError for what is no list. An object of lists is one, as `datasets` has it."""
    values = transposed(values)
    if not isinstance(values, list | tuple):
        raise DataError(f"the spans are {kind_of_value(values)}, not a list", where=where, hint=_HINT)
    return values


def tagged_words(words: Sequence[str], values: object, where: str, *, has_last: bool) -> Tagged:
    """Return the words with their tags, by spans that count words. `has_last`: their end is the last word, as GLiNER
    has it, and not the one behind it. Raises DataError as `tagged_text` does."""
    spans = sorted(_span(value, number, where) for number, value in enumerate(_spans(values, where), 1))
    spans = [span._replace(end=span.end + has_last) for span in spans]
    for one, other in pairwise(spans):
        if other.start < one.end:
            raise DataError(f"the spans {_shown(one)} and {_shown(other)} overlap", where=where)
    if wrong := next((span for span in spans if not 0 <= span.start < span.end <= len(words)), None):
        raise DataError(f"the span {_shown(wrong)} is not within the {len(words):,} words", where=where)
    tags, _ = _marked([(place, place + 1) for place in range(len(words))], spans, where)
    return Tagged(list(words), tags)


def _own_text(value: object) -> str | None:
    """Return the text that a span says it marks; None where it names none."""
    texts = [value.get(name) for name in _SPAN_TEXTS] if isinstance(value, Mapping) else []
    return next((text for text in texts if isinstance(text, str)), None)


def _misplaced(text: str, named: Sequence[tuple[Span, str | None]]) -> str:
    """Return what is wrong with the first span that is not within the text, or marks another text than its own."""
    for span, own in named:
        if not 0 <= span.start < span.end <= len(text):
            return f"the span {_shown(span)} is not within the {len(text):,} characters of the text"
        marked = text[span.start : span.end]
        if own is not None and own.strip() != marked.strip():
            return f"the span {_shown(span)} covers '{one_line(marked, 40)}', but its text is '{one_line(own, 40)}'"
    return ""


def _in_characters(text: str, named: Sequence[tuple[Span, str | None]]) -> list[tuple[Span, str | None]] | None:
    """Return spans that count UTF-16 units as spans of characters; None where one begins or ends inside a character."""
    units = accumulate((1 + (ord(sign) > 0xFFFF) for sign in text), initial=0)
    places = {unit: place for place, unit in enumerate(units)}
    moved = [
        (span._replace(start=places.get(span.start, -1), end=places.get(span.end, -1)), own) for span, own in named
    ]
    return None if any(-1 in span[:2] for span, _ in moved) else moved


def word_places(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word."""
    # Vowel signs of Tamil and Hindi are marks, and no letters.
    inside = (sign.isalnum() or sign in _JOINERS or unicodedata.category(sign)[0] == "M" for sign in text)
    kinds = ("w" if is_inside else " " if sign.isspace() else "." for sign, is_inside in zip(text, inside, strict=True))
    return [found.span() for found in re.finditer(r"w+|\.", "".join(kinds))]


def _marked(places: Sequence[tuple[int, int]], spans: Sequence[Span], where: str) -> tuple[list[str], int]:
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
            raise DataError(f"the span {_shown(span)} contains no word", where=where)
        cut += places[first][0] < span.start or places[word - 1][1] > span.end
        # The next span may begin in the word that this one ends in.
        word -= 1
    return tags, cut


def _span(value: object, number: int, where: str) -> Span:
    if isinstance(value, Mapping):
        parts: list[Any] = [next((value[name] for name in names if name in value), None) for names in _NAMES.values()]
        places = next((value[name] for name in _PLACES_NAMES if name in value), None)
        places = places[0] if isinstance(places, list) and len(places) == 1 else places
        if isinstance(places, list) and len(places) == 2:
            parts[:2] = places
        if parts[1] is None and type(parts[0]) is int and type(value.get("length")) is int:
            parts[1] = parts[0] + value["length"]
    else:
        parts = list(value) if isinstance(value, list | tuple) else []
    if len(parts) == 3 and type(parts[2]) is int:
        what = f"the label of span {number:,} is the number {parts[2]}, which has no name"
        raise DataError(what, where=where, hint=_NUMBERS)
    if len(parts) == 3 and isinstance(parts[2], list) and len(parts[2]) == 1:
        parts[2] = parts[2][0]  # Label Studio lists the labels of a span
    if len(parts) != 3 or not all(type(part) is int for part in parts[:2]) or not isinstance(parts[2], str):
        raise DataError(f"span {number:,} cannot be read", where=where, hint=_HINT)
    start, end, named = parts
    span = Span(start, end, named.strip())
    if not span.label:
        raise DataError(f"span {number:,} has no label", where=where, hint=_HINT)
    return span


def _shown(span: Span) -> str:
    return f"{span.start}-{span.end} ({one_line(span.label, 30)})"


@dataclass(frozen=True, slots=True)
class TagColumns:
    """Where the words and the tags of a table stand. `spans`: the words are a text, and the tags mark spans of it.

    `word_spans`: the words are a list, and the tags mark spans that count them, "to the last" word or "behind" it.
    `is_export`: the rows are a full export of Label Studio.
    """

    words: str
    tags: str
    spans: bool
    note: str = ""
    word_spans: str = ""
    is_export: bool = False

    def read(self, row: Row) -> Tagged:
        """Raises DataError for a row that cannot be used."""
        row = _of_label_studio(row) if self.is_export else row
        if self.spans:
            refuse_rejected(row)
            return tagged_text(string_of(row, self.words), _unprinted(value_of(row, self.tags)), row.where)
        words = _words(row, self.words)
        if self.word_spans:
            spans = _unprinted(value_of(row, self.tags))
            return tagged_words(words, spans, row.where, has_last=self.word_spans == _TO_LAST)
        tags = _strings(row, self.tags, "tag", len(words))
        return Tagged(words, [tag.strip() for tag in tags])


@dataclass(frozen=True, slots=True)
class InputWords:
    """Where the words of a table stand. `is_text`: as texts, whose words are told apart here."""

    column: str
    is_text: bool

    def read(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        """(the text, where each word begins and ends in it). Words of a list stand a blank apart."""
        if not self.is_text:
            words = _words(row, self.column)
            ends = list(accumulate(len(word) + 1 for word in words))
            return " ".join(words), [(end - 1 - len(word), end - 1) for word, end in zip(words, ends, strict=True)]
        value = string_of(row, self.column)
        refuse_surrogates(value, row.where)
        if places := word_places(value):
            return value, places
        raise DataError("the text has no words", where=row.where)


_TO_LAST, _BEHIND = "with an inclusive end", "with an exclusive end"


def _of_label_studio(row: Row) -> Row:
    """A text with its spans out of a full export. Raises DataError for several annotations of a text."""
    data, done = value_of(row, "data"), value_of(row, "annotations")
    texts = [text for text in data.values() if isinstance(text, str)] if isinstance(data, Mapping) else []
    done = done if isinstance(done, list) else []
    done = [one for one in done if isinstance(one, Mapping) and not one.get("was_cancelled")]
    if len(texts) != 1 or len(done) != 1:
        what = f"the row has {quantity(len(texts), 'text')} and {quantity(len(done), 'annotation')}, not one of each"
        raise DataError(what, where=row.where, hint="export the data as JSON-MIN or as CoNLL, or remove the row")
    results = done[0].get("result") or []
    spans = [one["value"] for one in results if isinstance(one, Mapping) and "labels" in (one.get("value") or {})]
    return Row(row.where, {"text": texts[0], "label": spans})


def _word_spans(head: Sequence[Row], words: str, spans: str) -> str:
    """How the spans of a column count words: by what fits all first rows, else as the format of these names does."""
    known = [
        (span, len(_parts(row.values.get(words))))
        for row in head
        for number, value in enumerate(_spans(_unprinted(row.values.get(spans)), row.where), 1)
        for span in [_span(value, number, row.where)]
    ]
    ways = {_TO_LAST: all(span.end < count for span, count in known)}
    ways[_BEHIND] = all(span.start < span.end for span, _ in known)
    usual = {"ner": _TO_LAST, "entities": _BEHIND}.get(spans.strip().lower(), "")
    if usual and ways[usual]:
        return usual
    fits = [way for way, is_one in ways.items() if is_one]
    if len(fits) == 1:
        return fits[0]
    what = f"the spans in '{_name(spans)}' count words, but it is unclear whether their end is inclusive"
    raise DataError(what, where=file_of(head), hint=_SHAPES)


def find_words(head: Sequence[Row], words: str, tags: str) -> InputWords:
    """The column of the words: as for training where there are tags, else by its usual name or the texts in it."""
    try:
        found = find_tag_columns(head, words, tags)
        return InputWords(found.words, found.spans)
    except DataError:
        pass
    names = columns_of(head)
    column = next(iter(usual_columns(WORD_COLUMNS + TEXT_COLUMNS, names)), "") if words == AUTO else words
    if column not in names:
        column = ColumnChoices(words).choose(head)
    if column.strip().lower() in WORD_COLUMNS:
        _refuse_single_words(head, column)
    return InputWords(column, _is_text(head, column))


def find_tag_columns(head: Sequence[Row], words: str, tags: str) -> TagColumns:
    """The columns, by the settings `words` and `tags` and by the first rows. Raises DataError when they cannot be told.

    "auto" takes the first usual name: words with tags before texts with spans.
    """
    names, label = columns_of(head), file_of(head)
    is_export = {*names} >= _LABEL_STUDIO and AUTO == words == tags
    if is_export:
        head = [_of_label_studio(row) for row in head]
        names = columns_of(head)
    for key, name in (("data.text_column", words), ("data.label_column", tags)):
        if name != AUTO and name not in names:
            raise missing_column(name, label, names, key=key)
    columns = usual_columns(WORD_COLUMNS + TEXT_COLUMNS, names) if words == AUTO else [words]
    for column in columns:
        if any(isinstance(one, list) for row in head for one in _parts(row.values.get(column)) or ()):
            hint = f"write one row per sentence: {_SHAPES}"
            raise DataError(f"each row has several sentences in '{_name(column)}'", where=label, hint=hint)
        if found := _tags_beside(head, names, column, tags):
            spans = _is_text(head, column) and _are_spans(head, found[0])
            _refuse_single_words(head, column)
            tags_of = [_parts(row.values.get(found[0])) for row in head]
            lists = [value for value in tags_of if isinstance(value, list)]
            numbers = (type(tag) is int or str(tag).isdigit() for value in lists for tag in value)
            if any(lists) and all(numbers):
                # Said once for the table, and not for each of its rows.
                message = f"the tags in '{_name(found[0])}' are numbers, which have no names"
                raise DataError(message, where=label, hint=_NUMBERS)
            note = _note(column, found, spans, label, AUTO in (words, tags))
            return TagColumns(column, found[0], spans, note, is_export=is_export)
    for column in columns:
        wanted = [tags] if tags != AUTO else usual_columns(("ner", *SPAN_COLUMNS), names)
        found = [name for name in wanted if _are_spans(head, name)]
        if found and any(isinstance(_parts(row.values.get(column)), list) for row in head):
            way = _word_spans(head, column, found[0])
            note = f"{_note(column, found, True, label, True)}, which count words from 0, {way}"
            return TagColumns(column, found[0], False, note, way)
    what = f"no column holds the tags of '{_name(columns[0])}'" if columns else "no column holds words or a text"
    key = "data.label_column" if columns else "data.text_column"
    raise DataError(what, where=label, hint=f"set {key}, or {_SHAPES}; columns found: {listed(names)}")


def _tags_beside(head: Sequence[Row], names: Sequence[str], words: str, wanted: str) -> list[str]:
    """The columns that may hold the tags of a column of words or texts; the first is taken."""
    if wanted != AUTO:
        return [wanted]
    spans = [name for name in usual_columns(SPAN_COLUMNS, names) if _are_spans(head, name)]
    tags = [
        name
        for name in usual_columns(TAG_COLUMNS, names)
        if name not in (words, *spans) and not _are_spans(head, name, filled=True)
    ]
    if not _is_text(head, words):
        return tags
    return spans or [name for name in tags if any(isinstance(row.values.get(name), str | list) for row in head)]


def _is_text(head: Sequence[Row], name: str) -> bool:
    values = [value for row in head if (value := row.values.get(name)) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)


def _are_spans(head: Sequence[Row], name: str, *, filled: bool = False) -> bool:
    """Lists of anything but tags. A list with nothing in it is one of spans, unless some have to be `filled`: a text
    may have none."""
    values = (transposed(_unprinted(row.values.get(name))) for row in head)
    lists = [value for value in values if isinstance(value, list | tuple)]
    first = [item for value in lists for item in value]
    return bool(first if filled else lists) and not any(isinstance(item, str | int) for item in first)


def _refuse_single_words(head: Sequence[Row], column: str) -> None:
    """Raises DataError for a table with a word a row, of which nothing says where a sentence ends."""
    values = [row.values.get(column) for row in head]
    if len(values) > 1 and all(isinstance(value, str) and len(_parts(value)) == 1 for value in values):
        what = f"each row has one word in '{_name(column)}', and no column gives its sentence"
        hint = "add a column sentence_id, or write CoNLL, with a blank line after each sentence"
        raise DataError(what, where=file_of(head), hint=hint)


def _unprinted(value: object) -> object:
    """A text that prints a list, in JSON or in Python, as the list; anything else as it is."""
    text = value.strip() if isinstance(value, str) else ""
    if text[:1] != "[" or text[-1:] != "]":
        return value
    found = written_value(text)
    return found if isinstance(found, list) else value


def _parts(value: object) -> Any:
    """A text as the list that it stands for."""
    found = _unprinted(value)
    return found.split() if isinstance(found, str) else found


def _words(row: Row, column: str) -> list[str]:
    words = _strings(row, column, "word")
    if not words:
        raise DataError("the row has no words", where=row.where)
    checked_text(" ".join(words), row.where)
    return words


def _strings(row: Row, column: str, noun: str, words: int | None = None) -> list[str]:
    """What a column lists, `words` strings where that is said, none of them empty."""
    value, where = value_of(row, column), row.where
    found = _parts(value)
    if isinstance(value, str) and _is_broken_list(value, found, words is not None):
        raise DataError(f"the column '{_name(column)}' cannot be read as a list", where=where, hint=_LIST_HINT)
    if not isinstance(found, list | tuple):
        raise DataError(f"the column '{_name(column)}' is {kind_of_value(value)}, not a list of {noun}s", where=where)
    if words is not None and len(found) != words:
        raise DataError(f"the row has {quantity(words, 'word')} but {quantity(len(found), noun)}", where=where)
    for number, one in enumerate(found, start=1):
        if words is not None and type(one) is int:
            raise DataError(f"{noun} {number:,} is the number {one}, which has no name", where=where, hint=_NUMBERS)
        if not isinstance(one, str):
            raise DataError(f"{noun} {number:,} is {kind_of_value(one)}, not a string", where=where)
        if not one.strip():
            raise DataError(f"{noun} {number:,} is empty", where=where)
    return list(found)


def _is_broken_list(text: str, found: object, is_tags: bool) -> bool:
    """Of a text that was split at white space: a word may be a bracket, a tag is none."""
    begins = text.lstrip()[:2]
    brackets = begins[:1] == "[" and text.rstrip()[-1:] == "]"
    return brackets and found == text.split() and (is_tags or begins in ("['", '["'))


def _name(column: str) -> str:
    return one_line(column, 40)


def _note(words: str, tags: Sequence[str], spans: bool, label: str, was_guessed: bool) -> str:
    if not was_guessed:
        return ""
    others = f" (other candidates: {listed(tags[1:])})" if tags[1:] else ""
    what = ("text", "spans") if spans else ("words", "tags")
    place = f"in the column '{_name(words)}' of {label}, the {what[1]} in '{_name(tags[0])}'{others}"
    return f"the {what[0]} {'is' if spans else 'are'} {place}"
