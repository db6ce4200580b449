"""Rows of CSV and TSV files, as they are written: "NA", "null", "007" and nothing at all stay strings.

A record may go over several lines; what is said about it names the line on which it begins.
"""

import csv
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import BinaryIO

from tui_trainer.data.columns.row import Row, refuse_doubles
from tui_trainer.data.columns.text_column import ColumnChoices
from tui_trainer.data.decoding import MAX_LINE_BYTES, text_lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

TAB = "\t"
DELIMITERS = (",", ";", TAB)
DELIMITER_NAMES = {",": "','", ";": "';'", TAB: "tabs"}
LOOKED_LINES = 50
LOOKED_CHARACTERS = 1 * MIB


def read_csv(
    content: BinaryIO,
    label: str,
    problems: ProblemList,
    choices: ColumnChoices,
    delimiter: str = "",
    columns: Sequence[str] = (),
) -> Iterator[Row]:
    """The records below the header, or all of them where `columns` are its names.

    Without `delimiter` it is guessed, and a guess other than ',' is remarked.
    """
    # The limit of the csv module is one for the whole process, and 128 KiB where nobody set it. It also ends a text
    # whose quote is never closed before all of the file is in memory.
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = (text for _, text in text_lines_of(content, label))
    head = _head(lines)
    if not delimiter:
        delimiter = guess_delimiter(head)
        if delimiter != ",":
            choices.remark(f"{label}: the columns are separated by {DELIMITER_NAMES[delimiter]}")
    records = _records(chain(head, lines), label, delimiter)
    header = columns or next(records, (0, ()))[1]
    refuse_doubles(header, f"{label}, line 1")
    for line, fields in records:
        where = f"{label}, line {line}"
        if len(fields) == len(header):
            yield Row(where, dict(zip(header, fields, strict=True)))
        else:
            problems.add(_ragged(len(fields), len(header), where, delimiter))


def guess_delimiter(head: Sequence[str]) -> str:
    """The sign that cuts the first lines into the most columns, the same number on each; ',' when none does."""

    def score(delimiter: str) -> tuple[bool, int]:
        widths = [len(record) for record in csv.reader(head, delimiter=delimiter) if record]
        if not widths:
            return False, 0
        whole = widths[:-1] if len(head) == LOOKED_LINES else widths  # the last may go on after the head
        return widths[0] > 1 and len(set(whole)) == 1, widths[0]

    try:
        return max(DELIMITERS, key=score)
    except csv.Error:
        return ","


def _records(lines: Iterable[str], label: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of each record that is not blank."""
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _broken(str(error), f"{label}, line {line}") from None
        if fields is None:
            return
        if fields:
            yield line, fields


def _head(lines: Iterator[str]) -> list[str]:
    head: list[str] = []
    characters = 0
    for line in lines:
        head.append(line)
        characters += len(line)
        if len(head) == LOOKED_LINES or characters >= LOOKED_CHARACTERS:
            break
    return head


def _ragged(found: int, wanted: int, where: str, delimiter: str) -> DataError:
    sign = DELIMITER_NAMES.get(delimiter, repr(delimiter))
    fields = "1 field" if found == 1 else f"{found:,} fields"
    return DataError(
        f"the row has {fields}, the header {wanted:,}",
        where=where,
        hint=f"a text that holds {sign.replace('tabs', 'a tab')} stands in double quotes",
    )


def _broken(message: str, where: str) -> DataError:
    """What the csv module says, in the words of the file."""
    hint = "a double quote inside a text is written twice"
    if "end of data" in message:
        return DataError("a double quote that opens in this row is not closed", where=where, hint=hint)
    if "field limit" in message:
        limit = format_bytes(MAX_LINE_BYTES)
        return DataError(f"a text longer than {limit}, or a double quote that is not closed", where=where, hint=hint)
    if "expected after" in message:
        return DataError("a double quote in the middle of a text", where=where, hint=hint)
    if "new-line character" in message:
        return DataError("a line end that is a bare carriage return", where=where, hint="convert the line ends to \\n")
    return DataError(f"broken CSV: {one_line(message, 80)}", where=where)
