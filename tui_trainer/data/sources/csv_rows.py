"""Rows of CSV and TSV files, with all values as strings: also "NA", "null", "007" and empty ones.

A record may span several lines; messages name its first line. The dialect (delimiter, escapes, quoting) is guessed from
the first lines, so that every reading of a file uses the same one.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from typing import Any, BinaryIO, Literal

from tui_trainer.data.columns.row import Row, refuse_repeated_columns
from tui_trainer.data.columns.text_columns import NUMBER, ColumnChoices
from tui_trainer.data.columns.usual_names import HEADER_NAMES
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
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?\s*', re.IGNORECASE)  # the first line of some files from Excel
_ESCAPED_QUOTE = re.compile(r'(?<!\\)((?:\\\\)*)\\"')
_FIELD = r'(?:"(?:[^"]|"")*+"|[^"\t][^\t]*+|)'
_QUOTES_PAIR = re.compile(rf"{_FIELD}(?:\t{_FIELD})*+")
_QUOTE_IS_OPEN = re.compile(rf'(?:{_FIELD}\t)*+"(?:[^"]|"")*+')

Lines = Callable[[Iterable[str]], Iterable[str]]
"""Function that transforms lines before they are parsed. It returns one line for each."""


def read_csv(
    content: BinaryIO,
    label: str,
    problems: ProblemList,
    choices: ColumnChoices,
    delimiter: str = "",
    columns: Sequence[str] = (),
    *,
    usual_delimiter: str = ",",
) -> Iterator[Row]:
    """Yield the records below the header, or all records if `columns` names them. Repeated headers are skipped.

    Guesses the `delimiter` if it is empty. Adds a remark to `choices` if the file is not a plain one with the
    `usual_delimiter`. Raises DataError for a first line that is not a header."""
    # The csv module has one limit for the whole process, 128 KiB by default. It also stops at a quote that is never
    # closed before the whole file is in memory.
    csv.field_size_limit(MAX_LINE_BYTES)
    texts = (text for _, text in text_lines_of(content, label))
    head = _first_lines(texts)
    if head and (separator_line := _SEPARATOR_LINE.fullmatch(head[0])):
        delimiter, head[0] = delimiter or separator_line[1], "\n"
    if not delimiter:
        delimiter = TAB if usual_delimiter == TAB and any(TAB in line for line in head[:2]) else guess_delimiter(head)
        if delimiter not in (usual_delimiter, ","):
            choices.remark(f"{label}: the columns are separated by {DELIMITER_NAMES[delimiter]}")
    prepare_lines, options = _guess_dialect(head, label, delimiter, choices)
    lost_rows = _LostRows(list(prepare_lines(head)), label, options, choices)
    records = _records(prepare_lines(chain(head, texts)), label, options, lost_rows)
    names, field_count = list(columns), len(columns)
    if not columns:
        line, header_fields = next(records, (1, []))
        first_record = list(islice(records, 1))
        names, field_count = [name.strip() for name in header_fields], len(header_fields)
        if first_record and not any(first_record[0][1][field_count:]):
            field_count = max(field_count, len(first_record[0][1]))  # each row ends with a delimiter
        while names and not names[-1]:
            names.pop()
        refuse_repeated_columns(names, f"{label}, line {line}")
        _refuse_no_header(names, list(csv.reader(prepare_lines(head), **options | {"strict": False}))[1:], label, line)
        if nameless_columns := len(header_fields) - len(names):
            problem = "1 empty column" if nameless_columns == 1 else f"{nameless_columns:,} empty columns"
            choices.remark(f"{label}: skipped {problem} without a name at the end of each row")
        records = chain(first_record, records)
    name_count, is_reported = len(names), False
    header_fields = [name.lower() for name in names]
    header_names, name_limit = set(header_fields), max(map(len, header_fields), default=0) + 2
    for line, fields in records:
        where = f"{label}, line {line}"
        if len(fields) != field_count:
            fields_shown = "1 field" if len(fields) == 1 else f"{len(fields):,} fields"
            problem = f"the row has {fields_shown}, but the header has {field_count:,}"
            problems.add(DataError(problem, where=where, hint=_quoted_hint(delimiter)))
        elif field_count > name_count and any(fields[name_count:]):
            problem = "the row has a value in a column without a name"
            problems.add(DataError(problem, where=where, hint=_quoted_hint(delimiter)))
        elif (
            len(fields[0]) > name_limit
            or fields[0].strip().lower() not in header_names
            or not _is_repeated_header(fields[:name_count], header_fields, where)
        ):
            yield Row(where, dict(zip(names, fields, strict=False)))
        elif not is_reported:
            choices.remark(f"{label}: line {line:,} repeats the header; repeated headers are skipped")
            is_reported = True


def _is_repeated_header(fields: Sequence[str], header: Sequence[str], where: str) -> bool:
    """Return whether a record repeats the header. Raises DataError if its columns have another order."""
    names = [field.strip().lower() for field in fields]
    if names != header and sorted(names) == sorted(header):
        hint = "do not join files with different column orders; set data.path to their folder instead"
        raise DataError("the header is repeated with its columns in another order", where=where, hint=hint)
    return names == header


def _refuse_no_header(names: Sequence[str], rows: Sequence[Sequence[str]], label: str, line: int) -> None:
    """Raise DataError if the first line is a comment, or has a number, a long text or a repeated value like a row."""
    where = f"{label}, line {line}"
    rows = [row for row in rows if row and list(row[: len(names)]) != list(names)]
    if names and names[0].startswith("#") and (len(names) == 1 or any(len(row) != len(names) for row in rows)):
        raise DataError("the first line is a comment instead of the column names", where=where, hint="delete this line")
    if all(name[:1] == name[-1:] == "'" for name in names) and names:
        hint = "use double quotes, or no quotes"
        raise DataError("the column names are in single quotes", where=where, hint=hint)
    if any(name.lower() in HEADER_NAMES for name in names):
        return
    numeric_names = [name for name in names if NUMBER.fullmatch(name) and any(map(str.isdigit, name))]
    if numeric_names == [str(number) for number in range(len([name for name in names if name]))]:
        numeric_names = []  # pandas names columns without names that way
    values_below = [{row[position].strip() for row in rows if position < len(row)} for position in range(len(names))]
    repeated = [name for name, column_values in zip(names, values_below, strict=True) if name and name in column_values]
    if unlikely_names := [*numeric_names, *repeated, *(name for name in names if len(name) > _LONGEST_NAME)]:
        hint = "add a line with the column names, such as text,label, at the top"
        problem = f"the first line is not a header, because '{one_line(unlikely_names[0], 40)}' is not a column name"
        raise DataError(problem, where=where, hint=hint)


def guess_delimiter(head: Sequence[str]) -> str:
    """Return the delimiter that splits each of the first lines into equally many columns, the most of all; else ','."""

    def score(delimiter: str) -> tuple[bool, int]:
        widths = [len(record) for record in csv.reader(head, delimiter=delimiter) if record]
        if not widths:
            return False, 0
        complete_counts = widths[:-1] if len(head) == LOOKED_LINES else widths  # the last record may be incomplete
        return widths[0] > 1 and len(set(complete_counts)) == 1, widths[0]

    try:
        return max(DELIMITERS, key=score)
    except csv.Error:
        return ","


def _guess_dialect(
    head: Sequence[str], label: str, delimiter: str, choices: ColumnChoices
) -> tuple[Lines, dict[str, Any]]:
    """Return a function that transforms lines as the csv module needs them, and the options for that module."""
    first_fields = next((line for line in head if not line.isspace()), "").split(delimiter)
    csv_options: dict[str, Any] = {"delimiter": delimiter, "strict": True}
    if delimiter == TAB:
        unmatched_lines: list[int] = []
        for _ in _double_lone_quotes(head, len(first_fields), unmatched_lines.append):
            pass
        if len(head) == LOOKED_LINES:  # a text near the end of these lines may be incomplete
            unmatched_lines = [line for line in unmatched_lines if line <= LOOKED_LINES // 2 and len(first_fields) > 1]
        if unmatched_lines:
            problem = "unmatched double quotes, so the file is read without quoting"
            choices.remark(f"{label}, line {unmatched_lines[0]:,}: {problem}")
            return iter, csv_options | {"quoting": csv.QUOTE_NONE}

        def report(line: int) -> None:
            if not unmatched_lines:
                choices.remark(f"{label}, line {line:,}: unmatched double quotes are read literally")
            unmatched_lines.append(line)

        return partial(_double_lone_quotes, width=len(first_fields), report=report), csv_options
    if len(first_fields) > 1 and all(name.startswith(" ") for name in first_fields[1:]):
        csv_options["skipinitialspace"] = True
    if any('\\"' in line for line in head) and not _is_consistent(head, csv_options):
        unescape = partial(map, partial(_ESCAPED_QUOTE.sub, r'\1""'))
        if _is_consistent(list(unescape(head)), csv_options):
            choices.remark(f"{label}: double quotes inside texts are escaped with backslashes")
            return unescape, csv_options
    return iter, csv_options


def _is_consistent(head: Sequence[str], options: dict[str, Any]) -> bool:
    """Return whether the first records have equally many fields, except the last one: it may be incomplete."""
    widths = []
    try:
        for fields in csv.reader(head, **options):
            widths.append(len(fields))
    except csv.Error as error:
        if "end of data" not in str(error) or len(head) < LOOKED_LINES:
            return False
    return len({width for width in widths[: -1 if len(head) == LOOKED_LINES else None] if width}) <= 1


def _double_lone_quotes(lines: Iterable[str], width: int, report: Callable[[int], None]) -> Iterator[str]:
    """Yield lines of `width` tab-separated fields. Lone quotes are doubled, so that the csv module reads them
    literally, and `report` gets the numbers of these lines. An unclosed quote is lone if the next line is a record."""
    lines, next_lines, is_open = iter(lines), list[str](), False
    line_number = 0
    while line := next_lines.pop(0) if next_lines else next(lines, ""):
        line_number += 1
        if '"' not in line:
            yield line
            continue
        if is_open:
            is_open = line.count('"') % 2 == 0
            yield line
            continue
        text = line.rstrip("\r\n")
        is_open = bool(_QUOTE_IS_OPEN.fullmatch(text))
        if is_open and len(next_lines) < LOOKED_LINES:
            next_lines += islice(lines, LOOKED_LINES - len(next_lines))
        if text.count(TAB) + 1 == width and _has_lone_quote(text, width, is_open, next_lines):
            report(line_number)
            is_open = False
            fields = (field.replace('"', '""') for field in text.split(TAB))
            line = TAB.join(f'"{field}"' for field in fields) + line[len(text) :]
        yield line


def _has_lone_quote(text: str, width: int, is_open: bool, next_lines: Sequence[str]) -> bool:
    """Return whether the line has a quote that does not enclose a field."""
    if not is_open:
        is_paired = _QUOTES_PAIR.fullmatch(text)
        return not is_paired or len(next(csv.reader([text], delimiter=TAB))) != width
    if width == 1:
        default = "" if len(next_lines) == LOOKED_LINES else '"'
        boundary_lines = (line for line in next_lines if line.startswith('"') or line.rstrip("\r\n").endswith('"'))
        return next(boundary_lines, default).startswith('"')
    return next((line for line in next_lines if not line.isspace()), TAB * (width - 1)).count(TAB) + 1 == width


class _LostRows:
    """Finds rows that were read as one text, because a double quote opened the text by mistake.

    Such a text ends with the next quote at the end of a field, and each of its lines looks like a row. But the lines of
    a real text may look like rows too, so their values are compared with those of the first rows. If a column of
    numeric ids, or of class names, continues in each line, the file is refused. If it does not, the text is real. New
    names get a remark, and so does a record where no column decides, unless the file surely quotes other fields."""

    def __init__(self, head: Sequence[str], label: str, options: Mapping[str, Any], choices: ColumnChoices) -> None:
        self._label, self._choices = label, choices
        self._delimiter: str = options["delimiter"]
        self._skips_blanks = "skipinitialspace" in options
        self._examples: list[list[str]] = []
        for line in head:
            if not line.isspace() and line.count('"') % 2 == 0:
                with suppress(csv.Error):  # reported when the line is read
                    self._examples += csv.reader([line], **{**options, "strict": False})
        del self._examples[:1]
        self._has_quoted_delimiters = any(self._delimiter in field for fields in self._examples for field in fields)
        self._lost_rows_note, self._ambiguous_note = "", ""

    def check_record(self, fields: Sequence[str], line: int, last_line: int) -> None:
        """Check a record that spans the lines `line` to `last_line`. Raises DataError if it is several rows."""
        position = next((position for position, field in enumerate(fields) if "\n" in field), len(fields) - 1)
        text, other_fields = fields[position], len(fields) - 1
        # The number of delimiters rules out most texts quickly, without a look at each line.
        if not other_fields <= text.count(self._delimiter) <= text.count("\n") * other_fields:
            self._has_quoted_delimiters = True
            return
        rows = self._rows_in(fields, position)
        match self._are_rows(rows, position) if rows else "no":
            case "yes":
                problem = f"a double quote opens a text that ends on line {last_line:,}"
                problem += ", but each line in it looks like a row"
                hint = 'write double quotes inside a text twice (""), and put the text in double quotes'
                raise DataError(problem, where=f"{self._label}, line {line}", hint=hint)
            case "no":
                self._has_quoted_delimiters = True
            case verdict:
                note = f"{self._label}, line {line:,}: a text in double quotes ends on line {last_line:,}; "
                note += "without the quotes, each of its lines would be a row"
                self._lost_rows_note = self._lost_rows_note or (note if verdict == "likely" else "")
                self._ambiguous_note = self._ambiguous_note or note

    def end(self) -> None:
        if remark := self._lost_rows_note or (self._ambiguous_note if not self._has_quoted_delimiters else ""):
            self._choices.remark(remark)

    def _rows_in(self, fields: Sequence[str], position: int) -> list[list[str]]:
        """Return a row for each line in the field at `position`; [] if a line does not have the fields of a row."""
        width, delimiter = len(fields), self._delimiter
        first_line, *lines = fields[position].replace("\r\n", "\n").split("\n")
        rows = [[*fields[:position], *first_line.split(delimiter)]]
        rows += [line.split(delimiter) for line in lines[:-1] if line]
        rows.append([*lines[-1].split(delimiter), *fields[position + 1 :]])
        is_only_field = width > 1 and not any("\n" in field for field in fields[position + 1 :])
        return rows if is_only_field and all(len(row) == width for row in rows) else []

    def _are_rows(self, rows: Sequence[Sequence[str]], position: int) -> Literal["yes", "likely", "unclear", "no"]:
        """Return whether `rows` are rows of the file: whether their columns continue those of the first rows."""
        examples = [fields for fields in self._examples if len(fields) == len(rows[0]) and fields not in rows]
        verdicts: set[Literal["yes", "likely"]] = set()
        for column, values in enumerate(zip(*rows, strict=True)):
            # The value outside the quoted text belongs to the column in any case.
            old_values = [*(fields[column] for fields in examples), values[0 if column < position else -1]]
            may_be_blank = self._skips_blanks or any(not value or value[0].isspace() for value in old_values)
            if not may_be_blank and any(not value or value[0].isspace() for value in values):
                return "no"
            are_names, are_numbers = 2 * len({*old_values}) <= len(old_values), all(map(NUMBER.fullmatch, old_values))
            if len(old_values) < 3 or not (are_names or are_numbers):
                continue
            if are_numbers and not all(map(NUMBER.fullmatch, values)):
                return "no"
            value_lengths = [len(value if are_numbers else value.split()) for value in (*old_values, *values)]
            if are_names and max(value_lengths) > max(value_lengths[: len(old_values)]):
                return "no"
            verdicts.add("likely" if are_names and not {*old_values}.issuperset(values) else "yes")
        return "unclear" if not verdicts else "yes" if verdicts == {"yes"} else "likely"


def _records(
    lines: Iterable[str], label: str, options: dict[str, Any], lost_rows: _LostRows
) -> Iterator[tuple[int, list[str]]]:
    """Yield the number of the first line, and the fields, of each record that is not blank.

    Raises DataError for broken CSV, and if a stray quote made several rows into one text (`lost_rows`)."""
    reader = csv.reader(lines, **options)
    while True:
        line = reader.line_num + 1
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise _error_of_csv(str(error), f"{label}, line {line}") from None
        if fields is None:
            return lost_rows.end()
        if fields:
            if reader.line_num > line:
                lost_rows.check_record(fields, line, reader.line_num)
            yield line, fields


def _first_lines(lines: Iterator[str]) -> list[str]:
    first_lines: list[str] = []
    character_count = 0
    for line in lines:
        first_lines.append(line)
        character_count += len(line)
        if len(first_lines) == LOOKED_LINES or character_count >= LOOKED_CHARACTERS:
            break
    return first_lines


def _quoted_hint(delimiter: str) -> str:
    name = DELIMITER_NAMES.get(delimiter, repr(delimiter))
    return f"put texts that contain {name.replace('tabs', 'a tab')} in double quotes"


def _error_of_csv(message: str, where: str) -> DataError:
    """Convert an error message of the csv module to a DataError that explains it for this file."""
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
