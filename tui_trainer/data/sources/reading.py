"""Reading of one file: as documents (a plain text is one, a table has one per row), as rows, or as the rows of a slice.

Errors of rows are collected so that they are reported together. An error that makes the rest unreadable ends the file.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from io import BytesIO
from itertools import chain, islice
from typing import BinaryIO

import numpy as np

from tui_trainer.data.columns.reader import ReadInOrder
from tui_trainer.data.columns.row import LateColumns, Row, columns_of
from tui_trainer.data.columns.text_columns import FIRST_ROWS, ColumnChoices, head_of, text_of
from tui_trainer.data.decoding import MAX_LINE_BYTES, decode_utf8, refuse_other_encodings, with_plain_line_ends
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.sources.conll_rows import WORDS, joins_words, read_conll, with_words_joined
from tui_trainer.data.sources.csv_rows import TAB, read_csv
from tui_trainer.data.sources.json_rows import is_one_json, json_lines, read_json
from tui_trainer.data.sources.source_file import (
    SELF_COMPRESSED_FORMS,
    SNIFFED_BYTES,
    SourceFile,
    form_of,
    open_bytes,
    refuse_disguised,
)
from tui_trainer.data.sources.tables import column_names, namers, read_table, row_count, with_names
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import GIB, MIB, format_bytes

MAX_DOCUMENT_BYTES = 1 * GIB  # a text file is one document, read into memory as a whole; also stops a gzip bomb
# A block has as many rows as are encoded at once, so that few blocks are read for two batches.
BLOCK_LINES, BLOCK_BYTES, READ_BYTES = 1000, 1 * MIB, 4 * MIB
_row_counts: dict[tuple[str, int, int], int] = {}  # of files already counted by this process: (path, size, mtime_ns)

# Kinds of text that are not a table, by their beginning.
_TEXT_KINDS = ((b"<?xml", "XML"), (b"<!doctype", "a web page"), (b"<html", "a web page"), (b"---\n", "YAML"))
_LANGUAGE = re.compile(r"\.[a-z]{2,3}(?:[-_][A-Za-z]{2,4})?")


@dataclass(frozen=True, slots=True)
class Document:
    """One text, and its position: "train.jsonl, line 12"."""

    text: str
    where: str


def documents_of(
    content: BinaryIO, file: SourceFile, choices: ColumnChoices, problems: ProblemList
) -> Iterator[Document]:
    """Yield the documents in a file. Raises DataError for an error that makes the rest unreadable."""
    if not file.holds_rows:
        refuse_disguised(content, file)
        yield Document(read_text(content, file.label), file.label)
    elif file.form == "conll":
        for row in rows_of(content, file, choices, problems):
            words = row.values[WORDS]
            yield Document(" ".join(words) if isinstance(words, list) else "", row.where)
    else:
        # The first rows decide which column holds the text.
        rows = rows_of(content, file, choices, problems)
        first_rows, error = head_of(rows)
        column = choices.choose(first_rows) if first_rows else ""
        late_columns = LateColumns(columns_of(first_rows), lambda row: choices.check_late_row(row, first_rows))
        if first_rows and not error and file.form in SELF_COMPRESSED_FORMS:
            content.seek(0)
            yield from texts_of(rows_of(content, file, choices, problems, [column]), column, problems, late_columns)
        else:
            yield from texts_of(chain(first_rows, rows), column, problems, late_columns)
        if error:
            raise error


def rows_of(
    content: BinaryIO, file: SourceFile, choices: ColumnChoices, problems: ProblemList, columns: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield the rows of a table, with all columns or, in a form that is read by columns, with these `columns` only.

    Raises DataError for an error that makes the rest unreadable."""
    rows = _raw_rows(content, file, choices, problems, columns)
    if file.features and (column_namers := namers(file.features)):
        rows = (Row(row.where, with_names(dict(row.values), column_namers)) for row in rows)
    if file.form != "conll":
        rows = with_words_joined(rows, problems, choices)
    return islice(rows, *file.row_range) if file.row_range else rows


def _raw_rows(
    content: BinaryIO, file: SourceFile, choices: ColumnChoices, problems: ProblemList, columns: Sequence[str]
) -> Iterator[Row]:
    label = file.label
    refuse_disguised(content, file)
    match file.form:
        case "parquet" | "arrow":
            yield from read_table(content, label, file.form, columns)
        case "jsonl" | "json":
            yield from read_json(content, label, problems, usually_lines=file.form == "jsonl")
        case "csv" | "tsv":
            usual, header = TAB if file.form == "tsv" else ",", file.header
            yield from read_csv(content, label, problems, choices, file.separator, header, usual_delimiter=usual)
        case "conll":
            yield from read_conll(content, label, problems, choices)
        case _ if file.label_of_folder == "":
            choices.remark(f"{label} is not read, because it is outside the class folders")
        case _ if file.label_of_folder:
            yield Row(label, {"text": read_text(content, label), "label": file.label_of_folder})
        case _:
            raise _error_without_rows(content, file)


def _error_without_rows(content: BinaryIO, file: SourceFile) -> DataError:
    """Return the error for a file of plain text that a task of rows cannot read."""
    content.seek(0)
    first_bytes = content.read(SNIFFED_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip()
    kind = next((kind for beginning, kind in _TEXT_KINDS if first_bytes.lower().startswith(beginning)), "plain text")
    hint = "write the rows as JSONL, as CSV or TSV with column names, or as CoNLL (.conll); "
    hint += "texts without labels need a decoder as the model, and task.type = causal_lm"
    # Texts in its folder with the same name, except for a language: train.de and train.en.
    similar_files = () if file.remote else file.path.parent.glob(f"{escape(file.path.stem)}.*")
    paths = sorted(path for path in similar_files if _LANGUAGE.fullmatch(path.suffix) and form_of(path) == "unknown")
    if len(paths) > 1 and file.path in paths:
        file_names, codes = [path.name for path in paths[:2]], [path.suffix.lstrip(".") for path in paths[:2]]
        join_command = f"(printf '{codes[0]}\\t{codes[1]}\\n'; paste {' '.join(map(shell_word, file_names))})"
        hint = f"join line 1 with line 1, and so on: {join_command} > {shell_word(file.path.stem + '.tsv')}; "
        hint += f"then set data.text_column to {codes[0]} and data.target_column to {codes[1]}, or the other way round"
    return DataError(f"this is {kind} without columns, but this task reads rows", where=file.label, hint=hint)


def count_rows(file: SourceFile) -> int:
    """Return the number of readable rows in a whole file. Raises DataError for a file that cannot be opened."""
    with open_bytes(file) as (_, content):
        if file.form in SELF_COMPRESSED_FORMS and not joins_words(column_names(content, file.label, file.form)):
            return row_count(content, file.label, file.form)
        if not file.holds_rows:
            return 1
        try:
            return sum(1 for _ in rows_of(content, file.whole, ColumnChoices(""), ProblemList()))
        except DataError:
            return 0


@dataclass(frozen=True, slots=True)
class LineBlock:
    """A part of a JSON Lines file that any process can read: complete lines, at `offset` and of `size` in bytes, after
    `lines_before` lines of the file. `column` is the text column, if rows are documents."""

    file: SourceFile
    offset: int
    size: int
    lines_before: int
    column: str = ""
    columns: frozenset[str] = frozenset()
    """Names of the columns that the first rows of the file have."""

    def rows(self, problems: ProblemList) -> Iterator[Row]:
        """Yield the rows. Raises DataError for an error that makes the rest of the file unreadable."""
        with open_bytes(self.file) as (_, content):
            content.seek(self.offset)
            lines = BytesIO(content.read(self.size))
        label = self.file.label
        yield from json_lines(lines, label, problems, lines_before=self.lines_before, bytes_before=self.offset)


def line_blocks(file: SourceFile, choices: ColumnChoices | None = None) -> Iterator[LineBlock]:
    """Yield blocks of about BLOCK_LINES lines of a JSON Lines file. The first block has at least all first rows. If
    rows are documents, `choices` chooses the text column. Raises ReadInOrder if lines cannot be read independently."""
    if file.form != "jsonl" or file.compressed or file.remote or file.row_range or file.features:
        raise ReadInOrder
    try:
        with open_bytes(file) as (_, content):
            remarks = ColumnChoices("")  # collects remarks on joined rows
            rows = rows_of(content, file, remarks, ProblemList())
            first_rows, error = head_of(rows) if choices else (list(islice(rows, FIRST_ROWS)), None)
            head_bytes = content.tell()
            content.seek(0)
            if error or remarks.notes() or is_one_json(content):
                raise ReadInOrder
            column = choices.choose(first_rows) if first_rows and choices else ""
            content.seek(0)
            offset = lines_before = 0
            for block_bytes, line_count in _sizes_of_blocks(content, head_bytes):
                yield LineBlock(file, offset, block_bytes, lines_before, column, frozenset(columns_of(first_rows)))
                offset, lines_before = offset + block_bytes, lines_before + line_count
    except DataError:
        raise ReadInOrder from None


def _sizes_of_blocks(content: BinaryIO, least_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield (bytes, lines) of each block: BLOCK_LINES lines, or fewer if they exceed BLOCK_BYTES. The first block has
    at least `least_bytes` bytes.

    Raises ReadInOrder for a line that is longer than a row may be."""
    unfinished_bytes = b""
    while data := content.read(READ_BYTES):
        data = unfinished_bytes + data
        line_ends = np.flatnonzero(np.frombuffer(data, dtype=np.uint8) == ord("\n")) + 1
        block_start = first_line = 0
        while first_line < len(line_ends):
            limit = int(np.searchsorted(line_ends, block_start + BLOCK_BYTES))
            least_lines = int(np.searchsorted(line_ends, block_start + least_bytes))
            last_line = max(min(first_line + BLOCK_LINES - 1, limit), least_lines)
            if last_line >= len(line_ends):  # more lines of this block may follow
                break
            yield int(line_ends[last_line]) - block_start, last_line + 1 - first_line
            block_start, first_line, least_bytes = int(line_ends[last_line]), last_line + 1, 0
        unfinished_bytes = data[block_start:]
        if len(unfinished_bytes) > 2 * MAX_LINE_BYTES:
            raise ReadInOrder
    if unfinished_bytes:
        yield len(unfinished_bytes), unfinished_bytes.count(b"\n") + (not unfinished_bytes.endswith(b"\n"))


def first_characters(documents: Iterator[Document], max_chars: int) -> Iterator[Document]:
    """Yield the first documents, `max_chars` characters in total (0: no limit). The last document is truncated."""
    characters_left = max_chars
    for document in documents:
        if not max_chars:
            yield document
            continue
        yield Document(document.text[:characters_left], document.where)
        characters_left -= len(document.text)
        if characters_left <= 0:
            return


def read_text(content: BinaryIO, label: str) -> str:
    """Return the content of a plain text file, with line ends as \\n."""
    data = content.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        problem = f"the document is larger than {format_bytes(MAX_DOCUMENT_BYTES)}"
        hint = "split the document into several files, or write JSONL with one document per row"
        raise DataError(problem, where=label, hint=hint)
    refuse_other_encodings(data, label)
    return with_plain_line_ends(decode_utf8(data, label, line=1))


def texts_of(rows: Iterator[Row], column: str, problems: ProblemList, late_columns: LateColumns) -> Iterator[Document]:
    for row in rows:
        try:
            late_columns.check(row)
            yield Document(text_of(row, column), row.where)
        except DataError as error:
            problems.add(error, row.values)


def slices_of(files: Mapping[str, Sequence[SourceFile]], spec: str, setting: str) -> tuple[SourceFile, ...]:
    """Return the files with the rows that the slice `spec` selects, such as "train[:10%]". `files` are by split.

    Raises DataError for an invalid slice, or for one without rows. `setting` is the setting that names the slice."""
    from datasets import ReadInstruction

    shown_slice = one_line(spec, 80)
    row_counts = {label: [_cached_row_count(file) for file in split_files] for label, split_files in files.items()}
    try:
        row_totals = {label: sum(file_counts) for label, file_counts in row_counts.items()}
        slices = ReadInstruction.from_spec(spec).to_absolute(row_totals)
    except (ValueError, AssertionError) as error:
        hint = "write slices like train[:10%], train[100:200] or train[-500:]"
        problem = f"{setting}: '{shown_slice}' is not a valid slice: {one_line(str(error), 120)}"
        raise DataError(problem, hint=hint) from None
    selected_files: list[SourceFile] = []
    for part in slices:
        selected_files += _rows_of(files[part.splitname], row_counts[part.splitname], part.from_ or 0, part.to)
    if not selected_files:
        problem = f"{setting}: '{shown_slice}' selects no rows"
        raise DataError(problem, hint=f"there are {sum(map(sum, row_counts.values())):,} rows")
    return tuple(selected_files)


def _rows_of(files: Sequence[SourceFile], counts: list[int], start: int, end: int | None) -> Iterator[SourceFile]:
    """Yield the files with the rows from `start` to `end` (exclusive), counted over all files of a split."""
    for file, rows_in_file in zip(files, counts, strict=True):
        first_row, end_row = max(start, 0), rows_in_file if end is None else min(end, rows_in_file)
        if (first_row, end_row) == (0, rows_in_file):
            yield file
        elif first_row < end_row:
            selected_bytes = round(file.size_bytes * (end_row - first_row) / rows_in_file)
            yield replace(file, row_range=(first_row, end_row), size_bytes=selected_bytes, whole_bytes=file.size_bytes)
        start, end = start - rows_in_file, None if end is None else end - rows_in_file


def _cached_row_count(file: SourceFile) -> int:
    key = (file.remote or str(file.path.absolute()), *file.size_and_time())
    if key not in _row_counts:
        _row_counts[key] = count_rows(file)
    return _row_counts[key]
