"""Parquet and Arrow files, a batch of rows at a time: the texts of the one column that holds them, or all columns.

Arrow files are those with the ending .arrow or .feather and those that `save_to_disk` of datasets writes; both forms
of them, the file and the stream, are read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from tui_trainer.data.columns.text_column import LOOKED_ROWS, ColumnChoices, Row, text_of
from tui_trainer.data.decoding import CHUNK_BYTES
from tui_trainer.data.problems import ProblemList
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line
from tui_trainer.units import MIB

BATCH_ROWS = 1000
BATCH_BYTES = 16 * MIB
FEATHER_1 = b"FEA1"
ARROW_FILE = b"ARROW1"

Texts = Iterator[tuple[str, str]]  # text, where
Batches = Callable[[list[str], int], Iterator[Any]]  # (columns, rows in a batch at the most) -> record batches


def read_parquet(content: BinaryIO, label: str, problems: ProblemList, choices: ColumnChoices) -> Texts:
    """(text, where) of each row of a Parquet file."""
    yield from _texts(*_open_parquet(content, label), label, "Parquet", problems, choices)


def read_arrow(content: BinaryIO, label: str, problems: ProblemList, choices: ColumnChoices) -> Texts:
    """(text, where) of each row of an Arrow IPC file or stream."""
    if opened := _open_arrow(content, label):
        yield from _texts(*opened, label, "Arrow", problems, choices)


def read_parquet_rows(content: BinaryIO, label: str) -> Iterator[Row]:
    """All columns of each row of a Parquet file."""
    yield from _rows(*_open_parquet(content, label), label, "Parquet")


def read_arrow_rows(content: BinaryIO, label: str) -> Iterator[Row]:
    """All columns of each row of an Arrow IPC file or stream."""
    if opened := _open_arrow(content, label):
        yield from _rows(*opened, label, "Arrow")


def _open_parquet(content: BinaryIO, label: str) -> tuple[Any, Batches]:
    """(schema, batches of some columns)."""
    import pyarrow.parquet as pq

    with _told_in_one_line(label, "Parquet"):
        # a buffer: without one, the column of a whole row group is read at once
        file = pq.ParquetFile(content, buffer_size=CHUNK_BYTES, pre_buffer=False)
        row_bytes = _row_bytes(file.metadata)

    def batches(columns: list[str], rows: int) -> Iterator[Any]:
        fitting = int(max(1, min(rows, BATCH_BYTES // max(1, row_bytes))))
        yield from file.iter_batches(batch_size=fitting, columns=columns, use_threads=False)

    return file.schema_arrow, batches


def _open_arrow(content: BinaryIO, label: str) -> tuple[Any, Batches] | None:
    """The same; None where there is nothing in the file."""
    start = content.read(len(ARROW_FILE))
    if not start:
        return None
    if start.startswith(FEATHER_1):
        raise DataError("a Feather file of version 1", where=label, hint="write it again as Parquet")
    reader = _ipc_file if start == ARROW_FILE else _ipc_stream
    with _told_in_one_line(label, "Arrow"):
        schema = reader(content, []).schema

    def batches(columns: list[str], _rows: int) -> Iterator[Any]:
        opened = reader(content, [schema.get_field_index(name) for name in columns])
        if hasattr(opened, "get_batch"):
            yield from (opened.get_batch(number) for number in range(opened.num_record_batches))
        else:
            yield from opened

    return schema, batches


def _rows(schema: Any, batches: Batches, label: str, kind: str) -> Iterator[Row]:
    names = _names(schema, label, kind)
    labels = _class_names(schema)
    row = 0
    for batch in _guarded(batches(names, BATCH_ROWS), label, kind):
        for start in range(0, batch.num_rows, BATCH_ROWS):
            with _told_in_one_line(label, kind, f", row {row + 1:,} or after"):
                part = batch.slice(start, BATCH_ROWS)
                part.validate(full=True)
                columns = {name: part.column(place).to_pylist() for place, name in enumerate(part.schema.names)}
            for values in zip(*columns.values(), strict=True):
                row += 1
                named = dict(zip(columns, values, strict=True))
                yield Row(f"{label}, row {row:,}", named | {name: of(named[name]) for name, of in labels.items()})


def _class_names(schema: Any) -> dict[str, Callable[[Any], Any]]:
    """Numbers that stand for names, as datasets writes them (ClassLabel): what turns each back into its name."""
    try:
        features = json.loads(schema.metadata[b"huggingface"])["info"]["features"]
        return {name: namer for name, feature in features.items() if (namer := _namer(feature))}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def _namer(feature: Any) -> Callable[[Any], Any] | None:
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        names = list(feature["names"])
        return lambda value: names[value] if isinstance(value, int) and 0 <= value < len(names) else value
    inner = feature[0] if isinstance(feature, list) and feature else None
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        inner = feature.get("feature")
    namer = _namer(inner) if inner else None
    return (lambda value: [namer(item) for item in value] if isinstance(value, list) else value) if namer else None


def _texts(
    schema: Any, batches: Batches, label: str, kind: str, problems: ProblemList, choices: ColumnChoices
) -> Texts:
    column = choices.choose(label, _strings(schema, batches, label, kind))
    row = 0
    for batch in _guarded(batches([column], BATCH_ROWS), label, kind):
        for start in range(0, batch.num_rows, BATCH_ROWS):
            for value in _values(batch.column(0).slice(start, BATCH_ROWS), label, kind, row + 1):
                row += 1
                where = f"{label}, row {row:,}"
                try:
                    yield text_of(Row(where, {column: value}), column), where
                except DataError as error:
                    problems.add(error)


def _strings(schema: Any, batches: Batches, label: str, kind: str) -> dict[str, list[str]]:
    """The strings of the first rows. Columns of other types have none."""
    all_names = _names(schema, label, kind)
    names = [field.name for field in schema if _holds_strings(field.type)]
    found: dict[str, list[str]] = {name: [] for name in all_names}
    for batch in _guarded(batches(names, LOOKED_ROWS) if names else iter(()), label, kind):
        for place, name in enumerate(batch.schema.names):
            values = _values(batch.column(place).slice(0, LOOKED_ROWS), label, kind, 1)
            found[name] = [value for value in values if value is not None]
        if batch.num_rows:
            break
    return found


def _names(schema: Any, label: str, kind: str) -> list[str]:
    with _told_in_one_line(label, kind):
        names: list[str] = schema.names
    if doubles := [name for place, name in enumerate(names) if name in names[:place]]:
        raise DataError(f"two columns are named '{one_line(doubles[0], 40)}'", where=label, hint="rename one of them")
    return names


def _holds_strings(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _values(column: Any, label: str, kind: str, row: int) -> list[Any]:
    """Python values of a part of a column that begins with `row`, after a look at its bytes."""
    with _told_in_one_line(label, kind, f", row {row:,} or after"):
        column.validate(full=True)
        values: list[Any] = column.to_pylist()
        return values


def _guarded(batches: Iterator[Any], label: str, kind: str) -> Iterator[Any]:
    while True:
        with _told_in_one_line(label, kind):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


def _row_bytes(metadata: Any) -> int:
    """Unpacked bytes of a row on average, in the row group where it is most."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return max((group.total_byte_size // max(1, group.num_rows) for group in groups), default=0)


def _ipc_file(content: BinaryIO, fields: list[int]) -> Any:
    import pyarrow as pa

    return pa.ipc.open_file(content, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))


def _ipc_stream(content: BinaryIO, fields: list[int]) -> Any:
    import pyarrow as pa

    content.seek(0)
    return pa.ipc.open_stream(content, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))


@contextmanager
def _told_in_one_line(label: str, kind: str, place: str = "") -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, MemoryError) as error:
        raise DataError(
            f"not a sound {kind} file ({one_line(str(error), 80)})",
            where=f"{label}{place}",
            hint="download or copy it again",
        ) from None


def row_count(path: Path, label: str, form: str) -> int:
    """Rows of a whole file, from its index or from the heads of its batches: their content is not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _told_in_one_line(label, form), pa.memory_map(str(path)) as mapped:
        if form == "parquet":
            return int(pq.ParquetFile(mapped).metadata.num_rows)
        start = mapped.read(len(ARROW_FILE))
        opened = (_ipc_file if start == ARROW_FILE else _ipc_stream)(mapped, [0])
        if hasattr(opened, "get_batch"):
            return sum(opened.get_batch(number).num_rows for number in range(opened.num_record_batches))
        return sum(batch.num_rows for batch in opened)
