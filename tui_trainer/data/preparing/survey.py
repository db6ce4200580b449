"""Pass 1: every row is read and checked once. What can be used lies in the spool, and three numbers of it in memory."""

import pickle
import re
import unicodedata
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from tui_trainer.data.columns.row_reader import Example, Reader, read_rows
from tui_trainer.data.columns.text_column import ColumnChoices
from tui_trainer.data.preparing.cache import Cut
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.source import Source

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


_PIECE_CHARACTERS = 1 << 16
_SPACE = re.compile(r"\s")


@dataclass(slots=True)
class Survey:
    """Of the rows of one side that can be used, in order: a hash of the text, the number of the class, and characters;
    how many of them each source has in `counts`, and where they lie in `chunks`.

    Documents without text are left out: `blank` of them.
    """

    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    strata: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    counts: list[int] = field(default_factory=list)
    blank: int = 0
    notes: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)


class Surveyor:
    """Reads the sources one after another. What cannot be used goes into `problems`; `strata` numbers the classes."""

    def __init__(self, reader: Reader, cut: Cut, progress: Progress | None) -> None:
        self.problems = ProblemList()
        self.strata: dict[str, int] = {}
        self._reader, self._cut, self._progress = reader, cut, progress

    def survey(self, source: Source, path: Path, *, held_out: bool) -> Survey:
        """One side, with the spool at `path`. Only what is trained on is limited. Raises DataError for a source
        without text.
        """
        self._reader.held_out = held_out
        cut = replace(self._cut, max_rows=0, max_chars=0) if held_out else self._cut
        survey = Survey()
        with Spool(path) as spool:
            for part, progress in source.each(self._progress):
                before = len(survey.hashes)
                choices = ColumnChoices(part.text_column if cut.reads_text else "")
                read = self._documents if cut.reads_text else self._rows
                for example in read(part, cut, choices, progress, survey):
                    survey.hashes.append(text_hash(example.text))
                    survey.strata.append(self.strata.setdefault(example.stratum, len(self.strata)))
                    survey.lengths.append(len(example.text))
                    spool.add(example)
                survey.counts.append(len(survey.hashes) - before)
        survey.chunks = spool.chunks
        return survey

    def _rows(
        self, part: Source, cut: Cut, choices: ColumnChoices, progress: Progress | None, survey: Survey
    ) -> Iterator[Example]:
        """The rows of a table, after its first ones were shown to the reader."""
        rows = part.rows(self.problems, progress, max_rows=cut.max_rows, choices=choices)
        yield from (example for _, example in read_rows(self._reader, rows, self.problems))
        survey.notes += choices.notes()

    def _documents(
        self, part: Source, cut: Cut, choices: ColumnChoices, progress: Progress | None, survey: Survey
    ) -> Iterator[Example]:
        """The documents that hold text. Each stands in memory alone, however long it is."""
        found = part.documents(
            progress, max_chars=cut.max_chars, max_rows=cut.max_rows, choices=choices, problems=self.problems
        )
        characters = used = blank = 0
        for document in found:
            characters += len(document.text)
            if document.text and not document.text.isspace():
                used += 1
                yield Example(document.text, None)
            else:
                blank += 1
        survey.notes += choices.notes()
        if cut.max_chars and characters >= cut.max_chars:
            survey.notes.append(
                f"data.max_chars: the first {characters:,} characters are used, "
                f"{used:,} documents, the last of them cut there"
            )
        if blank:
            survey.notes.append(f"{blank:,} documents hold only white space and are left out")
        survey.blank += blank


def text_hash(text: str) -> int:
    """By which texts are found to be the same, with letters in one form and white space made equal: 64 bits. Two of a
    billion different texts are taken for the same with a chance of one in 40.

    A long text is hashed in pieces that begin at white space, where letters do not combine.
    """
    import xxhash

    digest, start, gap = xxhash.xxh3_64(), 0, ""
    while start < len(text):
        space = _SPACE.search(text, start + _PIECE_CHARACTERS)
        end = space.start() if space else len(text)
        words = unicodedata.normalize("NFC", text[start:end]).split()
        if words:
            digest.update((gap + " ".join(words)).encode())
            gap = " "
        start = end
    return int(digest.intdigest())
