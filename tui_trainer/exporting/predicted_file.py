"""Predictions for the rows of a file, as JSON lines in their order, written so that a killed program goes on.

Lines go into OUT.partial, some hundred rows at a time, and the file gets its name when it is whole. OUT.partial.json
beside it says of what they are predictions: the same command goes on behind the last whole part, and another one is
refused. So a file that was killed and gone on with is equal to one that never was.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BufferedRandom
from itertools import islice
from pathlib import Path
from typing import Any

from tui_trainer.data.columns.row import Row
from tui_trainer.data.columns.row_reader import read_rows
from tui_trainer.data.columns.text_column import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError, FolderError, InputError, RunError
from tui_trainer.runs.folder import sync_folder, write_atomically
from tui_trainer.runs.json_fields import finite
from tui_trainer.tasks.contract import InputReader

TEXT = "text"


@dataclass(slots=True)
class AskedRows:
    """The rows of a source that can be used, each with its input. What cannot be read is passed over, and counted in
    `problems`."""

    source: Source
    reader: InputReader
    problems: ProblemList = field(default_factory=ProblemList)

    def __iter__(self) -> Iterator[tuple[Row, Any]]:
        self.problems = ProblemList()
        for part in self.source.parts:
            yield from read_rows(self.reader, _rows_of(part, self.problems), self.problems)

    def count(self, field_name: str, *, skips_bad_rows: bool, told: Progress) -> int:
        """How many there are: all are read once before the model is asked. Raises DataError with what is wrong."""
        rows = 0
        for row, _ in self:
            if field_name in row.values:
                hint = "name another field with --field"
                raise DataError(f"the row has a field '{field_name}' already", where=row.where, hint=hint)
            rows += 1
            if not rows % 500:
                told("reading", rows, None, "rows")
        told("reading", rows, rows, "rows")
        self.problems.raise_any(skips_rows=skips_bad_rows)
        if not rows:
            self.problems.raise_any()
            raise DataError("there are no rows", where=self.source.description, hint="give some rows")
        return rows


def _rows_of(source: Source, problems: ProblemList) -> Iterator[Row]:
    """Of plain text each file is a row."""
    is_table = source.sample and source.sample.is_table
    if all(entry.holds_rows for entry in source.entries) if source.entries else is_table:
        yield from source.rows(problems, choices=ColumnChoices(""))
        return
    for document in source.documents(problems=problems):
        yield Row(document.where, {TEXT: document.text})


class PredictedFile:
    """The file that grows. `asked` says what is predicted, of what and how, by names of JSON."""

    def __init__(self, out: Path, asked: Mapping[str, Any], part_rows: int) -> None:
        self.out, self._asked, self._part_rows = out, {**asked, "part_rows": part_rows}, part_rows
        self.partial = out.with_name(f"{out.name}.partial")
        self._about = out.with_name(f"{out.name}.partial.json")

    def refuse(self, sources: Sequence[Path], *, overwrite: bool) -> None:
        """Raises FolderError for a place that cannot be written, and for one that is taken."""
        where = str(self.out)
        try:
            self._about.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # such as a name that is too long
            raise FolderError(f"cannot be used: {error.strerror}", where=where, hint="name another file") from None
        if self.out.is_dir():
            raise FolderError("is a folder", where=where, hint="--out names a file")
        if not self.out.parent.is_dir():
            raise FolderError("its folder does not exist", where=where, hint="make it, or name another file with --out")
        if not os.access(self.out.parent, os.W_OK | os.X_OK):
            raise FolderError("its folder cannot be written to", where=where, hint="name another file with --out")
        if any(self.out.exists() and path.exists() and path.samefile(self.out) for path in sources):
            raise FolderError("is the data itself", where=where, hint="name another file with --out")
        if self.out.exists() and not overwrite:
            raise FolderError("is there already", where=where, hint="--overwrite replaces it")
        if not self.partial.exists():
            self._about.unlink(missing_ok=True)
        elif differs := self._differences():
            if not overwrite:
                hint = "give the same command to go on with it, or --overwrite to begin anew"
                raise FolderError(f"was begun with {differs}", where=str(self.partial), hint=hint)
            self.partial.unlink()
            self._about.unlink(missing_ok=True)

    def _differences(self) -> str:
        try:
            before = json.loads(self._about.read_bytes())
            names = [name for name, value in json.loads(json.dumps(self._asked)).items() if before.get(name) != value]
        except (OSError, ValueError, AttributeError):
            return "a command that is not known any more"
        return " and ".join(f"another {name.replace('_', ' ')}" for name in names[:3])

    def write(
        self, rows: Iterator[tuple[Row, Any]], predict: Callable[[int, list[Any]], list[dict[str, Any]]], name: str
    ) -> None:
        """Each row's own fields and, under `name`, what `predict` makes of the inputs of part N.

        Raises InputError where another program writes the file, RunError where it cannot be written.
        """
        try:
            with self._opened() as file:
                number = self._whole_parts(file)
                rows = islice(rows, number * self._part_rows, None)
                while part := list(islice(rows, self._part_rows)):
                    found = predict(number, [content for _, content in part])
                    lines = [_line({**row.values, name: one}) for (row, _), one in zip(part, found, strict=True)]
                    file.write(b"".join(lines))
                    file.flush()
                    os.fsync(file.fileno())
                    number += 1
            self.partial.replace(self.out)
            self._about.unlink(missing_ok=True)
            sync_folder(self.out.absolute().parent)
        except OSError as error:
            reason = f"{error.strerror}; the same command goes on with it"
            raise RunError(f"{self.out} cannot be written: {reason}") from None

    def rows_before(self) -> int:
        try:
            with self.partial.open("rb") as file:
                return self._part_rows * (sum(line.endswith(b"\n") for line in file) // self._part_rows)
        except FileNotFoundError:
            return 0

    @contextmanager
    def _opened(self) -> Iterator[BufferedRandom]:
        if not self.partial.exists():
            write_atomically(self._about, json.dumps(self._asked, indent=1).encode())
        fd = os.open(self.partial, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "r+b") as file:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise InputError("another program is writing it", where=str(self.partial)) from None
            yield file

    def _whole_parts(self, file: BufferedRandom) -> int:
        """Cuts the file behind its last whole part: a torn line and those before it are made again."""
        parts = end = place = 0
        for number, line in enumerate(file, start=1):
            place += len(line)
            if line.endswith(b"\n") and not number % self._part_rows:
                parts, end = parts + 1, place
        file.seek(end)
        file.truncate()
        return parts


def _line(values: Mapping[str, Any]) -> bytes:
    """What is no part of JSON, such as a date, is written as text; a lone surrogate as its escape."""
    try:
        return (json.dumps(finite(values), ensure_ascii=False, default=str) + "\n").encode()
    except UnicodeEncodeError:
        return (json.dumps(finite(values), default=str) + "\n").encode()
