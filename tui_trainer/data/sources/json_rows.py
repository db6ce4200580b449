"""Rows of JSON files: one object per line, a list of objects, or an object that contains one such list.

A list is parsed one object at a time, so a file of any size needs no more memory than its largest row. Tables that are
stored by columns, as pandas writes them, are read as a whole. A text with annotations, `["text", {"entities": [...]}]`
in spaCy's form, is a row as well, and each question of SQuAD's articles is one.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, BinaryIO, NoReturn

from tui_trainer.data.columns.row import Row, kind_of_value
from tui_trainer.data.decoding import MAX_LINE_BYTES, chunks_of, decode_utf8, lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

FIRST_LINE_BYTES = 4 * MIB  # a longer first line of a .json is not considered a row
CONTEXT_CHARACTERS = 40
CUT_OFF_CHARACTERS = 16  # an error this near to the end of the window may be an incomplete word
ROW_HINT = "expected one JSON object per line"
LIST_HINT = "expected a list of objects, an object with one such list, or one object per line"
SPACE = re.compile(r"[ \t\r\n]*")
# The keys of items that are parts of a row: the turns of a conversation, and its tools.
_PARTS_OF_ROWS = ({"role", "content"}, {"from", "value"}, {"type", "function"})
_ANNOTATIONS = ("entities", "cats", "spans")  # in a row of spaCy


def read_json(content: BinaryIO, label: str, problems: ProblemList, *, usually_lines: bool) -> Iterator[Row]:
    """Yield the rows of a JSON file, whose content decides on its form. `usually_lines`: its name promises lines."""
    is_lines = not is_one_json(content) if usually_lines else _is_json_lines(content)
    content.seek(0)
    yield from (json_lines if is_lines else _rows_of_json)(content, label, problems)


def json_lines(
    content: BinaryIO, label: str, problems: ProblemList, *, lines_before: int = 0, bytes_before: int = 0
) -> Iterator[Row]:
    """Yield the row on each line of `content`, which is a file or what follows this many lines and bytes of it."""
    for line_number, raw_line, offset in lines_of(content, label, rows=True, line=lines_before, offset=bytes_before):
        where = f"{label}, line {line_number}"
        try:
            if not raw_line.isspace():
                text = decode_utf8(raw_line, label, line=line_number, offset=offset).rstrip("\r\n")
                yield _row(parse_json_line(text, where), where, ROW_HINT)
        except DataError as error:
            problems.add(error)


def _rows_of_json(content: BinaryIO, label: str, problems: ProblemList) -> Iterator[Row]:
    text = JsonText(chunks_of(content, label), label)
    first_character = text.peek()
    if first_character == "[":
        text.take("[")
        yield from _rows_of_list(text, label, problems)
    elif first_character == "{":
        yield from _rows_of_objects(text, label, problems)
    elif first_character:
        text.raise_error("the file is neither a list nor an object", LIST_HINT)
    if next_character := text.peek():
        text.raise_error(f"unexpected '{one_line(next_character)}' after the end of the JSON", LIST_HINT)


def parse_json_line(text: str, where: str) -> object:
    """Parse one line of JSON. Raises DataError with the column and up to 40 characters around it."""
    try:
        return _DECODER.decode(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data" and text[error.pos :].strip() == ",":  # a line of a list without brackets
            return _DECODER.decode(text[: error.pos])
        problem = f"broken JSON at column {error.pos + 1}: {error.msg}, near {_context(text, error.pos)}"
        raise DataError(problem, where=where, hint=ROW_HINT) from None
    except RecursionError:
        raise DataError("the JSON is nested too deeply", where=where) from None
    except ValueError as error:  # a repeated key, or a number with more than 4,300 digits
        raise DataError(f"the JSON cannot be read: {one_line(str(error), 60)}", where=where) from None


def _without_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Convert pairs to a dict. Raises ValueError for a repeated key: a parser would silently keep the last value."""
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        repeated_name = next(name for position, name in enumerate(names) if name in names[:position])
        raise ValueError(f"an object has the key '{one_line(repeated_name, 30)}' twice")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_without_repeated_keys)


class JsonText:
    """A window that moves over JSON text. It grows until it holds a whole value, and drops what was already read."""

    def __init__(self, chunks: Iterator[str], label: str) -> None:
        self._chunks = chunks
        self._label = label
        self._text = ""
        self._offset = 0
        self._line = 1  # of the first character of the window
        self._column = 1

    def peek(self) -> str:
        """Return the next character that is not white space, or "" at the end."""
        while True:
            space_match = SPACE.match(self._text, self._offset)
            self._offset = space_match.end() if space_match else self._offset
            if self._offset < len(self._text):
                return self._text[self._offset]
            if not self._grow(1):
                return ""

    def take(self, expected: str) -> str:
        """Read the next character, which must be one of `expected`, and return it."""
        character = self.peek()
        if not character or character not in expected:
            found_text = f"'{one_line(character)}'" if character else "the end of the file"
            self.raise_error(f"expected {' or '.join(map(repr, expected))}, found {found_text}", LIST_HINT)
        self._offset += 1
        return character

    def value(self) -> object:
        """Read the next value. Raises DataError if it is invalid or longer than MAX_LINE_BYTES."""
        self.peek()
        while True:
            value, problem, characters_left = None, "", len(self._text) - self._offset
            try:
                value, value_end = _DECODER.raw_decode(self._text, self._offset)
                is_cut_off = value_end == len(self._text)
            except json.JSONDecodeError as error:
                problem, value_end = error.msg, error.pos
                is_near_end = value_end >= len(self._text) - CUT_OFF_CHARACTERS
                is_cut_off = is_near_end or problem.startswith("Unterminated string")
            except RecursionError:
                self.raise_error("the JSON is nested too deeply")
            except ValueError as error:  # a repeated key, or a number with more than 4,300 digits
                self.raise_error(f"the JSON cannot be read: {one_line(str(error), 60)}")
            if is_cut_off and characters_left > MAX_LINE_BYTES:
                message = f"the row is longer than {format_bytes(MAX_LINE_BYTES)}"
                self.raise_error(message, "split the row into several rows")
            value_characters = value_end - self._offset
            if is_cut_off and self._grow(max(1, characters_left)):
                continue
            self._offset += value_characters
            if problem:
                self.raise_error(f"broken JSON: {problem}, near {_context(self._text, self._offset)}", LIST_HINT)
            return value

    def rest_of_list(self, is_after_value: bool, *, may_end_in_comma: bool = False) -> Iterator[object]:
        """Yield the remaining values of a list whose beginning was read, and read its closing bracket."""
        while self.peek() != "]":
            if is_after_value:
                self.take(",")
                if may_end_in_comma and self.peek() == "]":
                    break
            yield self.value()
            is_after_value = True
        self.take("]")

    def raise_error(self, message: str, hint: str = "") -> NoReturn:
        """Raise DataError with this message and the line and column of the window."""
        line, column = self._position()
        raise DataError(message, where=f"{self._label}, line {line}, column {column}", hint=hint)

    def _position(self) -> tuple[int, int]:
        text_before, line_break, last_line = self._text[: self._offset].rpartition("\n")
        line_count = text_before.count("\n") + len(line_break)
        return self._line + line_count, len(last_line) + (1 if line_break else self._column)

    def _grow(self, characters: int) -> bool:
        """Drop what was read, and read this many characters more. Returns False at the end of the file."""
        self._line, self._column = self._position()
        pieces, characters_missing = [self._text[self._offset :]], characters
        for chunk in self._chunks:
            pieces.append(chunk)
            characters_missing -= len(chunk)
            if characters_missing <= 0:
                break
        self._text, self._offset = "".join(pieces), 0
        return characters_missing < characters


def _is_json_lines(content: BinaryIO) -> bool:
    """Return whether the first line is a complete row and the file has more lines."""
    first_line = _first_line(content)
    has_one_line = not first_line.endswith(b"\n") or _is_rest_blank(content)
    return not has_one_line and isinstance(_merged_pair(_parse_or_none(first_line)), dict)


def is_one_json(content: BinaryIO) -> bool:
    """Return whether the file is one JSON value: one that spans several lines, or a list of rows on the only line."""
    first_line = _first_line(content)
    if first_line.strip() in (b"[", b"{"):
        return True
    if not first_line.startswith(b"["):
        return False
    value = _parse_or_none(first_line)
    return value is None or (all(isinstance(item, dict | list) for item in value) and _is_rest_blank(content))


def _first_line(content: BinaryIO) -> bytes:
    lines = iter(lambda: content.readline(FIRST_LINE_BYTES), b"")
    return next(filter(None, (line.removeprefix(b"\xef\xbb\xbf").lstrip() for line in lines)), b"")


def _is_rest_blank(content: BinaryIO) -> bool:
    return all(piece.isspace() for piece in iter(lambda: content.read(4096), b""))


def _parse_or_none(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _rows_of_list(text: JsonText, label: str, problems: ProblemList, head: tuple[object, ...] = ()) -> Iterator[Row]:
    """Yield the rows of a list whose opening bracket and `head` objects were already read."""
    later_values = text.rest_of_list(bool(head), may_end_in_comma=True)
    for item_number, value in enumerate(chain(head, later_values), start=1):
        where = f"{label}, item {item_number:,}"
        try:
            row = _row(value, where, "expected a list of objects")
            yield from _questions(row, problems) if _is_article(row.values) else (row,)
        except DataError as error:
            problems.add(error)


def _rows_of_objects(text: JsonText, label: str, problems: ProblemList) -> Iterator[Row]:
    """Yield the rows that an object holds: those in its only list, those of a table stored by columns, or the object
    itself as one row. Further objects after it are rows as well."""
    text.take("{")
    columns: dict[str, Any] = {}
    list_name = ""
    while text.peek() != "}":
        if text.peek() != '"':
            text.take('"')
        name = str(text.value())
        text.take(":")
        if text.peek() != "[":
            columns[name] = text.value()
        elif list_name:
            problem = f"the object has a second list, '{one_line(name, 40)}', after '{one_line(list_name, 40)}'"
            text.raise_error(problem, LIST_HINT)
        else:
            text.take("[")
            first_items: tuple[Any, ...] = (text.value(),) if text.peek() == "{" else ()
            if first_items and not any(part_keys <= first_items[0].keys() for part_keys in _PARTS_OF_ROWS):
                if other := next((other for other, value in columns.items() if isinstance(value, list)), ""):
                    problem = f"the object has a second list, '{one_line(name, 40)}', after '{one_line(other, 40)}'"
                    text.raise_error(problem, LIST_HINT)
                list_name = name
                yield from _rows_of_list(text, label, problems, first_items)
            else:
                columns[name] = [*first_items, *text.rest_of_list(bool(first_items))]
        if text.peek() != "}":
            text.take(",")
    text.take("}")
    if list_name:
        return
    rows = [] if text.peek() == "{" else _rows_by_columns(columns, label)
    for item_number, values in enumerate(rows or ([columns] if columns else []), start=1):
        yield Row(f"{label}, item {item_number:,}", values)
    item_number = 1
    while text.peek() == "{":
        item_number += 1
        yield _row(text.value(), f"{label}, item {item_number:,}", LIST_HINT)


def _rows_by_columns(table: Mapping[str, Any], label: str) -> list[dict[str, Any]]:
    """Return the rows of a table that pandas or `datasets` wrote by columns, or by row numbers; [] if the object is a
    single row. Raises DataError for columns of different lengths."""
    columns = list(table.values())
    if all(isinstance(value, dict) for value in columns):
        keys = list(columns[0]) if columns else []
        if not keys or any(list(value) != keys for value in columns):
            return []
        are_numbers = [all(map(str.isdigit, names)) for names in (table, keys)]
        if are_numbers == [False, True]:
            return [{name: column[number] for name, column in table.items()} for number in keys]
        return columns if are_numbers == [True, False] else []
    if {"columns", "data"} <= table.keys() <= {"columns", "index", "data"}:
        try:
            return [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
        except (TypeError, ValueError):
            raise DataError("the rows in 'data' do not match 'columns'", where=label, hint=LIST_HINT) from None
    if not all(isinstance(value, list) for value in columns):
        return []
    # A single row has turns of a conversation, or the words of one sentence.
    has_words = any(isinstance(word, str) for name in ("tokens", "words") for word in table.get(name, ()))
    if has_words or any(isinstance(item, dict) for value in columns for item in value):
        return []
    lengths = {name: len(value) for name, value in table.items()}
    if len({*lengths.values()}) > 1:
        shown_lengths = ", ".join(f"'{one_line(name, 30)}' {length:,}" for name, length in [*lengths.items()][:4])
        raise DataError(f"the columns have different lengths: {shown_lengths}", where=label, hint=LIST_HINT)
    return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


def _is_article(values: Mapping[str, Any]) -> bool:
    """Return whether the object is an article of SQuAD: {"title", "paragraphs": [{"context", "qas": [...]}]}."""
    paragraphs = values.get("paragraphs")
    if paragraphs == []:
        return values.keys() <= {"title", "paragraphs"}
    first_paragraph = paragraphs[0] if isinstance(paragraphs, list) else None
    return isinstance(first_paragraph, dict) and "qas" in first_paragraph


def _questions(article: Row, problems: ProblemList) -> Iterator[Row]:
    """Yield a row for each question of an article of SQuAD, with its context and the question's other keys."""
    title_column = {"title": article.values["title"]} if "title" in article.values else {}
    paragraphs: Any = article.values["paragraphs"]
    for paragraph_number, paragraph in enumerate(paragraphs, start=1):
        where = f"{article.where}, paragraph {paragraph_number:,}"
        questions = paragraph.get("qas") if isinstance(paragraph, dict) else None
        if not isinstance(questions, list) or "context" not in paragraph:
            problems.add(DataError("the paragraph has no context or no list of questions (qas)", where=where))
            continue
        for question_number, question in enumerate(questions, start=1):
            try:
                row = _row(question, f"{where}, question {question_number:,}", "expected a list of questions")
                yield Row(row.where, {**title_column, "context": paragraph["context"], **row.values})
            except DataError as error:
                problems.add(error)


def _row(value: object, where: str, hint: str) -> Row:
    if not isinstance(value, dict) and not isinstance(value := _merged_pair(value), dict):
        raise DataError(f"the row is {kind_of_value(value)}, not an object", where=where, hint=hint)
    return Row(where, value)


def _merged_pair(value: object) -> object:
    """Convert `["text", {"entities": [...]}]` to an object with the key "text"; return other values unchanged."""
    match value:
        case [str(text), dict(marks)] if any(name in marks for name in _ANNOTATIONS) and "text" not in marks:
            return {"text": text, **marks}
    return value


def _context(text: str, position: int) -> str:
    start = max(0, min(position, len(text)) - CONTEXT_CHARACTERS // 2)
    excerpt = one_line(text[start : start + CONTEXT_CHARACTERS], CONTEXT_CHARACTERS)
    return f"\u00ab{excerpt}\u00bb"
