"""From tables to rows of tokens and labels on disk: one row for each example, once for each source and settings.

    pass 1   read and check every row, hash its text, note its class     -> a spool; repeats, leaks, split
    pass 2   only where the tokenizer is made here: train it              -> tokenizer.json
    pass 3   encode what lies in the spool                                -> train.arrow, eval.arrow

What a row means is the task's matter: it gives a `Reader`. In memory are 36 bytes a row and some chunks of rows, so a
table may be of any length; on the disk the spool takes about twice as much as the text, until the rows are made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.row_reader import Encoded, Example, Reader
from tui_trainer.data.columns.text_column import LOOKED_ROWS, ColumnChoices
from tui_trainer.data.preparing.cache import (
    EVAL_FILE,
    TOKENIZER_FILE,
    TRAIN_FILE,
    Built,
    Counts,
    ExampleCut,
    PreparedData,
    find_entry,
    make_entry,
    quantiles,
)
from tui_trainer.data.preparing.encode_batches import EncodedBatch, encoded
from tui_trainer.data.preparing.mixture import source_details, source_notes, source_rows
from tui_trainer.data.preparing.row_notes import RowNotes, notes_of_counts, table_details
from tui_trainer.data.preparing.row_selection import TRAIN, Choice, Survey, characters_used, choose
from tui_trainer.data.preparing.spool import Chunk, Spool
from tui_trainer.data.preparing.token_rows import COLUMN, LABELS, RowFile, Rows
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError


def prepare_examples(
    sources: Sequence[Source],
    reader: Reader,
    cut: ExampleCut,
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    processes: int = 1,
) -> PreparedData:
    """Rows for training and evaluation, from the cache or made now. `sources`: to train on, and to evaluate on if any.
    `processes` encode.

    Without a second source, `cut.eval_fraction` of the rows is held out, of each class its share. Raises DataError for
    what is wrong in the data, for too little of it, and for a cache that cannot be written.
    """
    if entry := find_entry(sources, cut, cache_dir, progress):
        return entry
    work = _Preparation(sources, reader, cut, progress, processes)
    return make_entry(sources, cut, cache_dir, progress, work.build)


@dataclass(slots=True)
class _Side:
    """Encoded rows of one side."""

    file: RowFile
    tokens: int = 0
    labels: int = 0
    characters: int = 0
    longest: int = 0
    truncated: int = 0
    truncated_answers: int = 0
    longest_labels: int = 0
    untrained: int = 0
    notes: RowNotes = field(default_factory=RowNotes)

    def add(self, batch: EncodedBatch) -> None:
        if batch.rows:
            self.file.write_columns(batch.columns)
        self.tokens += len(batch.columns[COLUMN][0])
        self.labels += batch.labels
        self.characters += batch.characters
        self.truncated += int(batch.cut.sum())
        self.truncated_answers += batch.truncated_answers
        self.longest_labels = max(self.longest_labels, batch.longest(LABELS))
        self.untrained += batch.untrained
        self.longest = max(self.longest, batch.longest(COLUMN))
        self.notes.add(batch)


class _Preparation:
    """The passes over the sources, and what they found out."""

    def __init__(
        self, sources: Sequence[Source], reader: Reader, cut: ExampleCut, progress: Progress | None, processes: int
    ) -> None:
        self._sources, self._reader, self._cut, self._progress = sources, reader, cut, progress
        self._processes = processes
        self._problems = ProblemList()
        self._choices = ColumnChoices("")
        self._strata: dict[str, int] = {}
        self._chunks: list[list[Chunk]] = []

    def build(self, folder: Path) -> Built:
        with TemporaryDirectory(prefix="spool-", dir=folder) as spool:
            return self._build(folder, Path(spool))

    def _build(self, folder: Path, spool: Path) -> Built:
        surveys = [self._survey(number, spool / str(number)) for number in range(len(self._sources))]
        self._problems.raise_any(skips_rows=self._cut.skip_bad_rows)
        self._refuse_empty(surveys)
        choice = choose(surveys, self._cut)
        used = source_rows(self._sources[0], surveys[0].counts, choice.trained, self._cut.weights)
        self._reader.settle()
        if self._reader.learns:
            self._reader.learn(self._training_texts(choice), folder / TOKENIZER_FILE)
        train, held_out = self._encode(folder, choice, characters_used(surveys, choice))
        self._refuse_untrained(train)
        if not held_out.file.row_count:
            (folder / EVAL_FILE).unlink()
        counts = self._counts(surveys, choice, train, held_out)
        told = *self._choices.notes(), *self._reader.notes(), *self._problems.notes()
        lengths = quantiles(Rows(folder / TRAIN_FILE).lengths)
        details = self._reader.details() | table_details(surveys[0], choice, self._strata, self._problems)
        details |= train.notes.write(folder) | source_details(used)
        return Built(counts, (*told, *source_notes(used), *notes_of_counts(counts, self._cut)), lengths, details)

    def _survey(self, number: int, path: Path) -> Survey:
        """Pass 1 over one source: its usable rows go into the spool."""
        survey = Survey()
        with Spool(path) as spool:
            for source, progress in self._sources[number].each(self._progress):
                survey.begin_source()
                for example in self._examples(source, progress, first=number == 0):
                    survey.add(example.text, self._strata.setdefault(example.stratum, len(self._strata)))
                    spool.add(example)
        self._chunks.append(spool.chunks)
        return survey

    def _examples(self, source: Source, progress: Progress | None, *, first: bool) -> Iterator[Example]:
        """The rows of a source that can be used."""
        choices = self._choices if first else ColumnChoices("")
        max_rows = self._cut.max_rows if first else 0
        rows = source.rows(self._problems, progress, max_rows=max_rows, choices=choices)
        head = list(islice(rows, LOOKED_ROWS))
        self._reader.held_out = not first
        if head:
            self._reader.begin(head)
        for row in chain(head, rows):
            try:
                yield self._reader.read(row)
            except DataError as error:
                self._problems.add(error)

    def _training_texts(self, choice: Choice) -> Iterator[str]:
        for chunk, sides in self._chosen(choice):
            yield from (example.text for example, side in zip(chunk.examples(), sides, strict=True) if side == TRAIN)

    def _encode(self, folder: Path, choice: Choice, characters: int) -> tuple[_Side, _Side]:
        """Pass 3."""
        meter = Meter(self._progress, "tokenising", characters, "characters")
        with ExitStack() as stack:
            sides = [
                _Side(stack.enter_context(RowFile(folder / name, self._reader.columns)))
                for name in (TRAIN_FILE, EVAL_FILE)
            ]
            for batch in encoded(self._reader, self._chosen(choice), self._processes):
                sides[batch.side].add(batch)
                meter.report(sum(side.characters for side in sides))
        meter.finish(characters)
        return sides[0], sides[1]

    def _chosen(self, choice: Choice) -> Iterator[tuple[Chunk, NDArray[np.int8]]]:
        """Each chunk of the spool, and on which side its rows stand; again where some are used more than once."""
        for survey, chunks in enumerate(self._chunks):
            start = 0
            for chunk in chunks:
                yield from ((chunk, sides) for sides in choice.passes(survey, start, start + chunk.rows))
                start += chunk.rows

    def _refuse_empty(self, surveys: Sequence[Survey]) -> None:
        for side, survey in zip(self._sources, surveys, strict=True):
            for source, count in zip(side.parts, survey.counts, strict=True):
                if not count:
                    self._problems.raise_any()
                    raise DataError("there are no rows to learn from", where=source.description, hint="give some rows")

    def _refuse_untrained(self, train: _Side) -> None:
        if train.file.row_count:
            return
        length = self._cut.max_length
        what = f"none of the {train.untrained:,} training rows has a label within the first {length:,} tokens"
        hint = "raise data.max_length, or see `tui-trainer preview` for which tokens train"
        raise DataError(
            what if train.untrained else "no row is left to train on", where=self._sources[0].description, hint=hint
        )

    def _counts(self, surveys: Sequence[Survey], choice: Choice, train: _Side, held_out: _Side) -> Counts:
        return Counts(
            train_rows=train.file.row_count,
            train_tokens=train.tokens,
            train_documents=train.file.row_count,
            train_characters=train.characters,
            eval_rows=held_out.file.row_count,
            eval_tokens=held_out.tokens,
            eval_documents=held_out.file.row_count,
            eval_characters=held_out.characters,
            vocabulary=self._reader.vocabulary(),
            unknown_eval_tokens=0,
            train_labels=train.labels,
            eval_labels=held_out.labels,
            longest_row=max(train.longest, held_out.longest),
            rows_read=self._problems.count + sum(map(len, surveys)),
            bad_rows=self._problems.count,
            repeated_rows=choice.repeated,
            leaked_rows=choice.leaked,
            truncated_rows=train.truncated + held_out.truncated,
            truncated_answers=train.truncated_answers + held_out.truncated_answers,
            longest_labels=max(train.longest_labels, held_out.longest_labels),
            untrained_rows=train.untrained + held_out.untrained,
        )


__all__ = ["Encoded", "Example", "Reader", "prepare_examples"]
