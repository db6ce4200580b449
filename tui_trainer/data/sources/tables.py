"""Rows of Parquet and Arrow files, read with pyarrow, one batch at a time.

The `datasets` library is not used, because it copies Parquet into its own cache, takes seconds to import, and crashes
on a damaged Arrow file, which it does not validate. Arrow files have the extension .arrow or .feather, or come from
`save_to_disk`; both the file and the stream format are read. If `datasets` stored features in a file, numbers that
stand for names (ClassLabel) are replaced with the names.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from tui_trainer.data.columns.row import Row, refuse_repeated_columns
from tui_trainer.data.decoding import CHUNK_BYTES
from tui_trainer.errors import DataError
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB

BATCH_ROWS = 1000
BATCH_BYTES = 16 * MIB
FEATHER_1 = b"FEA1"
ARROW_FILE = b"ARROW1"
_KINDS = {"parquet": "Parquet", "arrow": "Arrow"}

Batches = Callable[[list[str]], Iterator[Any]]  # columns -> record batches


def read_table(content: BinaryIO, label: str, form: str, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Yield each row of a Parquet file, or of an Arrow IPC file or stream, with these `columns` (none: all columns)."""
    kind, row_number = _KINDS[form], 0
    with _errors_in_one_line(label, kind):
        schema, batches = (_open_parquet if form == "parquet" else _open_arrow)(content, label)
        names: list[str] = schema.names if schema is not None else []
        refuse_repeated_columns(names, label)
        column_namers = class_namers(schema)
        for batch in batches([*columns] or names):
            for start in range(0, batch.num_rows, BATCH_ROWS):
                with _errors_in_one_line(label, kind, f", row {row_number + 1:,} or after"):
                    part = batch.slice(start, BATCH_ROWS)
                    part.validate(full=True)
                    values = {name: _values(part.column(position)) for position, name in enumerate(part.schema.names)}
                for fields in zip(*values.values(), strict=True):
                    row_number += 1
                    named_values = with_names(dict(zip(values, fields, strict=True)), column_namers)
                    yield Row(f"{label}, row {row_number:,}", named_values)


def _values(column: Any) -> list[Any]:
    """Return the values of a column, without null keys of objects. In these formats, all objects of a column have the
    same keys, and a key that an object did not have is null."""
    values: list[Any] = column.to_pylist()
    return [_without_nulls(value) for value in values] if "struct<" in str(column.type) else values


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value


def row_count(content: BinaryIO, label: str, form: str) -> int:
    """Return the number of rows in a whole file, from a Parquet file's index or the headers of Arrow batches."""
    import pyarrow.parquet as pq

    with _errors_in_one_line(label, _KINDS[form]):
        if form == "parquet":
            return int(pq.ParquetFile(content).metadata.num_rows)
        schema, batches = _open_arrow(content, label)
        return sum(batch.num_rows for batch in batches(schema.names[:1] if schema is not None else []))


def column_names(content: BinaryIO, label: str, form: str) -> list[str]:
    """Return the names of the columns from the schema, and rewind the file."""
    with _errors_in_one_line(label, _KINDS[form]):
        schema, _ = (_open_parquet if form == "parquet" else _open_arrow)(content, label)
    content.seek(0)
    return [] if schema is None else list(schema.names)


Namer = Callable[[Any], Any]


def class_namers(schema: Any) -> dict[str, Namer]:
    """Return a function from number to class name for each column with a ClassLabel in the metadata of `datasets`."""
    try:
        return namers(json.loads(schema.metadata[b"huggingface"])["info"]["features"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}


def namers(features: Mapping[str, Any]) -> dict[str, Namer]:
    """Return a function from number to class name for each column with a ClassLabel in `Features.to_dict()`."""
    return {name: namer for name, feature in features.items() if (namer := _namer(feature))}


def with_names(values: dict[str, Any], column_namers: Mapping[str, Namer]) -> dict[str, Any]:
    return values | {name: namer(values[name]) for name, namer in column_namers.items() if name in values}


def _namer(feature: Any) -> Namer | None:
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        names = list(feature["names"])
        # `datasets` writes -1 for a missing label.
        names_by_number = {-1: None, **dict(enumerate(names))}
        return lambda value: names_by_number.get(value, value) if isinstance(value, int) else value
    item_feature = feature[0] if isinstance(feature, list) and feature else None
    if isinstance(feature, dict) and feature.get("_type") in ("Sequence", "List", "LargeList"):
        item_feature = feature.get("feature")
    namer = _namer(item_feature) if item_feature else None
    return (lambda value: [namer(item) for item in value] if isinstance(value, list) else value) if namer else None


def _open_parquet(content: BinaryIO, _: str) -> tuple[Any, Batches]:
    """Return the schema, and a function that yields batches of the named columns."""
    import pyarrow.parquet as pq

    # Without a buffer, pyarrow would read the column of a whole row group at once.
    file = pq.ParquetFile(content, buffer_size=CHUNK_BYTES, pre_buffer=False)
    row_groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    row_bytes = max((group.total_byte_size // max(1, group.num_rows) for group in row_groups), default=0)
    batch_rows = int(max(1, min(BATCH_ROWS, BATCH_BYTES // max(1, row_bytes))))
    return file.schema_arrow, lambda names: file.iter_batches(batch_size=batch_rows, columns=names, use_threads=False)


def _open_arrow(content: BinaryIO, label: str) -> tuple[Any, Batches]:
    """Return the schema, None for an empty file, and a function that yields batches of the named columns."""
    import pyarrow as pa

    first_bytes = content.read(len(ARROW_FILE))
    if not first_bytes:
        return None, lambda _: iter(())
    if first_bytes.startswith(FEATHER_1):
        raise DataError("Feather files of version 1 are not supported", where=label, hint="convert the file to Parquet")

    def open_reader(fields: list[int]) -> Any:
        content.seek(0)
        arrow_reader = pa.ipc.open_file if first_bytes == ARROW_FILE else pa.ipc.open_stream
        return arrow_reader(content, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))

    schema = open_reader([]).schema

    def batches(names: list[str]) -> Iterator[Any]:
        arrow_reader = open_reader([schema.get_field_index(name) for name in names])
        if first_bytes == ARROW_FILE:
            yield from (arrow_reader.get_batch(number) for number in range(arrow_reader.num_record_batches))
        else:
            yield from arrow_reader

    return schema, batches


@contextmanager
def _errors_in_one_line(label: str, kind: str, position: str = "") -> Iterator[None]:
    """Context manager that raises errors of pyarrow as a DataError of one line."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError, LookupError, TypeError, MemoryError) as error:
        problem = f"not a valid {kind} file ({one_line(str(error), 80)})"
        raise DataError(problem, where=f"{label}{position}", hint="download or copy the file again") from None
