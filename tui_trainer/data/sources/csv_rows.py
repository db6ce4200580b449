"""Rows of CSV and TSV files, as they are written: "NA", "null", "007" and nothing at all stay strings.

A record may go over several lines; what is said about it names the line on which it begins. How a file is written
(separator, escapes, whether it quotes) is read off its first lines, so that every reading of it agrees.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, Literal

from tui_trainer.data.columns.row import Row, refuse_doubles
from tui_trainer.data.columns.text_columns import NUMBER, ColumnChoices
from tui_trainer.data.columns.usual_names import (
    HEADER_NAMES,
)
from tui_trainer.data.decoding import MAX_LINE_BYTES, text_lines_of
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

TAB = "\t"
DELIMITERS = (",", ";", TAB, "|")
DELIMITER_NAMES = {",": "','", ";": "';'", TAB: "tabs", "|": "'|'"}
LOOKED_LINES = 50
LOOKED_CHARACTERS = 1 * MIB
_LONGEST_NAME = 80
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # with which Excel begins a file
_ESCAPED_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)\\"')
_FIELD = r'(?:"(?:[^"]|"")*+"|[^"\t][^\t]*+|)'
_QUOTES_PAIR = re.compile(rf"{_FIELD}(?:\t{_FIELD})*+")
_QUOTE_IS_OPEN = re.compile(rf'(?:{_FIELD}\t)*+"(?:[^"]|"")*+')

Lines = Callable[[Iterable[str]], Iterable[str]]
"""What is done to lines before they are parsed: one comes out for each that goes in."""


def read_csv(
    content: BinaryIO,
    label: str,
    problems: ProblemList,
    choices: ColumnChoices,
    delimiter: str = "",
    columns: Sequence[str] = (),
    *,
    usual: str = ",",
) -> Iterator[Row]:
    """The records below the header, or all of them where `columns` are its names. A header that comes again, where
    files were joined, is no record.

    Without `delimiter` it is guessed. What differs from a plain file with the `usual` delimiter is remarked. Raises
    DataError for a first line that is no header.
    """
    # The limit of the csv module is one for the whole process, and 128 KiB where nobody set it. It also ends a text
    # whose quote is never closed before all of the file is in memory.
    csv.field_size_limit(MAX_LINE_BYTES)
    lines = (text for _, text in text_lines_of(content, label))
    head = _head(lines)
    if head and (found := _SEPARATOR_LINE.fullmatch(head[0])):
        delimiter, head[0] = delimiter or found[1], "\n"
    if not delimiter:
        delimiter = TAB if usual == TAB and any(TAB in line for line in head[:2]) else guess_delimiter(head)
        if delimiter not in (usual, ","):
            choices.remark(f"{label}: the columns are separated by {DELIMITER_NAMES[delimiter]}")
    prepare, options = _style(head, label, delimiter, choices)
    lost = _LostRows(list(prepare(head)), label, options, choices)
    records = _records(prepare(chain(head, lines)), label, options, lost)
    names, width = list(columns), len(columns)
    if not columns:
        line, header = next(records, (1, []))
        first = list(islice(records, 1))
        names, width = [name.strip() for name in header], len(header)
        if first and not any(first[0][1][width:]):
            width = max(width, len(first[0][1]))  # a separator ends each row
        while names and not names[-1]:
            names.pop()
        refuse_doubles(names, f"{label}, line {line}")
        _refuse_no_header(names, list(csv.reader(prepare(head), **options | {"strict": False}))[1:], label, line)
        if nameless := len(header) - len(names):
            what = "1 empty column" if nameless == 1 else f"{nameless:,} empty columns"
            choices.remark(f"{label}: skipped {what} without a name at the end of each row")
        records = chain(first, records)
    named, is_told = len(names), False
    header = [name.lower() for name in names]
    begin, longest = set(header), max(map(len, header), default=0) + 2
    for line, fields in records:
        where = f"{label}, line {line}"
        if len(fields) != width:
            has = "1 field" if len(fields) == 1 else f"{len(fields):,} fields"
            what = f"the row has {has}, but the header has {width:,}"
            problems.add(DataError(what, where=where, hint=_quoted_hint(delimiter)))
        elif width > named and any(fields[named:]):
            what = "the row has a value in a column without a name"
            problems.add(DataError(what, where=where, hint=_quoted_hint(delimiter)))
        elif (
            len(fields[0]) <= longest
            and fields[0].strip().lower() in begin
            and _is_header(fields[:named], header, where)
        ):
            if not is_told:
                choices.remark(f"{label}: line {line:,} repeats the header; repeated headers are skipped")
            is_told = True
        else:
            yield Row(where, dict(zip(names, fields, strict=False)))


def _is_header(fields: Sequence[str], header: Sequence[str], where: str) -> bool:
    """Raises DataError for one with its columns in another order."""
    found = [field.strip().lower() for field in fields]
    if found != header and sorted(found) == sorted(header):
        hint = "files with different column orders were joined: give them as a folder instead"
        raise DataError("the header is repeated with its columns in another order", where=where, hint=hint)
    return found == header


def _refuse_no_header(names: Sequence[str], rows: Sequence[Sequence[str]], label: str, line: int) -> None:
    """Raises DataError for a first line that is a comment, or is like a row: with a number, a long text, or a value
    that comes again below it."""
    where = f"{label}, line {line}"
    rows = [row for row in rows if row and list(row[: len(names)]) != list(names)]
    if names and names[0].startswith("#") and (len(names) == 1 or any(len(row) != len(names) for row in rows)):
        raise DataError("the first line is a comment instead of the column names", where=where, hint="delete it")
    if all(name[:1] == name[-1:] == "'" for name in names) and names:
        hint = "use double quotes, or no quotes"
        raise DataError("the column names are in single quotes", where=where, hint=hint)
    if any(name.lower() in HEADER_NAMES for name in names):
        return
    numbers = [name for name in names if NUMBER.fullmatch(name) and any(map(str.isdigit, name))]
    if numbers == [str(number) for number in range(len([name for name in names if name]))]:
        numbers = []  # how pandas names columns that have no names
    values = [{row[place].strip() for row in rows if place < len(row)} for place in range(len(names))]
    again = [name for name, below in zip(names, values, strict=True) if name and name in below]
    if odd := [*numbers, *again, *(name for name in names if len(name) > _LONGEST_NAME)]:
        hint = "add a line with the column names above it, such as text,label"
        raise DataError(f"the first line is no header: '{one_line(odd[0], 40)}' is not a name", where=where, hint=hint)


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


def _style(head: Sequence[str], label: str, delimiter: str, choices: ColumnChoices) -> tuple[Lines, dict[str, Any]]:
    """What the lines need, and the settings of the csv module."""
    first = next((line for line in head if not line.isspace()), "").split(delimiter)
    options: dict[str, Any] = {"delimiter": delimiter, "strict": True}
    if delimiter == TAB:
        lone: list[int] = []
        for _ in _with_lone_quotes_doubled(head, len(first), lone.append):
            pass
        if len(head) == LOOKED_LINES:  # a text that begins near the end of these may go on behind them
            lone = [line for line in lone if line <= LOOKED_LINES // 2 and len(first) > 1]
        if lone:
            choices.remark(f"{label}, line {lone[0]:,}: unmatched double quotes, so the file is read without quoting")
            return iter, options | {"quoting": csv.QUOTE_NONE}

        def told(line: int) -> None:
            if not lone:
                choices.remark(f"{label}, line {line:,}: unmatched double quotes are read literally")
            lone.append(line)

        return partial(_with_lone_quotes_doubled, width=len(first), told=told), options
    if len(first) > 1 and all(name.startswith(" ") for name in first[1:]):
        options["skipinitialspace"] = True
    if any('\\"' in line for line in head) and not _parses(head, options):
        unescaped = partial(map, partial(_ESCAPED_QUOTE.sub, r'\1""'))
        if _parses(list(unescaped(head)), options):
            choices.remark(f"{label}: double quotes inside texts are escaped with backslashes")
            return unescaped, options
    return iter, options


def _parses(head: Sequence[str], options: dict[str, Any]) -> bool:
    """Whether the first records have one number of fields, but for the last, which may go on behind them."""
    widths = []
    try:
        for fields in csv.reader(head, **options):
            widths.append(len(fields))
    except csv.Error as error:
        if "end of data" not in str(error) or len(head) < LOOKED_LINES:
            return False
    return len({width for width in widths[: -1 if len(head) == LOOKED_LINES else None] if width}) <= 1


def _with_lone_quotes_doubled(lines: Iterable[str], width: int, told: Callable[[int], None]) -> Iterator[str]:
    """Lines with tabs between `width` fields, in which quotes that quote nothing are written as the csv module reads
    them. `told` gets the numbers of such lines.

    A quote that opens and is not closed on its line is one of these where the next line is a whole record itself.
    """
    lines, ahead, is_open = iter(lines), list[str](), False
    number = 0
    while line := ahead.pop(0) if ahead else next(lines, ""):
        number += 1
        if '"' not in line:
            yield line
            continue
        if is_open:
            is_open = line.count('"') % 2 == 0
            yield line
            continue
        text = line.rstrip("\r\n")
        is_open = bool(_QUOTE_IS_OPEN.fullmatch(text))
        if is_open and len(ahead) < LOOKED_LINES:
            ahead += islice(lines, LOOKED_LINES - len(ahead))
        if text.count(TAB) + 1 == width and _quotes_nothing(text, width, is_open, ahead):
            told(number)
            is_open = False
            fields = (field.replace('"', '""') for field in text.split(TAB))
            line = TAB.join(f'"{field}"' for field in fields) + line[len(text) :]
        yield line


def _quotes_nothing(text: str, width: int, is_open: bool, ahead: Sequence[str]) -> bool:
    if not is_open:
        is_paired = _QUOTES_PAIR.fullmatch(text)
        return not is_paired or len(next(csv.reader([text], delimiter=TAB))) != width
    if width == 1:
        beyond = "" if len(ahead) == LOOKED_LINES else '"'
        end = next((line for line in ahead if line.startswith('"') or line.rstrip("\r\n").endswith('"')), beyond)
        return end.startswith('"')
    return next((line for line in ahead if not line.isspace()), TAB * (width - 1)).count(TAB) + 1 == width


class _LostRows:
    """Finds rows that a double quote has swallowed which opens a text by mistake, up to the next one at the end of a
    field: in a record over several lines each of which is a row, too.

    Lines of a text may be like rows as well, so values decide, by those of the first rows. A column of ids that are
    numbers, or of the names of classes, goes on in each line: the file is refused. It does not: a text. Names that are
    new are remarked; and where no column can tell, the record, if nothing else in the file is quoted for sure.
    """

    def __init__(self, head: Sequence[str], label: str, options: Mapping[str, Any], choices: ColumnChoices) -> None:
        self._label, self._choices = label, choices
        self._delimiter: str = options["delimiter"]
        self._blanks = "skipinitialspace" in options
        self._examples: list[list[str]] = []
        for line in head:
            if not line.isspace() and line.count('"') % 2 == 0:
                with suppress(csv.Error):  # told by who reads the line
                    self._examples += csv.reader([line], **{**options, "strict": False})
        del self._examples[:1]
        self._quotes = any(self._delimiter in field for fields in self._examples for field in fields)
        self._likely, self._unclear = "", ""

    def look(self, fields: Sequence[str], line: int, last: int) -> None:
        """At a record from `line` to the line `last`. Raises DataError for one that is several rows."""
        place = next((place for place, field in enumerate(fields) if "\n" in field), len(fields) - 1)
        text, others = fields[place], len(fields) - 1
        # Most texts of several lines are told by the number of delimiters in all of them, without looking at each.
        if not others <= text.count(self._delimiter) <= text.count("\n") * others:
            self._quotes = True
            return
        rows = self._rows_in(fields, place)
        match self._are_rows(rows, place) if rows else "no":
            case "yes":
                what = f"a double quote opens a text that ends on line {last:,}, but each line in it looks like a row"
                hint = 'write double quotes inside a text twice (""), and put the text in double quotes'
                raise DataError(what, where=f"{self._label}, line {line}", hint=hint)
            case "no":
                self._quotes = True
            case found:
                told = (
                    f"{self._label}, line {line:,}: a text in double quotes ends on line {last:,}; without the quotes "
                )
                told += "each of its lines would be a row"
                self._likely = self._likely or (told if found == "likely" else "")
                self._unclear = self._unclear or told

    def end(self) -> None:
        if told := self._likely or (self._unclear if not self._quotes else ""):
            self._choices.remark(told)

    def _rows_in(self, fields: Sequence[str], place: int) -> list[list[str]]:
        """A row for each line of a record whose field at `place` goes over them; none where one of them has more
        fields, or fewer."""
        width, sign = len(fields), self._delimiter
        first, *pieces = fields[place].replace("\r\n", "\n").split("\n")
        rows = [[*fields[:place], *first.split(sign)]]
        rows += [piece.split(sign) for piece in pieces[:-1] if piece]
        rows.append([*pieces[-1].split(sign), *fields[place + 1 :]])
        is_one = width > 1 and not any("\n" in field for field in fields[place + 1 :])
        return rows if is_one and all(len(row) == width for row in rows) else []

    def _are_rows(self, rows: Sequence[Sequence[str]], place: int) -> Literal["yes", "likely", "unclear", "no"]:
        """Whether the columns have in these rows what they have in the first ones."""
        examples = [fields for fields in self._examples if len(fields) == len(rows[0]) and fields not in rows]
        found: set[Literal["yes", "likely"]] = set()
        for column, values in enumerate(zip(*rows, strict=True)):
            # The one of these that is no part of the text is a value of the column in any case.
            known = [*(fields[column] for fields in examples), values[0 if column < place else -1]]
            may_be_blank = self._blanks or any(not value or value[0].isspace() for value in known)
            if not may_be_blank and any(not value or value[0].isspace() for value in values):
                return "no"
            are_names, are_numbers = 2 * len({*known}) <= len(known), all(map(NUMBER.fullmatch, known))
            if len(known) < 3 or not (are_names or are_numbers):
                continue
            if are_numbers and not all(map(NUMBER.fullmatch, values)):
                return "no"
            sizes = [len(value if are_numbers else value.split()) for value in (*known, *values)]
            if are_names and max(sizes) > max(sizes[: len(known)]):
                return "no"
            found.add("likely" if are_names and not {*known}.issuperset(values) else "yes")
        return "unclear" if not found else "yes" if found == {"yes"} else "likely"


def _records(
    lines: Iterable[str], label: str, options: dict[str, Any], lost: _LostRows
) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, fields) of each record that is not blank. Raises DataError for one that has swallowed
    others."""
    reader = csv.reader(lines, **options)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _broken(str(error), f"{label}, line {line}") from None
        if fields is None:
            return lost.end()
        if fields:
            if reader.line_num > line:
                lost.look(fields, line, reader.line_num)
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


def _quoted_hint(delimiter: str) -> str:
    sign = DELIMITER_NAMES.get(delimiter, repr(delimiter))
    return f"put texts that contain {sign.replace('tabs', 'a tab')} in double quotes"


def _broken(message: str, where: str) -> DataError:
    """What the csv module says, in the words of the file."""
    hint = 'write double quotes inside a text twice (""), without a backslash'
    if "end of data" in message:
        return DataError("a double quote opened in this row is not closed", where=where, hint=hint)
    if "field limit" in message:
        limit = format_bytes(MAX_LINE_BYTES)
        return DataError(f"a text is longer than {limit}, or a double quote is not closed", where=where, hint=hint)
    if "expected after" in message:
        return DataError("there is a double quote in the middle of a text", where=where, hint=hint)
    if "new-line character" in message:
        return DataError("a line ends in a bare carriage return", where=where, hint="convert line endings to \\n")
    return DataError(f"broken CSV: {one_line(message, 80)}", where=where)
