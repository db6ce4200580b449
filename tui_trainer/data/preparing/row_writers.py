"""Rows of tokens written in batches into an Arrow IPC file: as they come, or cut.

A stream of n tokens, or a document that is too long for one row, is cut at width L into rows of L + 1 tokens that
overlap by one: row k is stream[k*L : k*L + L + 1]. With inputs = row[:-1] and labels = row[1:], every token but the
first is a label exactly once. The last row may be shorter, and has at least 2 tokens.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.preparing.token_rows import COLUMN, Columns, Tokens

BATCH_ROWS = 1000


class RowWriter:
    """Rows of any lengths as they come. A context manager: the file is complete at its end.

    `longest_row` in tokens. Of documents that were cut, `pieces` counts the rows; `cut_rows` says of each row whether
    it is one, bool [rows].
    """

    def __init__(self, path: Path, columns: Sequence[str] = (COLUMN,), *, max_length: int = 0) -> None:
        """`max_length`: at which rows are cut, where they are."""
        import pyarrow as pa

        self._width = max_length
        self.row_count = self.longest_row = self.cut_documents = self.pieces = 0
        self.cut_rows: list[NDArray[np.bool_]] = []
        self._schema = pa.schema([(name, pa.list_(pa.int32())) for name in columns])
        self._file: Any = pa.ipc.new_file(str(path), self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()

    def add(self, columns: Columns) -> None:
        """A batch of rows with all columns of the file."""
        import pyarrow as pa

        arrays = []
        for name in self._schema.names:
            values, lengths = columns[name]
            offsets = np.concatenate(([0], np.cumsum(lengths)))
            arrays.append(pa.ListArray.from_arrays(_int32(offsets), _int32(values)))
        self._file.write_batch(pa.record_batch(arrays, schema=self._schema))
        self.row_count += len(lengths)
        self.longest_row = max(self.longest_row, int(columns[COLUMN][1].max(initial=0)))

    def _write(self, tokens: Tokens, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Row i is tokens[starts[i] : starts[i] + lengths[i]]. Rows may overlap."""
        offsets = np.cumsum(lengths) - lengths
        RowWriter.add(
            self, {COLUMN: (tokens[np.arange(lengths.sum()) + np.repeat(starts - offsets, lengths)], lengths)}
        )


def _int32(numbers: NDArray[Any]) -> Any:
    """An Arrow array of the same numbers. `pyarrow.array` would import pandas to ask whether they are its own."""
    import pyarrow as pa

    return pa.Array.from_buffers(
        pa.int32(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers, dtype=np.int32))]
    )


class StreamWriter(RowWriter):
    """Cuts all that comes, as one stream, into rows of `max_length` + 1 tokens."""

    def __init__(self, path: Path, *, max_length: int) -> None:
        super().__init__(path, max_length=max_length)
        self._pending: list[Tokens] = []
        self._pending_tokens = 0

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._pending_tokens > 1:
            self._cut(np.concatenate(self._pending))
        super().__exit__(kind)

    def add(self, columns: Columns) -> None:
        """Append tokens to the stream."""
        tokens = columns[COLUMN][0]
        self._pending.append(tokens)
        self._pending_tokens += len(tokens)
        batch_tokens = BATCH_ROWS * self._width
        if self._pending_tokens <= batch_tokens:
            return
        stream = np.concatenate(self._pending)
        whole = (len(stream) - 1) // batch_tokens
        for start in range(0, whole * batch_tokens, batch_tokens):
            self._cut(stream[start : start + batch_tokens + 1])
        rest = stream[whole * batch_tokens :]
        self._pending, self._pending_tokens = [rest], len(rest)

    def _cut(self, stream: Tokens) -> None:
        """Rows of `stream`, whose last token is the first of the next call's."""
        starts = np.arange(0, len(stream) - 1, self._width)
        self._write(stream, starts, np.minimum(self._width + 1, len(stream) - starts))


class DocumentWriter(RowWriter):
    """One row for each document. A longer one gives several, which overlap by one token, so that no label is lost."""

    def add(self, columns: Columns) -> None:
        """Documents one after another. Each has 2 tokens or more."""
        tokens, lengths = columns[COLUMN]
        pieces = -(-(lengths - 1) // self._width)
        ends = np.cumsum(lengths)
        number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)  # of a piece in its document
        starts = np.repeat(ends - lengths, pieces) + number * self._width
        sizes = np.minimum(self._width + 1, np.repeat(ends, pieces) - starts)
        for first in range(0, len(starts), BATCH_ROWS):
            self._write(tokens, starts[first : first + BATCH_ROWS], sizes[first : first + BATCH_ROWS])
        self.cut_documents += int((pieces > 1).sum())
        self.pieces += int(pieces[pieces > 1].sum())
        self.cut_rows.append(np.repeat(pieces > 1, pieces))
