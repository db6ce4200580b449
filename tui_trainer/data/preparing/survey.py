"""Pass 1: every row is read and checked once. What can be used lies in the spool, and three numbers of it in memory."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path

from tui_trainer.data.columns.row_reader import Example, Reader
from tui_trainer.data.columns.text_column import LOOKED_ROWS, ColumnChoices
from tui_trainer.data.preparing.cache import Cut
from tui_trainer.data.preparing.spool import Chunk, Spool
from tui_trainer.data.preparing.text_hash import text_hash
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError


@dataclass(slots=True)
class Survey:
    """Of the rows of one side that can be used, in order: a hash of the text, the number of the class, and characters;
    how many of them each source has in `counts`, and where they lie in `chunks`.

    Documents without text are left out: `blank` of them.
    """

    hashes: array[int] = field(default_factory=lambda: array("Q"))
    strata: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
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
        head = list(islice(rows, LOOKED_ROWS))
        if head:
            self._reader.begin(head)
        for row in chain(head, rows):
            try:
                yield self._reader.read(row)
            except DataError as error:
                self.problems.add(error)
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
