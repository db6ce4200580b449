"""Rows of tokens in Arrow IPC files: reading through a memory map without a copy, and writing rows whole or split.

The column `input_ids` is a list<int32>. Tasks with labels of their own, or with rows of several documents, add columns
of that type (`TokenRow`).

A stream of n tokens, or a document that is too long for one row, is split at width L into rows of L + 1 tokens that
overlap by one: row k is stream[k*L : k*L + L + 1]. With inputs = row[:-1] and labels = row[1:], every token but the
first is a label exactly once. The last row may be shorter, and has at least 2 tokens.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line

INPUT_IDS, LABELS, SEGMENTS, DOCUMENT_LENGTHS = "input_ids", "labels", "token_type_ids", "document_lengths"
ROW_LABELS = "row_labels"
Tokens = NDArray[np.int32]
Columns = Mapping[str, tuple[NDArray[np.int32], NDArray[np.int64]]]
"""For each column, the values of all rows one after another, and the number of values in each row."""


@dataclass(frozen=True, slots=True)
class TokenRow:
    """One row: int32 `tokens` [T], and `labels` if the task has its own.

    The task decides what labels are: one per token (or IGNORE), one per row, or the tokens of an answer. Without
    labels, each token after the first is the label of the one before. `model_arguments` has other arguments of the
    model, [T] each, such as token_type_ids.

    A row may have several documents that belong together, such as a pair: `tokens`, `labels` and `model_arguments` then
    have all of them one after another, [T] each, and `document_lengths` has their numbers of tokens, which sum to T.
    Other labels than one per token belong to the whole row, and each of its documents has them."""

    tokens: Tokens
    labels: Tokens | None = None
    model_arguments: Mapping[str, Tokens] = field(default_factory=dict)
    document_lengths: Tokens | None = None
    row_label: Tokens | None = None
    """Label of the row beside the labels of its tokens, [1]; None if it has none."""
    values: NDArray[np.float32] | None = None
    """Results of a pass over the row before training, [width]."""

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def documents(self) -> "Sequence[TokenRow]":
        """The documents as rows of their own. A row with one document is returned unchanged."""
        if self.document_lengths is None:
            return (self,)
        ends = np.cumsum(self.document_lengths).tolist()
        slices = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
        has_token_labels = self.labels is not None and len(self.labels) == len(self.tokens)
        return [
            TokenRow(
                self.tokens[document_slice],
                self.labels[document_slice] if self.labels is not None and has_token_labels else self.labels,
                {name: values[document_slice] for name, values in self.model_arguments.items()},
            )
            for document_slice in slices
        ]

    @property
    def input_count(self) -> int:
        """Number of inputs of a causal model, for which the last token of a document is only a label."""
        return len(self.tokens) - (1 if self.document_lengths is None else len(self.document_lengths))

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return len(self.tokens) if self.document_lengths is None else int(self.document_lengths.max())


def _int32_values(array: Any) -> Tokens:
    """Return the values of an Arrow array of int32 without a copy. `to_numpy` would import pandas."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype=np.int32)
    return np.frombuffer(buffer, dtype=np.int32)[array.offset : array.offset + len(array)]


class Rows:
    """Read-only rows of one file. Uses memory only for the offsets of rows, and can be sent to another process."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._columns: dict[str, list[tuple[Tokens, NDArray[np.int64]]]] = {}
        self._first_rows: list[int] = []
        row_count = 0
        for batch in _batches(self.path):
            self._first_rows.append(row_count)
            for name, column in batch.items():
                values_and_offsets = _int32_values(column.values), _int32_values(column.offsets).astype(np.int64)
                self._columns.setdefault(name, []).append(values_and_offsets)
            row_count += len(batch[INPUT_IDS])
        self._count = row_count
        other_columns = (INPUT_IDS, LABELS, DOCUMENT_LENGTHS, ROW_LABELS)
        self._argument_columns = tuple(name for name in self._columns if name not in other_columns)
        self.lengths = self._lengths_of(INPUT_IDS)
        """Tokens of each row, int64 [rows]."""
        self.row_values: NDArray[np.float32] | None = None
        """Results of a pass over the rows before training, [rows, width]; None if there was none."""
        self.documents, self.longest = np.ones_like(self.lengths), self.lengths
        """Number of documents in each row, and tokens of its longest one, int64 [rows]."""
        if DOCUMENT_LENGTHS in self._columns:
            self.documents = self._lengths_of(DOCUMENT_LENGTHS)
            starts = np.cumsum(self.documents) - self.documents
            self.longest = np.maximum.reduceat(self.values(DOCUMENT_LENGTHS), starts).astype(np.int64)

    def _lengths_of(self, column: str) -> NDArray[np.int64]:
        lengths_of_batches = [np.diff(offsets) for _, offsets in self._columns.get(column, [])]
        return np.concatenate(lengths_of_batches) if lengths_of_batches else np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return self._count

    def __reduce__(self) -> "tuple[type[Rows], tuple[Path]]":
        return Rows, (self.path,)

    def row(self, index: int) -> Tokens:
        """Return the tokens of one row, int32 [lengths[index]]: a read-only view of the file."""
        return self._value(INPUT_IDS, index)

    def example(self, index: int) -> TokenRow:
        """Return one row with its labels: read-only views of the file."""
        names = [name if name in self._columns else "" for name in (LABELS, DOCUMENT_LENGTHS, ROW_LABELS)]
        labels, document_lengths, row_label = (self._value(name, index) if name else None for name in names)
        values = None if self.row_values is None else self.row_values[index]
        other_values = {name: self._value(name, index) for name in self._argument_columns}
        return TokenRow(self.row(index), labels, other_values, document_lengths, row_label, values)

    def values(self, column: str) -> Tokens:
        """Return all values of a column, one row after another: int32 [sum of their lengths]."""
        values_of_batches = [values[offsets[0] : offsets[-1]] for values, offsets in self._columns[column]]
        return np.concatenate(values_of_batches) if values_of_batches else np.empty(0, dtype=np.int32)

    def _value(self, column: str, index: int) -> Tokens:
        if not 0 <= index < self._count:
            raise IndexError(f"row {index} of {self._count}")
        batch_index = bisect_right(self._first_rows, index) - 1
        values, offsets = self._columns[column][batch_index]
        row_in_batch = index - self._first_rows[batch_index]
        return values[offsets[row_in_batch] : offsets[row_in_batch + 1]]

    def first_tokens(self, limit: int) -> Tokens:
        """Return about the first `limit` tokens of the stream that was split into these rows: int32 [N]."""
        token_arrays, token_count = [self.row(0)[:1]], 1
        for index in range(len(self)):
            if token_count >= limit:
                break
            token_arrays.append(self.row(index)[1:])
            token_count += len(token_arrays[-1])
        return np.concatenate(token_arrays)

    def stream(self, row_numbers: Sequence[int]) -> tuple[Tokens, NDArray[np.bool_]]:
        """Return the tokens of the chosen rows one after another, int32 [N], and which of them are labels, bool [N].

        If a row directly follows the one before it in the file, the token that both share occurs only once. So all rows
        give the original stream, in which every token but the first is a label."""
        token_arrays, are_labels = [], []
        for position, index in enumerate(row_numbers):
            tokens, is_next = self.row(index), position > 0 and row_numbers[position - 1] == index - 1
            token_arrays.append(tokens[1:] if is_next else tokens)
            are_labels.append(np.arange(len(token_arrays[-1])) >= (0 if is_next else 1))
        return np.concatenate(token_arrays), np.concatenate(are_labels)


def evenly_spaced(row_count: int, limit: int) -> list[int]:
    """Return `limit` of `available` row numbers, evenly spaced, or all if there are not more."""
    if limit >= row_count:
        return list(range(row_count))
    return [index * row_count // limit for index in range(limit)]


def _batches(path: Path) -> list[dict[str, Any]]:
    """Return the Arrow list arrays of each record batch, by the name of the column. The memory map backs them."""
    import pyarrow as pa

    try:
        file = pa.ipc.open_file(pa.memory_map(str(path)))
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
        if INPUT_IDS not in file.schema.names:
            raise KeyError(INPUT_IDS)
        return [dict(zip(batch.schema.names, batch.columns, strict=True)) for batch in batches]
    except (pa.ArrowInvalid, KeyError, OSError) as error:
        problem = f"the prepared rows cannot be read: {one_line(str(error), 80)}"
        hint = "delete the folder; the data is prepared again"
        raise DataError(problem, where=one_line(str(path)), hint=hint) from None


BATCH_ROWS = 1000


class RowWriter:
    """Writes rows of any length. A context manager: the file is complete after it.

    `longest_row`: tokens of the longest row, or of the longest document if rows have several (up to `row_documents`).
    `pieces`: rows from documents that were split. `cut_rows`, bool [rows]: whether each row is one of `pieces`."""

    def __init__(self, path: Path, columns: Sequence[str] = (INPUT_IDS,), *, max_length: int = 0) -> None:
        """Open the file. `max_length`: the width at which subclasses split rows."""
        import pyarrow as pa

        self._width = max_length
        self.row_count = self.longest_row = self.cut_documents = self.pieces = 0
        self.row_documents = 1
        self.cut_rows: list[NDArray[np.bool_]] = []
        self._schema = pa.schema([(name, pa.list_(pa.int32())) for name in columns])
        self._file: Any = pa.ipc.new_file(str(path), self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()

    def add(self, columns: Columns) -> None:
        """Write a batch of rows with all columns of the file."""
        import pyarrow as pa

        arrays = []
        for name in self._schema.names:
            values, value_counts = columns[name]
            offsets = np.concatenate(([0], np.cumsum(value_counts)))
            arrays.append(pa.ListArray.from_arrays(_int32(offsets), _int32(values)))
        self._file.write_batch(pa.record_batch(arrays, schema=self._schema))
        self.row_count += len(value_counts)
        longest_tokens = columns[INPUT_IDS][1].max(initial=0)
        if DOCUMENT_LENGTHS in self._schema.names:
            longest_tokens = columns[DOCUMENT_LENGTHS][0].max(initial=0)
            self.row_documents = max(self.row_documents, int(columns[DOCUMENT_LENGTHS][1].max(initial=0)))
        self.longest_row = max(self.longest_row, int(longest_tokens))

    def _write(self, tokens: Tokens, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Write rows. Row i is tokens[starts[i] : starts[i] + lengths[i]]; rows may overlap."""
        ends = starts + lengths
        if np.array_equal(starts[1:], ends[:-1]):  # most documents are not split
            written_tokens = tokens[starts[0] : ends[-1]]
        else:
            row_starts = np.cumsum(lengths) - lengths
            written_tokens = tokens[np.arange(lengths.sum()) + np.repeat(starts - row_starts, lengths)]
        RowWriter.add(self, {INPUT_IDS: (written_tokens, lengths)})


def _int32(numbers: NDArray[Any]) -> Any:
    """Return the numbers as an Arrow array. `pyarrow.array` would import pandas to check for its types."""
    import pyarrow as pa

    buffer = pa.py_buffer(np.ascontiguousarray(numbers, dtype=np.int32))
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, buffer])


class StreamWriter(RowWriter):
    """Splits everything that is added, as one stream, into rows of `max_length` + 1 tokens."""

    def __init__(self, path: Path, *, max_length: int) -> None:
        super().__init__(path, max_length=max_length)
        self._pending: list[Tokens] = []
        self._pending_tokens = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._pending_tokens > 1:
            self._write_rows_of(np.concatenate(self._pending))
        super().__exit__(kind)

    def add(self, columns: Columns) -> None:
        """Append tokens to the stream."""
        tokens = columns[INPUT_IDS][0]
        self._pending.append(tokens)
        self._pending_tokens += len(tokens)
        batch_tokens = BATCH_ROWS * self._width
        if self._pending_tokens <= batch_tokens:
            return
        stream = np.concatenate(self._pending)
        full_batches = (len(stream) - 1) // batch_tokens
        for start in range(0, full_batches * batch_tokens, batch_tokens):
            self._write_rows_of(stream[start : start + batch_tokens + 1])
        remaining_tokens = stream[full_batches * batch_tokens :]
        self._pending, self._pending_tokens = [remaining_tokens], len(remaining_tokens)

    def _write_rows_of(self, stream: Tokens) -> None:
        """Write a part of the stream as rows. The last token of a part is also the first token of the next part."""
        starts = np.arange(0, len(stream) - 1, self._width)
        self._write(stream, starts, np.minimum(self._width + 1, len(stream) - starts))


class DocumentWriter(RowWriter):
    """Writes each document as a row. A longer one becomes rows that overlap by one token, so that no label is lost."""

    def add(self, columns: Columns) -> None:
        """Write documents, whose tokens are given one after another. Each has at least 2 tokens."""
        tokens, lengths = columns[INPUT_IDS]
        piece_counts = -(-(lengths - 1) // self._width)
        ends = np.cumsum(lengths)
        first_pieces = np.repeat(np.cumsum(piece_counts) - piece_counts, piece_counts)
        piece_numbers = np.arange(piece_counts.sum()) - first_pieces  # of each piece, from 0
        starts = np.repeat(ends - lengths, piece_counts) + piece_numbers * self._width
        piece_lengths = np.minimum(self._width + 1, np.repeat(ends, piece_counts) - starts)
        for first_row in range(0, len(starts), BATCH_ROWS):
            batch = slice(first_row, first_row + BATCH_ROWS)
            self._write(tokens, starts[batch], piece_lengths[batch])
        self.cut_documents += int((piece_counts > 1).sum())
        self.pieces += int(piece_counts[piece_counts > 1].sum())
        self.cut_rows.append(np.repeat(piece_counts > 1, piece_counts))
