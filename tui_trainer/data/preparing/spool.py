"""Checked rows on disk between the passes over the data: none is read or checked twice.

One file a side, in the folder that is being filled. Who encodes a chunk reads it, so rows do not pass through the
process that began it.
"""

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tui_trainer.data.columns.row_reader import Example

CHUNK_ROWS = 1000
CHUNK_CHARACTERS = 1_000_000  # between two reports of how far it is, and two places where it can be cancelled


@dataclass(frozen=True, slots=True)
class Chunk:
    """Where some examples lie."""

    path: Path
    offset: int
    rows: int

    def examples(self) -> list[Example]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            found: list[tuple[Any, ...]] = pickle.load(file)
        return [Example(*one) for one in found]


class Spool:
    """Writes the examples of one side. A context manager: `chunks` are complete at its end."""

    def __init__(self, path: Path) -> None:
        self.chunks: list[Chunk] = []
        self._path = path
        self._file = path.open("wb")
        self._waiting: list[tuple[str, Any]] = []
        self._characters = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._file:
            if kind is None:
                self._write()

    def add(self, example: Example) -> None:
        self._waiting.append((example.text, example.content))
        self._characters += len(example.text)
        if len(self._waiting) == CHUNK_ROWS or self._characters >= CHUNK_CHARACTERS:
            self._write()

    def _write(self) -> None:
        if not self._waiting:
            return
        self.chunks.append(Chunk(self._path, self._file.tell(), len(self._waiting)))
        pickle.dump(self._waiting, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._waiting, self._characters = [], 0
