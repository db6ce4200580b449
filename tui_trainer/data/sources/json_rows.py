"""Rows of JSON files: one object a line, a list of objects, or an object that holds one such list.

A list is parsed one object at a time, so a file of any size needs no more memory than its largest row.
"""

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, NoReturn

import orjson

from tui_trainer.data.columns.row import Row, kind_of_value
from tui_trainer.data.decoding import MAX_LINE_BYTES, chunks_of, decoded, lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

FIRST_LINE_BYTES = 4 * MIB  # a longer first line of a .json is not taken for a row
CONTEXT_CHARACTERS = 40
TORN_CHARACTERS = 16  # a mistake so near to the end of what was read may be a word that goes on
ROW_HINT = "expected one JSON object per line"
LIST_HINT = "expected a list of objects, an object with one such list, or one object per line"
SPACE = re.compile(r"[ \t\r\n]*")
DECODER = json.JSONDecoder()


def read_json_lines(content: BinaryIO, label: str, problems: ProblemList) -> Iterator[Row]:
    """The rows of a JSONL file, read line by line; blank lines are passed over."""
    for line, raw_line, offset in lines_of(content, label, rows=True):
        where = f"{label}, line {line}"
        try:
            if not raw_line.isspace():
                text = decoded(raw_line, label, line=line, offset=offset)
                yield _row(parsed(text.rstrip("\r\n"), where), where, ROW_HINT)
        except DataError as error:
            problems.add(error)


def read_json(content: BinaryIO, label: str, problems: ProblemList) -> Iterator[Row]:
    """The rows of a .json file, whatever its form."""
    if _is_json_lines(content):
        content.seek(0)
        yield from read_json_lines(content, label, problems)
        return
    content.seek(0)
    text = JsonText(chunks_of(content, label), label)
    first = text.peek()
    if first == "[":
        yield from _items(text, label, problems)
    elif first == "{":
        yield from _objects(text, label, problems)
    elif first:
        text.broken("no list and no object", LIST_HINT)
    if rest := text.peek():
        text.broken(f"'{one_line(rest)}' after the end of the JSON", LIST_HINT)


def parsed(text: str, where: str) -> object:
    """One line of JSON. Raises DataError with the column and up to 40 characters around it."""
    try:
        return orjson.loads(text)  # twice as fast as json; what it refuses, json may take, or names better
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(
            f"broken JSON at column {error.pos + 1}: {error.msg}, near {_context(text, error.pos)}",
            where=where,
            hint=ROW_HINT,
        ) from None
    except RecursionError:
        raise DataError("the JSON is nested too deeply", where=where) from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise DataError(f"the JSON cannot be read: {one_line(str(error), 60)}", where=where) from None


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
            self.broken(f"expected {' or '.join(signs)}, found {found}", LIST_HINT)
        self._at += 1
        return sign

    def name(self) -> str:
        """The next value, which must be a string."""
        if self.peek() != '"':
            self.take('"')
        return str(self.value())

    def value(self) -> object:
        """The next value of any kind, whole. Raises DataError where it is broken or longer than MAX_LINE_BYTES."""
        self.peek()
        while True:
            complaint: json.JSONDecodeError | None = None
            value, end = None, 0
            try:
                value, end = DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                complaint = error
            except RecursionError:
                self.broken("the JSON is nested too deeply")
            except ValueError as error:  # a number of more than 4,300 digits
                self.broken(f"the JSON cannot be read: {one_line(str(error), 60)}")
            torn = end == len(self._text)
            if complaint:
                near_end = complaint.pos >= len(self._text) - TORN_CHARACTERS
                torn = near_end or complaint.msg.startswith("Unterminated string")
            used = (complaint.pos if complaint else end) - self._at
            size = len(self._text) - self._at
            if torn and size > MAX_LINE_BYTES:
                self.broken(f"the row is longer than {format_bytes(MAX_LINE_BYTES)}", "cut the text into several rows")
            if torn and self._grow(max(1, size)):
                continue
            self._at += used
            if complaint:
                self.broken(f"broken JSON: {complaint.msg}, near {_context(self._text, self._at)}", LIST_HINT)
            return value

    def broken(self, message: str, hint: str = "") -> NoReturn:
        """Raise DataError with the line and the column of the place that was reached."""
        before = self._text[: self._at]
        last_break = before.rfind("\n")
        column = self._at - last_break if last_break >= 0 else self._column + self._at
        where = f"{self._label}, line {self._line + before.count(chr(10))}, column {column}"
        raise DataError(message, where=where, hint=hint)

    def _grow(self, characters: int) -> bool:
        """Drop what was read, and read so much more. False at the end of the file."""
        dropped = self._text[: self._at]
        self._line += dropped.count("\n")
        last_break = dropped.rfind("\n")
        self._column = len(dropped) - last_break if last_break >= 0 else self._column + len(dropped)
        parts, wanted = [self._text[self._at :]], characters
        for chunk in self._chunks:
            parts.append(chunk)
            wanted -= len(chunk)
            if wanted <= 0:
                break
        self._text, self._at = "".join(parts), 0
        return wanted < characters


def _is_json_lines(content: BinaryIO) -> bool:
    """Whether the first line is a whole object and is not all that there is."""
    first = b""
    while not first.strip(b"\xef\xbb\xbf \t\r\n"):
        first = content.readline(FIRST_LINE_BYTES)
        if not first:
            return False
    if not first.endswith(b"\n") or all(piece.isspace() for piece in iter(lambda: content.read(4096), b"")):
        return False
    try:
        return isinstance(json.loads(first.decode("utf-8-sig")), dict)
    except (ValueError, RecursionError):
        return False


def _items(text: JsonText, label: str, problems: ProblemList) -> Iterator[Row]:
    """The objects of a list whose opening bracket is next."""
    text.take("[")
    number = 0
    while text.peek() != "]":
        number += 1
        value = text.value()
        where = f"{label}, item {number:,}"
        try:
            yield _row(value, where, "expected a list of objects")
        except DataError as error:
            problems.add(error)
        if text.peek() != "]":
            text.take(",")
    text.take("]")


def _objects(text: JsonText, label: str, problems: ProblemList) -> Iterator[Row]:
    """The objects of the one list in an object; or objects one after another, each of which is a row."""
    text.take("{")
    plain: dict[str, object] = {}
    found = ""
    while text.peek() != "}":
        name = text.name()
        text.take(":")
        if text.peek() != "[":
            plain[name] = text.value()
        elif found:
            text.broken(f"a second list, '{one_line(name, 40)}', after '{one_line(found, 40)}'", LIST_HINT)
        else:
            found = name
            yield from _items(text, label, problems)
        if text.peek() != "}":
            text.take(",")
    text.take("}")
    if found:
        return
    if plain:
        yield Row(f"{label}, item 1", plain)
    number = 1
    while text.peek() == "{":
        number += 1
        yield _row(text.value(), f"{label}, item {number:,}", LIST_HINT)


def _row(value: object, where: str, hint: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"the row is {kind_of_value(value)}, not an object", where=where, hint=hint)
    return Row(where, value)


def _context(text: str, position: int) -> str:
    start = max(0, min(position, len(text)) - CONTEXT_CHARACTERS // 2)
    shown = one_line(text[start : start + CONTEXT_CHARACTERS], CONTEXT_CHARACTERS)
    return f"\u00ab{shown}\u00bb"
