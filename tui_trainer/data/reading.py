"""From one file to its documents: plain text is one document, JSONL is one document a row.

Line numbers are those of the file, from 1; byte offsets are those of the unpacked content, from 0. Mistakes in rows
are collected, so that one look shows all of them; a mistake that makes the rest unreadable ends the file.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO

from tui_trainer.data.files import SourceFile, open_bytes
from tui_trainer.data.progress import Meter
from tui_trainer.errors import DataError, Problem
from tui_trainer.safe_text import one_line
from tui_trainer.units import GIB, MIB, format_bytes

MAX_LINE_BYTES = 64 * MIB
MAX_DOCUMENT_BYTES = 1 * GIB  # one text file is one document and stands in memory whole; also stops a gzip bomb
SHOWN_PROBLEMS = 10
CONTEXT_CHARACTERS = 40
NEWLINE = b"\n"
JSON_NAMES = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Document:
    """One text, and where it stands: "train.jsonl, line 12"."""

    text: str
    where: str


@dataclass(slots=True)
class ProblemList:
    """The first mistakes in full, and the number of all."""

    shown: list[Problem] = field(default_factory=list)
    count: int = 0

    def add(self, error: DataError) -> None:
        self.count += len(error.problems)
        self.shown.extend(error.problems[: SHOWN_PROBLEMS - len(self.shown)])

    def raise_any(self) -> None:
        more = self.count - len(self.shown)
        if self.count:
            rest = [Problem(message=f"and {more:,} more problems")] if more else []
            raise DataError([*self.shown, *rest])


def read_file(file: SourceFile, text_column: str, problems: ProblemList, meter: Meter, base: int) -> Iterator[Document]:
    """The documents of one file. Mistakes go into `problems`; `base` is the bytes of the files before this one."""
    try:
        with open_bytes(file) as (raw, content):
            if not file.holds_rows:
                yield Document(read_text(content, file.label), file.label)
                return
            for document in read_rows(content, file.label, text_column, problems):
                yield document
                if meter.due():
                    meter.report(base + raw.tell())
    except DataError as error:
        problems.add(error)


def read_text(content: BinaryIO, label: str) -> str:
    """The whole of a plain text file; line ends become \\n."""
    data = content.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise DataError(
            f"one document of more than {format_bytes(MAX_DOCUMENT_BYTES)}",
            where=label,
            hint="cut it into several files, or make it JSONL with one document a row",
        )
    refuse_other_encodings(data, label)
    return with_plain_line_ends(decoded(data, label, line=1))


def read_rows(content: BinaryIO, label: str, text_column: str, problems: ProblemList) -> Iterator[Document]:
    """The rows of a JSONL file, read line by line; blank lines are passed over."""
    offset = 0
    line = 0
    while raw_line := content.readline(MAX_LINE_BYTES + 1):
        line += 1
        where = f"{label}, line {line}"
        if len(raw_line) > MAX_LINE_BYTES:
            limit = format_bytes(MAX_LINE_BYTES)
            raise DataError(f"the line is longer than {limit}", where=where, hint="cut the text into several rows")
        if line == 1:
            refuse_other_encodings(raw_line, label, rows=True)
        try:
            if not raw_line.isspace():
                yield Document(row_text(raw_line, text_column, label, line, offset), where)
        except DataError as error:
            problems.add(error)
        offset += len(raw_line)


def row_text(raw_line: bytes, text_column: str, label: str, line: int, offset: int) -> str:
    """The text of one JSONL row. Raises DataError with the file, the line and the column."""
    where = f"{label}, line {line}"
    text = decoded(raw_line, label, line=line, offset=offset)
    row = parsed(text.rstrip("\r\n"), where)
    if not isinstance(row, dict):
        found = JSON_NAMES.get(type(row), "a number")
        raise DataError(f"the row is {found}, not an object", where=where, hint="expected one JSON object per line")
    if text_column not in row:
        columns = ", ".join(one_line(name, 30) for name in list(row)[:12]) or "none"
        raise DataError(
            f"there is no column '{one_line(text_column, 40)}'",
            where=where,
            hint=f"columns found: {columns}; name the right one in data.text_column",
        )
    value = row[text_column]
    if not isinstance(value, str):
        found = JSON_NAMES.get(type(value), "a number")
        raise DataError(f"the column '{one_line(text_column, 40)}' is {found}, not a string", where=where)
    refuse_surrogates(value, where)
    return with_plain_line_ends(value)


def parsed(text: str, where: str) -> object:
    """One line of JSON. Raises DataError with the column and up to 40 characters around it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        start = max(0, min(error.pos, len(text)) - CONTEXT_CHARACTERS // 2)
        context = one_line(text[start : start + CONTEXT_CHARACTERS], CONTEXT_CHARACTERS)
        raise DataError(
            f"broken JSON at column {error.pos + 1}: {error.msg}, near \u00ab{context}\u00bb",
            where=where,
            hint="expected one JSON object per line",
        ) from None
    except RecursionError:
        raise DataError("the JSON is nested too deeply", where=where) from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise DataError(f"the JSON cannot be read: {one_line(str(error), 60)}", where=where) from None


def decoded(data: bytes, label: str, *, line: int, offset: int = 0) -> str:
    """`data` as UTF-8, without a byte order mark. `line` and `offset` are those of its first byte in the file."""
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line += data.count(NEWLINE, 0, error.start)
        position = offset + error.start
        raise DataError(
            f"not UTF-8: 0x{data[error.start]:02x} at byte offset {position:,}; probably Windows-1252 or Latin-1",
            where=f"{label}, line {line}",
            hint="convert it: iconv -f WINDOWS-1252 -t UTF-8",
        ) from None


def refuse_other_encodings(data: bytes, label: str, *, rows: bool = False) -> None:
    """UTF-16 and UTF-32, and binary files. In rows, JSON itself refuses a lone NUL."""
    if wide := wide_encoding(data[:4096]):
        raise DataError(
            f"not UTF-8, from byte offset 0 on; probably {wide}",
            where=f"{label}, line 1",
            hint=f"convert it: iconv -f {wide} -t UTF-8",
        )
    if not rows and (position := data.find(b"\0")) >= 0:
        raise DataError(
            f"a binary file: NUL at byte offset {position:,}",
            where=f"{label}, line {data.count(NEWLINE, 0, position) + 1}",
            hint="data.path wants text",
        )


def wide_encoding(head: bytes) -> str:
    """ "UTF-16" or "UTF-32" by the byte order mark or by where the zero bytes stand; "" for neither."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "UTF-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "UTF-16"
    if len(head) < 8:
        return ""
    zeros = [4 * head[place::4].count(0) / len(head) for place in range(4)]
    mostly = [share > 0.8 for share in zeros]
    if sum(mostly) == 3 and min(zeros) < 0.2:
        return "UTF-32"
    return "UTF-16" if mostly in ([True, False] * 2, [False, True] * 2) and sum(zeros) < 2.4 else ""


def refuse_surrogates(text: str, where: str) -> None:
    if text.isascii():
        return
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        raise DataError(
            f"half a character (a lone surrogate, \\u{code:04x}) at character {error.start + 1} of the text",
            where=where,
        ) from None


def with_plain_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n") if "\r" in text else text
