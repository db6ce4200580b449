"""Words and their tags: the columns that hold them, the words and tags of each row, and the entities that tags mark.

A row has one of three forms: a list of words and a list of tags; the same as two texts, separated by white space or in
the notation of lists; or a text with spans, as annotation tools write it, whose words get tags in IOB2. Tables with one
word per row are joined into sentences before (`data/sources/conll_rows.py`), or refused.

The words of a text are runs of letters, digits and their marks; any other sign except white space is a word of its own.
Spans count characters (code points) from 0, and their end is exclusive.

Entities are read leniently, like conlleval and seqeval's default mode: an entity begins with B or S, after O, E or S,
and where the type changes. So an I- without a beginning is the first word of an entity, and one rule covers IOB1, IOB2,
BIOES and BILOU (whose L and U mean E and S).

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
UNTYPED = "entity"  # the type of entities whose tags are B and I alone
_TAG = re.compile(r"([BIMELSU])(?:-(.+))?", re.DOTALL)
_EQUIVALENT_PREFIXES = {"M": "I", "L": "E", "U": "S"}
_PREFIX_ORDER = "BIES"

# The keys of a span. Sources: spaCy and Prodigy, doccano, Label Studio, the pipelines of transformers, BigBio, and the
# services of Amazon and Microsoft.
_SPAN_KEYS = {
    "start": ("start", "start_offset", "begin", "start_char", "char_start", "start_idx", "BeginOffset", "offset"),
    "end": ("end", "end_offset", "stop", "end_char", "char_end", "end_idx", "EndOffset"),
    "label": ("label", "labels", "type", "entity_group", "entity_type", "entity", "tag", "category", "Type"),
}
_OFFSETS_KEYS = ("span", "offsets", "position")
_JOINERS = frozenset("_\u200c\u200d")  # the joiners of Indic and Persian words
_SPAN_TEXTS = ("text", "surface", "mention", "word")
_OFFSETS_HINT = "start and end count characters from 0; end is exclusive"
_SPAN_HINT = 'a span is [start, end, "LABEL"], or an object with start, end and label'
_LABEL_STUDIO = {"data", "annotations"}
_ROWS_HINT = 'write {"tokens": ["Ann", "sleeps"], "ner_tags": ["B-PER", "O"]} or '
_ROWS_HINT += '{"text": "Ann sleeps", "entities": [[0, 3, "PER"]]}'
_LIST_HINT = "write the list as JSON, or as words separated by spaces"
_NAMES_HINT = "write the names of the tags (B-PER, O; PER for spans), or save the data with datasets as Parquet, which "
_NAMES_HINT += "keeps the names"


class Entity(NamedTuple):
    """An entity from word `start` to word `end`, which is exclusive. `kind` is its type."""

    start: int
    end: int
    kind: str


class TagParts(NamedTuple):
    """A tag in two parts: a prefix (B, I, E, S or O), and the type of the entity, such as PER."""

    prefix: str
    kind: str


_OUTSIDE_PARTS = TagParts(OUTSIDE, "")


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> TagParts:
    """Split a tag into prefix and type. A tag that does not mark an entity is treated as O."""
    match = _TAG.fullmatch(tag)
    if not match:
        return _OUTSIDE_PARTS
    return TagParts(_EQUIVALENT_PREFIXES.get(match[1], match[1]), match[2] or UNTYPED)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Return the entities of one sentence, in order."""
    found_entities: list[Entity] = []
    previous, entity_start = _OUTSIDE_PARTS, 0
    for position, current in enumerate((*map(split_tag, tags), _OUTSIDE_PARTS)):
        is_new_kind = previous.kind != current.kind
        if previous.prefix != OUTSIDE and (previous.prefix in "ES" or current.prefix in "OBS" or is_new_kind):
            found_entities.append(Entity(entity_start, position, previous.kind))
        if _begins(previous, current):
            entity_start = position
        previous = current
    return found_entities


def _begins(previous: TagParts, current: TagParts) -> bool:
    if current.prefix == OUTSIDE:
        return False
    return current.prefix in "BS" or previous.prefix in "OES" or previous.kind != current.kind


def marks_entities(names: Iterable[str]) -> bool:
    """Return whether these tags mark entities. Otherwise, each tag has a meaning of its own, such as a part of speech.

    Tags without a type mark entities only if B, I and O all occur."""
    entity_tags = set(names) - {OUTSIDE}
    if all("-" in name and _TAG.fullmatch(name) for name in entity_tags):
        return bool(entity_tags)
    return {"B", "I", OUTSIDE} <= set(names) and all(len(name) == 1 and _TAG.fullmatch(name) for name in entity_tags)


def sort_tags(names: Iterable[str]) -> tuple[str, ...]:
    """Sort tags: O first, then by type, and each type in the order B, I, E, S. Other tags are sorted alphabetically."""
    names = set(names)
    if not marks_entities(names):
        return tuple(sorted(names))

    def sort_key(name: str) -> tuple[str, int, str]:
        prefix, kind = split_tag(name)
        return ("", 0, "") if prefix == OUTSIDE else (kind, _PREFIX_ORDER.index(prefix), name)

    return tuple(sorted(names, key=sort_key))


@dataclass(slots=True)
class TagSurvey:
    """Counts of the tags in many sentences, and of two signs of their tagging scheme.

    `inside_start_count` counts entities that begin with I-. `needless_begin_count` counts entities that begin with B-
    where IOB1 would write I-."""

    counts: Counter[str] = field(default_factory=Counter)
    inside_start_count: int = 0
    needless_begin_count: int = 0

    def add(self, tags: Sequence[str]) -> None:
        self.counts.update(tags)
        previous_parts = _OUTSIDE_PARTS
        for current_parts in map(split_tag, tags):
            if current_parts.prefix == "I" and _begins(previous_parts, current_parts):
                self.inside_start_count += 1
            elif current_parts.prefix == "B" and previous_parts.kind != current_parts.kind:
                self.needless_begin_count += 1
            previous_parts = current_parts

    @property
    def scheme(self) -> Scheme:
        """Tagging scheme that the counts show: "plain" for tags that mark no entities; "BIOES" includes BILOU."""
        if not marks_entities(self.counts):
            return "plain"
        if any(split_tag(name).prefix in "ES" for name in self.counts if name != OUTSIDE):
            return "BIOES"
        return "IOB1" if self.inside_start_count and not self.needless_begin_count else "IOB2"


class Span(NamedTuple):
    start: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Tagged:
    """The words and tags of a row. `extended_span_count` counts spans that began or ended inside a word and were
    extended to the whole word. `counts_utf16`: spans count UTF-16 units, as in JavaScript, not characters."""

    words: list[str]
    tags: list[str]
    extended_span_count: int = 0
    counts_utf16: bool = False


def tagged_text(text: str, values: object, where: str) -> Tagged:
    """Return the words of a text with the tags of its spans.

    Raises DataError for spans that cannot be read, overlap, exceed the text, or cover another text than they state."""
    refuse_surrogates(text, where)
    numbered_values = enumerate(_span_list(values, where), 1)
    stated_spans = [(_parse_span(value, number, where), _stated_text(value)) for number, value in numbered_values]
    counts_utf16 = False
    if problem := _span_problem(text, stated_spans):
        converted_spans = _from_utf16(text, stated_spans)
        if converted_spans is None or _span_problem(text, converted_spans):
            raise DataError(problem, where=where, hint=_OFFSETS_HINT)
        stated_spans, counts_utf16 = converted_spans, True
    spans = sorted(span for span, _ in stated_spans)
    for first, second in pairwise(spans):
        if second.start < first.end:
            raise DataError(f"the spans {_shown(first)} and {_shown(second)} overlap", where=where)
    words = word_offsets(text)
    if not words:
        raise DataError("the text has no words", where=where)
    tags, extended_count = _tags_of_spans(words, spans, where)
    return Tagged([text[start:end] for start, end in words], tags, extended_count, counts_utf16)


def _span_list(values: object, where: str) -> Sequence[object]:
    """Return the spans as a list, also from an object of lists, as `datasets` stores them. Raises DataError."""
    values = transposed(values)
    if not isinstance(values, list | tuple):
        raise DataError(f"the spans are {kind_of_value(values)}, not a list", where=where, hint=_SPAN_HINT)
    return values


def tagged_words(words: Sequence[str], values: object, where: str, *, end_is_inclusive: bool) -> Tagged:
    """Return the words with tags, from spans that give word numbers. Raises DataError like `tagged_text`. With
    `end_is_inclusive`, the end of a span is its last word, as in GLiNER, instead of the word after it."""
    spans = sorted(_parse_span(value, number, where) for number, value in enumerate(_span_list(values, where), 1))
    spans = [span._replace(end=span.end + end_is_inclusive) for span in spans]
    for first, second in pairwise(spans):
        if second.start < first.end:
            raise DataError(f"the spans {_shown(first)} and {_shown(second)} overlap", where=where)
    if outside_span := next((span for span in spans if not 0 <= span.start < span.end <= len(words)), None):
        raise DataError(f"the span {_shown(outside_span)} is not within the {len(words):,} words", where=where)
    tags, _ = _tags_of_spans([(position, position + 1) for position in range(len(words))], spans, where)
    return Tagged(list(words), tags)


def _stated_text(value: object) -> str | None:
    """Return the text that a span claims to cover, or None."""
    texts = [value.get(name) for name in _SPAN_TEXTS] if isinstance(value, Mapping) else []
    return next((text for text in texts if isinstance(text, str)), None)


def _span_problem(text: str, stated_spans: Sequence[tuple[Span, str | None]]) -> str:
    """Return the problem of the first span that exceeds the text or differs from its stated text; "" without one."""
    for span, stated_text in stated_spans:
        if not 0 <= span.start < span.end <= len(text):
            return f"the span {_shown(span)} is not within the {len(text):,} characters of the text"
        covered_text = text[span.start : span.end]
        if stated_text is not None and stated_text.strip() != covered_text.strip():
            difference = f"covers '{one_line(covered_text, 40)}', but its text is '{one_line(stated_text, 40)}'"
            return f"the span {_shown(span)} {difference}"
    return ""


def _from_utf16(text: str, stated_spans: Sequence[tuple[Span, str | None]]) -> list[tuple[Span, str | None]] | None:
    """Convert spans that count UTF-16 units to spans of characters; None if one begins or ends inside a character."""
    unit_offsets = accumulate((1 + (ord(character) > 0xFFFF) for character in text), initial=0)
    position_of_unit = {unit: position for position, unit in enumerate(unit_offsets)}
    converted_spans = [
        (span._replace(start=position_of_unit.get(span.start, -1), end=position_of_unit.get(span.end, -1)), stated_text)
        for span, stated_text in stated_spans
    ]
    return None if any(-1 in span[:2] for span, _ in converted_spans) else converted_spans


def word_offsets(text: str) -> list[tuple[int, int]]:
    """Return the (start, end) of each word, in characters."""
    # Vowel signs of Tamil and Hindi are marks instead of letters.
    in_words = (sign.isalnum() or sign in _JOINERS or unicodedata.category(sign)[0] == "M" for sign in text)
    kinds = ("w" if in_word else " " if sign.isspace() else "." for sign, in_word in zip(text, in_words, strict=True))
    return [match.span() for match in re.finditer(r"w+|\.", "".join(kinds))]


def _tags_of_spans(offsets: Sequence[tuple[int, int]], spans: Sequence[Span], where: str) -> tuple[list[str], int]:
    """Return the tag of each word, and the number of spans that were extended. `offsets`: (start, end) of each word."""
    tags, extended_count, word_index = [OUTSIDE] * len(offsets), 0, 0
    for span in spans:
        while word_index < len(offsets) and offsets[word_index][1] <= span.start:
            word_index += 1
        first_word = word_index
        while word_index < len(offsets) and offsets[word_index][0] < span.end:
            if word_index == first_word and tags[word_index] != OUTSIDE:
                raise DataError(f"the span {_shown(span)} shares a word with the previous span", where=where)
            tags[word_index] = f"{'B' if word_index == first_word else 'I'}-{span.label}"
            word_index += 1
        if word_index == first_word:
            raise DataError(f"the span {_shown(span)} contains no word", where=where)
        extended_count += offsets[first_word][0] < span.start or offsets[word_index - 1][1] > span.end
        # The next span may begin in the word that this one ends in.
        word_index -= 1
    return tags, extended_count


def _parse_span(value: object, number: int, where: str) -> Span:
    """Parse the span at position `number`. Raises DataError if it lacks a start, an end or a named label."""
    if isinstance(value, Mapping):
        key_lists = _SPAN_KEYS.values()
        parts: list[Any] = [next((value[name] for name in names if name in value), None) for names in key_lists]
        offsets = next((value[name] for name in _OFFSETS_KEYS if name in value), None)
        offsets = offsets[0] if isinstance(offsets, list) and len(offsets) == 1 else offsets
        if isinstance(offsets, list) and len(offsets) == 2:
            parts[:2] = offsets
        if parts[1] is None and type(parts[0]) is int and type(value.get("length")) is int:
            parts[1] = parts[0] + value["length"]
    else:
        parts = list(value) if isinstance(value, list | tuple) else []
    if len(parts) == 3 and type(parts[2]) is int:
        problem = f"the label of span {number:,} is the number {parts[2]}, which has no name"
        raise DataError(problem, where=where, hint=_NAMES_HINT)
    if len(parts) == 3 and isinstance(parts[2], list) and len(parts[2]) == 1:
        parts[2] = parts[2][0]  # Label Studio has a list of labels for each span
    if len(parts) != 3 or not all(type(part) is int for part in parts[:2]) or not isinstance(parts[2], str):
        raise DataError(f"span {number:,} cannot be read", where=where, hint=_SPAN_HINT)
    start, end, label = parts
    span = Span(start, end, label.strip())
    if not span.label:
        raise DataError(f"span {number:,} has no label", where=where, hint=_SPAN_HINT)
    return span


def _shown(span: Span) -> str:
    return f"{span.start}-{span.end} ({one_line(span.label, 30)})"


@dataclass(frozen=True, slots=True)
class TagColumns:
    """The columns of words and tags. `tags_are_spans`: the words are a text, and the tags are spans of this text.

    `word_span_end`: the words are a list, the tags are spans that give word numbers, and this string says whether their
    end is inclusive. `is_export`: the rows are a full export of Label Studio."""

    words: str
    tags: str
    tags_are_spans: bool
    note: str = ""
    word_span_end: str = ""
    is_export: bool = False

    def read(self, row: Row) -> Tagged:
        """Return the words and tags of a row. Raises DataError if it cannot be used."""
        row = _from_label_studio(row) if self.is_export else row
        if self.tags_are_spans:
            refuse_rejected(row)
            return tagged_text(string_of(row, self.words), _parse_list(value_of(row, self.tags)), row.where)
        words = _words_in(row, self.words)
        if self.word_span_end:
            spans = _parse_list(value_of(row, self.tags))
            return tagged_words(words, spans, row.where, end_is_inclusive=self.word_span_end == _INCLUSIVE)
        tags = _strings_in(row, self.tags, "tag", len(words))
        return Tagged(words, [tag.strip() for tag in tags])


@dataclass(frozen=True, slots=True)
class InputWords:
    """The column of the words. `is_text`: it holds texts, which have to be split into words."""

    column: str
    is_text: bool

    def read(self, row: Row) -> tuple[str, list[tuple[int, int]]]:
        """Return the text of a row, and the (start, end) of its words in it. Listed words are joined with spaces."""
        if not self.is_text:
            words = _words_in(row, self.column)
            word_ends = list(accumulate(len(word) + 1 for word in words))
            return " ".join(words), [(end - 1 - len(word), end - 1) for word, end in zip(words, word_ends, strict=True)]
        text = string_of(row, self.column)
        refuse_surrogates(text, row.where)
        if offsets := word_offsets(text):
            return text, offsets
        raise DataError("the text has no words", where=row.where)


_INCLUSIVE, _EXCLUSIVE = "with an inclusive end", "with an exclusive end"


def _from_label_studio(row: Row) -> Row:
    """Convert a row of a full export to a text with its spans. Raises DataError unless it has one of each."""
    data, annotations = value_of(row, "data"), value_of(row, "annotations")
    texts = [text for text in data.values() if isinstance(text, str)] if isinstance(data, Mapping) else []
    annotations = annotations if isinstance(annotations, list) else []
    annotations = [item for item in annotations if isinstance(item, Mapping) and not item.get("was_cancelled")]
    if len(texts) != 1 or len(annotations) != 1:
        found_counts = f"{quantity(len(texts), 'text')} and {quantity(len(annotations), 'annotation')}"
        problem = f"the row has {found_counts} instead of one text and one annotation"
        raise DataError(problem, where=row.where, hint="export the data as JSON-MIN or as CoNLL, or remove the row")
    results = annotations[0].get("result") or []
    spans = [item["value"] for item in results if isinstance(item, Mapping) and "labels" in (item.get("value") or {})]
    return Row(row.where, {"text": texts[0], "label": spans})


def _end_of_word_spans(head: Sequence[Row], words: str, spans: str) -> str:
    """Return _INCLUSIVE or _EXCLUSIVE for the ends of spans that give word numbers: what all first rows permit. If they
    permit both, the name of the column decides. Raises DataError if the ends are unclear."""
    spans_with_counts = [
        (span, len(_split_or_parse(row.values.get(words))))
        for row in head
        for number, value in enumerate(_span_list(_parse_list(row.values.get(spans)), row.where), 1)
        for span in [_parse_span(value, number, row.where)]
    ]
    is_allowed_by_end = {_INCLUSIVE: all(span.end < word_count for span, word_count in spans_with_counts)}
    is_allowed_by_end[_EXCLUSIVE] = all(span.start < span.end for span, _ in spans_with_counts)
    usual_end = {"ner": _INCLUSIVE, "entities": _EXCLUSIVE}.get(spans.strip().lower(), "")
    if usual_end and is_allowed_by_end[usual_end]:
        return usual_end
    allowed_ends = [end for end, is_allowed in is_allowed_by_end.items() if is_allowed]
    if len(allowed_ends) == 1:
        return allowed_ends[0]
    problem = f"the spans in '{_short(spans)}' count words, but it is unclear whether their end is inclusive"
    raise DataError(problem, where=file_of(head), hint=_ROWS_HINT)


def find_words(head: Sequence[Row], words: str, tags: str) -> InputWords:
    """Return the column of the words: the one of training if there are tags, else a usual column or the text column."""
    try:
        columns = find_tag_columns(head, words, tags)
        return InputWords(columns.words, columns.tags_are_spans)
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
    """Choose the columns of words and tags by the settings and the first rows. Raises DataError if unclear."""
    names, label = columns_of(head), file_of(head)
    is_export = {*names} >= _LABEL_STUDIO and AUTO == words == tags
    if is_export:
        head = [_from_label_studio(row) for row in head]
        names = columns_of(head)
    for setting, name in (("data.text_column", words), ("data.label_column", tags)):
        if name != AUTO and name not in names:
            raise missing_column(name, label, names, key=setting)
    columns = usual_columns(WORD_COLUMNS + TEXT_COLUMNS, names) if words == AUTO else [words]
    for column in columns:
        if any(isinstance(part, list) for row in head for part in _split_or_parse(row.values.get(column)) or ()):
            hint = f"write one row per sentence: {_ROWS_HINT}"
            raise DataError(f"each row has several sentences in '{_short(column)}'", where=label, hint=hint)
        if tag_columns := _tag_candidates(head, names, column, tags):
            are_spans = _is_text(head, column) and _are_spans(head, tag_columns[0])
            _refuse_single_words(head, column)
            row_tags = [_split_or_parse(row.values.get(tag_columns[0])) for row in head]
            tag_lists = [value for value in row_tags if isinstance(value, list)]
            numbers = (type(tag) is int or str(tag).isdigit() for value in tag_lists for tag in value)
            if any(tag_lists) and all(numbers):
                # Reported once for the table instead of for each row.
                message = f"the tags in '{_short(tag_columns[0])}' are numbers, which have no names"
                raise DataError(message, where=label, hint=_NAMES_HINT)
            note = _note_of_columns(column, tag_columns, are_spans, label, AUTO in (words, tags))
            return TagColumns(column, tag_columns[0], are_spans, note, is_export=is_export)
    for column in columns:
        span_names = [tags] if tags != AUTO else usual_columns(("ner", *SPAN_COLUMNS), names)
        tag_columns = [name for name in span_names if _are_spans(head, name)]
        if tag_columns and any(isinstance(_split_or_parse(row.values.get(column)), list) for row in head):
            end_rule = _end_of_word_spans(head, column, tag_columns[0])
            note = f"{_note_of_columns(column, tag_columns, True, label, True)}, which count words from 0, {end_rule}"
            return TagColumns(column, tag_columns[0], False, note, end_rule)
    problem = f"no column holds the tags of '{_short(columns[0])}'" if columns else "no column holds words or a text"
    setting = "data.label_column" if columns else "data.text_column"
    raise DataError(problem, where=label, hint=f"set {setting}, or {_ROWS_HINT}; columns found: {listed(names)}")


def _tag_candidates(head: Sequence[Row], names: Sequence[str], words: str, setting: str) -> list[str]:
    """Return the columns that may hold tags for the column `words`, the most likely first."""
    if setting != AUTO:
        return [setting]
    spans = [name for name in usual_columns(SPAN_COLUMNS, names) if _are_spans(head, name)]
    names = [name for name in usual_columns(TAG_COLUMNS, names) if name not in (words, *spans)]
    tag_columns = [name for name in names if not _are_spans(head, name, filled=True)]
    if not _is_text(head, words):
        return tag_columns
    return spans or [name for name in tag_columns if any(isinstance(row.values.get(name), str | list) for row in head)]


def _is_text(head: Sequence[Row], name: str) -> bool:
    values = [value for row in head if (value := row.values.get(name)) is not None]
    return bool(values) and all(isinstance(value, str) for value in values)


def _are_spans(head: Sequence[Row], name: str, *, filled: bool = False) -> bool:
    """Return whether a column holds lists of spans. Empty lists count, unless the column must be `filled`."""
    values = (transposed(_parse_list(row.values.get(name))) for row in head)
    span_lists = [value for value in values if isinstance(value, list | tuple)]
    items = [item for value in span_lists for item in value]
    return bool(items if filled else span_lists) and not any(isinstance(item, str | int) for item in items)


def _refuse_single_words(head: Sequence[Row], column: str) -> None:
    """Raise DataError for a table with one word per row and no column that separates sentences."""
    values = [row.values.get(column) for row in head]
    if len(values) > 1 and all(isinstance(value, str) and len(_split_or_parse(value)) == 1 for value in values):
        problem = f"each row has one word in '{_short(column)}', and no column shows which words form a sentence"
        hint = "add a column sentence_id, or write CoNLL, with a blank line after each sentence"
        raise DataError(problem, where=file_of(head), hint=hint)


def _parse_list(value: object) -> object:
    """Return the list that a string holds in JSON or in Python's notation; return other values unchanged."""
    text = value.strip() if isinstance(value, str) else ""
    if text[:1] != "[" or text[-1:] != "]":
        return value
    parsed_value = written_value(text)
    return parsed_value if isinstance(parsed_value, list) else value


def _split_or_parse(value: object) -> Any:
    """Return the list that a string holds, or else its parts between white space; return other values unchanged."""
    parsed_value = _parse_list(value)
    return parsed_value.split() if isinstance(parsed_value, str) else parsed_value


def _words_in(row: Row, column: str) -> list[str]:
    words = _strings_in(row, column, "word")
    if not words:
        raise DataError("the row has no words", where=row.where)
    checked_text(" ".join(words), row.where)
    return words


def _strings_in(row: Row, column: str, noun: str, expected_count: int | None = None) -> list[str]:
    """Return the strings in a list column. Raises DataError if one is empty, or if their number is unexpected."""
    value, where = value_of(row, column), row.where
    strings = _split_or_parse(value)
    if isinstance(value, str) and _is_broken_list(value, strings, expected_count is not None):
        raise DataError(f"the column '{_short(column)}' cannot be read as a list", where=where, hint=_LIST_HINT)
    if not isinstance(strings, list | tuple):
        raise DataError(f"the column '{_short(column)}' is {kind_of_value(value)}, not a list of {noun}s", where=where)
    if expected_count is not None and len(strings) != expected_count:
        problem = f"the row has {quantity(expected_count, 'word')} but {quantity(len(strings), noun)}"
        raise DataError(problem, where=where)
    for number, string in enumerate(strings, start=1):
        if expected_count is not None and type(string) is int:
            message = f"{noun} {number:,} is the number {string}, which has no name"
            raise DataError(message, where=where, hint=_NAMES_HINT)
        if not isinstance(string, str):
            raise DataError(f"{noun} {number:,} is {kind_of_value(string)}, not a string", where=where)
        if not string.strip():
            raise DataError(f"{noun} {number:,} is empty", where=where)
    return list(strings)


def _is_broken_list(text: str, parts: object, is_tags: bool) -> bool:
    """Return whether text that was split at white space looks like a list. Words may be brackets, but not tags."""
    first_characters = text.lstrip()[:2]
    is_bracketed = first_characters[:1] == "[" and text.rstrip()[-1:] == "]"
    return is_bracketed and parts == text.split() and (is_tags or first_characters in ("['", '["'))


def _short(column: str) -> str:
    return one_line(column, 40)


def _note_of_columns(words: str, tags: Sequence[str], are_spans: bool, label: str, was_guessed: bool) -> str:
    if not was_guessed:
        return ""
    other_note = f" (other candidates: {listed(tags[1:])})" if tags[1:] else ""
    nouns = ("text", "spans") if are_spans else ("words", "tags")
    columns_text = f"in the column '{_short(words)}' of {label}, the {nouns[1]} in '{_short(tags[0])}'{other_note}"
    return f"the {nouns[0]} {'is' if are_spans else 'are'} {columns_text}"
