"""Rows of JSON files: one object a line, a list of objects, or an object that holds one such list.

A list is parsed one object at a time, so a file of any size needs no more memory than its largest row. Tables that are
written by columns, as pandas does, are read whole. A text with what is marked in it, `["text", {"entities": [...]}]` as
spaCy has it, is a row as well; of SQuAD's articles each question is one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO, NoReturn

from tui_trainer.data.columns.row import Row, kind_of_value
from tui_trainer.data.decoding import MAX_LINE_BYTES, chunks_of, decoded, lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

FIRST_LINE_BYTES = 4 * MIB  # a longer first line of a .json is not taken for a row
CONTEXT_CHARACTERS = 40
TORN_CHARACTERS = 16  # a mistake so near to the end of what was read may be a word that goes on
ROW_HINT = "expected one JSON object per line"
LIST_HINT = "expected a list of objects, an object with one such list, or one object per line"
SPACE = re.compile(r"[ \t\r\n]*")
# What the items of a list have that are parts of a row: the turns of a conversation, its tools.
_PARTS_OF_ROWS = ({"role", "content"}, {"from", "value"}, {"type", "function"})
_MARKS = ("entities", "cats", "spans")  # beside a text in a row of spaCy


def read_json(content: BinaryIO, label: str, problems: ProblemList, *, usually_lines: bool) -> Iterator[Row]:
    """The rows of a JSON file. One of lines may hold a list of objects, or objects over several lines, and another one
    may have a row on each line; blank lines are passed over."""
    is_lines = not is_one_json(content) if usually_lines else _is_json_lines(content)
    content.seek(0)
    yield from (json_lines if is_lines else _json)(content, label, problems)


def json_lines(
    content: BinaryIO, label: str, problems: ProblemList, *, lines_before: int = 0, bytes_before: int = 0
) -> Iterator[Row]:
    """The row of each line of a file, or of a part of it before which so many lines and bytes stand."""
    for line, raw_line, offset in lines_of(content, label, rows=True, line=lines_before, offset=bytes_before):
        where = f"{label}, line {line}"
        try:
            if not raw_line.isspace():
                text = decoded(raw_line, label, line=line, offset=offset).rstrip("\r\n")
                yield _row(parsed(text, where), where, ROW_HINT)
        except DataError as error:
            problems.add(error)


def _json(content: BinaryIO, label: str, problems: ProblemList) -> Iterator[Row]:
    text = JsonText(chunks_of(content, label), label)
    first = text.peek()
    if first == "[":
        text.take("[")
        yield from _items(text, label, problems)
    elif first == "{":
        yield from _objects(text, label, problems)
    elif first:
        text.broken("the file is neither a list nor an object", LIST_HINT)
    if rest := text.peek():
        text.broken(f"'{one_line(rest)}' after the end of the JSON", LIST_HINT)


def parsed(text: str, where: str) -> object:
    """One line of JSON. Raises DataError with the column and up to 40 characters around it."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text[error.pos :].strip() == ",":  # a list without its brackets
            return _DECODER.decode(text[: error.pos])
        raise DataError(
            f"broken JSON at column {error.pos + 1}: {error.msg}, near {_context(text, error.pos)}",
            where=where,
            hint=ROW_HINT,
        ) from None
    except RecursionError:
        raise DataError("the JSON is nested too deeply", where=where) from None
    except ValueError as error:  # a name twice, or a number of more than 4,300 digits
        raise DataError(f"the JSON cannot be read: {one_line(str(error), 60)}", where=where) from None


def _named_once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Raises ValueError for an object with two values of one name, of which a parser keeps the last in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"an object has the key '{one_line(twice, 30)}' twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_named_once)


class JsonText:
    """A window that moves over JSON text: it grows to the value that is read, and forgets what was read."""

    def __init__(self, chunks: Iterator[str], label: str) -> None:
        self._chunks = chunks
        self._label = label
        self._text = ""
        self._at = 0
        self._line = 1
        self._column = 1  # of the first character of the window

    def peek(self) -> str:
        """The next sign that is no white space, "" at the end."""
        while True:
            found = SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._grow(1):
                return ""

    def take(self, signs: str) -> str:
        """The next sign, which must be one of `signs`."""
        sign = self.peek()
        if not sign or sign not in signs:
            found = f"'{one_line(sign)}'" if sign else "the end of the file"
            self.broken(f"expected {' or '.join(map(repr, signs))}, found {found}", LIST_HINT)
        self._at += 1
        return sign

    def value(self) -> object:
        """The next value of any kind, whole. Raises DataError where it is broken or longer than MAX_LINE_BYTES."""
        self.peek()
        while True:
            value, complaint, size = None, "", len(self._text) - self._at
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
                is_torn = end == len(self._text)
            except json.JSONDecodeError as error:
                complaint, end = error.msg, error.pos
                near_end = end >= len(self._text) - TORN_CHARACTERS
                is_torn = near_end or complaint.startswith("Unterminated string")
            except RecursionError:
                self.broken("the JSON is nested too deeply")
            except ValueError as error:  # a number of more than 4,300 digits, or a name twice
                self.broken(f"the JSON cannot be read: {one_line(str(error), 60)}")
            if is_torn and size > MAX_LINE_BYTES:
                self.broken(f"the row is longer than {format_bytes(MAX_LINE_BYTES)}", "split it into several rows")
            used = end - self._at
            if is_torn and self._grow(max(1, size)):
                continue
            self._at += used
            if complaint:
                self.broken(f"broken JSON: {complaint}, near {_context(self._text, self._at)}", LIST_HINT)
            return value

    def rest_of_list(self, is_behind_value: bool, *, may_end_in_comma: bool = False) -> Iterator[object]:
        """The values of a list up to its end, which is taken."""
        while self.peek() != "]":
            if is_behind_value:
                self.take(",")
                if may_end_in_comma and self.peek() == "]":
                    break
            yield self.value()
            is_behind_value = True
        self.take("]")

    def broken(self, message: str, hint: str = "") -> NoReturn:
        """Raise DataError with the line and the column of the place that was reached."""
        line, column = self._place()
        raise DataError(message, where=f"{self._label}, line {line}, column {column}", hint=hint)

    def _place(self) -> tuple[int, int]:
        before, line_break, last_line = self._text[: self._at].rpartition("\n")
        lines = before.count("\n") + len(line_break)
        return self._line + lines, len(last_line) + (1 if line_break else self._column)

    def _grow(self, characters: int) -> bool:
        """Drop what was read, and read so much more. False at the end of the file."""
        self._line, self._column = self._place()
        parts, wanted = [self._text[self._at :]], characters
        for chunk in self._chunks:
            parts.append(chunk)
            wanted -= len(chunk)
            if wanted <= 0:
                break
        self._text, self._at = "".join(parts), 0
        return wanted < characters


def _is_json_lines(content: BinaryIO) -> bool:
    """Whether the first line is a whole row and is not all that there is."""
    first = _first_line(content)
    is_all = not first.endswith(b"\n") or _is_rest_blank(content)
    return not is_all and isinstance(_unpaired(_value_of(first)), dict)


def is_one_json(content: BinaryIO) -> bool:
    """Whether a list or an object begins that other lines end, or the one line is a list of rows."""
    first = _first_line(content)
    if first.strip() in (b"[", b"{"):
        return True
    if not first.startswith(b"["):
        return False
    value = _value_of(first)
    return value is None or (all(isinstance(one, dict | list) for one in value) and _is_rest_blank(content))


def _first_line(content: BinaryIO) -> bytes:
    lines = iter(lambda: content.readline(FIRST_LINE_BYTES), b"")
    return next(filter(None, (line.removeprefix(b"\xef\xbb\xbf").lstrip() for line in lines)), b"")


def _is_rest_blank(content: BinaryIO) -> bool:
    return all(piece.isspace() for piece in iter(lambda: content.read(4096), b""))


def _value_of(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _items(text: JsonText, label: str, problems: ProblemList, first: tuple[object, ...] = ()) -> Iterator[Row]:
    """The objects of a list of which the opening bracket was taken, and the `first` ones."""
    rest = text.rest_of_list(bool(first), may_end_in_comma=True)
    for number, value in enumerate(chain(first, rest), start=1):
        where = f"{label}, item {number:,}"
        try:
            row = _row(value, where, "expected a list of objects")
            yield from _questions(row, problems) if _is_article(row.values) else (row,)
        except DataError as error:
            problems.add(error)


def _objects(text: JsonText, label: str, problems: ProblemList) -> Iterator[Row]:
    """The objects of the one list in an object; or objects one after another, each of which is a row; or the rows of a
    table that is written by columns."""
    text.take("{")
    plain: dict[str, Any] = {}
    found = ""
    while text.peek() != "}":
        if text.peek() != '"':
            text.take('"')
        name = str(text.value())
        text.take(":")
        if text.peek() != "[":
            plain[name] = text.value()
        elif found:
            text.broken(
                f"the object has a second list, '{one_line(name, 40)}', after '{one_line(found, 40)}'", LIST_HINT
            )
        else:
            text.take("[")
            first: tuple[Any, ...] = (text.value(),) if text.peek() == "{" else ()
            if first and not any(parts <= first[0].keys() for parts in _PARTS_OF_ROWS):
                if other := next((other for other, value in plain.items() if isinstance(value, list)), ""):
                    what = f"the object has a second list, '{one_line(name, 40)}', after '{one_line(other, 40)}'"
                    text.broken(what, LIST_HINT)
                found = name
                yield from _items(text, label, problems, first)
            else:
                plain[name] = [*first, *text.rest_of_list(bool(first))]
        if text.peek() != "}":
            text.take(",")
    text.take("}")
    if found:
        return
    rows = [] if text.peek() == "{" else _rows_by_columns(plain, label)
    for number, values in enumerate(rows or ([plain] if plain else []), start=1):
        yield Row(f"{label}, item {number:,}", values)
    number = 1
    while text.peek() == "{":
        number += 1
        yield _row(text.value(), f"{label}, item {number:,}", LIST_HINT)


def _rows_by_columns(table: Mapping[str, Any], label: str) -> list[dict[str, Any]]:
    """The rows of a table as pandas and `datasets` write it by columns, or by the numbers of its rows; none of an
    object that is a row itself. Raises DataError for columns of different lengths."""
    values = list(table.values())
    if all(isinstance(value, dict) for value in values):
        inner = list(values[0]) if values else []
        if not inner or any(list(value) != inner for value in values):
            return []
        by_number = [all(map(str.isdigit, names)) for names in (table, inner)]
        if by_number == [False, True]:
            return [{name: column[number] for name, column in table.items()} for number in inner]
        return values if by_number == [True, False] else []
    if {"columns", "data"} <= table.keys() <= {"columns", "index", "data"}:
        try:
            return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        except (TypeError, ValueError):
            raise DataError("the rows in 'data' do not match 'columns'", where=label, hint=LIST_HINT) from None
    if not all(isinstance(value, list) for value in values):
        return []
    # A row itself: turns of a conversation, or the words of one sentence.
    has_words = any(isinstance(word, str) for name in ("tokens", "words") for word in table.get(name, ()))
    if has_words or any(isinstance(item, dict) for value in values for item in value):
        return []
    lengths = {name: len(value) for name, value in table.items()}
    if len({*lengths.values()}) > 1:
        shown = ", ".join(f"'{one_line(name, 30)}' {length:,}" for name, length in [*lengths.items()][:4])
        raise DataError(f"the columns have different lengths: {shown}", where=label, hint=LIST_HINT)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _is_article(values: Mapping[str, Any]) -> bool:
    """As SQuAD has its contexts: `{"title": ..., "paragraphs": [{"context": ..., "qas": [...]}]}`."""
    paragraphs = values.get("paragraphs")
    if paragraphs == []:
        return values.keys() <= {"title", "paragraphs"}
    first = paragraphs[0] if isinstance(paragraphs, list) else None
    return isinstance(first, dict) and "qas" in first


def _questions(article: Row, problems: ProblemList) -> Iterator[Row]:
    """A row for each question of an article, with its context; what else is there of the question stays in it."""
    title = {"title": article.values["title"]} if "title" in article.values else {}
    paragraphs: Any = article.values["paragraphs"]
    for number, paragraph in enumerate(paragraphs, start=1):
        where = f"{article.where}, paragraph {number:,}"
        questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
        if not isinstance(questions, list) or "context" not in paragraph:
            problems.add(DataError("the paragraph has no context or no list of questions (qas)", where=where))
            continue
        for place, question in enumerate(questions, start=1):
            try:
                row = _row(question, f"{where}, question {place:,}", "expected a list of questions")
                yield Row(row.where, {**title, "context": paragraph["context"], **row.values})
            except DataError as error:
                problems.add(error)


def _row(value: object, where: str, hint: str) -> Row:
    if not isinstance(value, dict) and not isinstance(value := _unpaired(value), dict):
        raise DataError(f"the row is {kind_of_value(value)}, not an object", where=where, hint=hint)
    return Row(where, value)


def _unpaired(value: object) -> object:
    """`["text", {"entities": [...]}]` as an object."""
    match value:
        case [str(text), dict(marks)] if any(name in marks for name in _MARKS) and "text" not in marks:
            return {"text": text, **marks}
    return value


def _context(text: str, position: int) -> str:
    start = max(0, min(position, len(text)) - CONTEXT_CHARACTERS // 2)
    shown = one_line(text[start : start + CONTEXT_CHARACTERS], CONTEXT_CHARACTERS)
    return f"\u00ab{shown}\u00bb"
