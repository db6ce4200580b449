"""From tables to rows of tokens and labels on disk: one row for each example, once for each source and settings.

    pass 1   read and check every row, hash its text, note its class     -> repeats, leaks, split
    pass 2   only where the tokenizer is made here: train it              -> tokenizer.json
    pass 3   read again, encode in batches                               -> train.arrow, eval.arrow

What a row means is the task's matter: it gives a `Reader`. In memory are 34 bytes a row and one batch of rows, so a
table may be of any length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path

from tui_trainer.data.cache import (
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
from tui_trainer.data.choosing import HELD_OUT, TRAIN, Choice, Survey, choose
from tui_trainer.data.columns import LOOKED_ROWS, ColumnChoices
from tui_trainer.data.encode_batches import EncodedBatch, encoded
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.row_notes import RowNotes, notes_of_counts, table_details
from tui_trainer.data.row_reader import Encoded, Example, Reader
from tui_trainer.data.rows import COLUMN, LABELS, RowFile, Rows
from tui_trainer.data.sources import Source
from tui_trainer.errors import DataError

BATCH_ROWS = 1000


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

    def build(self, folder: Path) -> Built:
        surveys = [self._survey(source, first=place == 0) for place, source in enumerate(self._sources)]
        if not self._cut.skip_bad_rows:
            self._problems.raise_any()
        self._refuse_empty(surveys)
        choice = choose(surveys, self._cut)
        self._reader.settle()
        if self._reader.learns:
            self._reader.learn(self._training_texts(choice), folder / TOKENIZER_FILE)
        train, held_out = self._encode(folder, choice, sum(survey.characters for survey in surveys))
        self._refuse_untrained(train)
        if not held_out.file.row_count:
            (folder / EVAL_FILE).unlink()
        counts = self._counts(surveys, choice, train, held_out)
        told = *self._choices.notes(), *self._reader.notes(), *self._problems.notes()
        lengths = quantiles(Rows(folder / TRAIN_FILE).lengths)
        details = self._reader.details() | table_details(surveys[0], choice, self._strata, self._problems)
        details |= train.notes.write(folder)
        return Built(counts, (*told, *notes_of_counts(counts, self._cut)), lengths, details)

    def _survey(self, source: Source, *, first: bool) -> Survey:
        """Pass 1 over one source."""
        survey = Survey()
        for example in self._examples(source, survey, self._problems, first=first, progress=self._progress):
            survey.add(example.text, self._strata.setdefault(example.stratum, len(self._strata)))
        return survey

    def _examples(
        self,
        source: Source,
        survey: Survey,
        problems: ProblemList,
        *,
        first: bool,
        progress: Progress | None = None,
    ) -> Iterator[Example]:
        """The rows of a source that can be used."""
        choices = self._choices if first else ColumnChoices("")
        rows = source.rows(problems, progress, max_rows=self._cut.max_rows if first else 0, choices=choices)
        head = list(islice(rows, LOOKED_ROWS))
        self._reader.held_out = not first
        if head:
            self._reader.begin(head)
        for row in chain(head, rows):
            survey.rows += 1
            try:
                yield self._reader.read(row)
            except DataError as error:
                problems.add(error)

    def _training_texts(self, choice: Choice) -> Iterator[str]:
        examples = self._examples(self._sources[0], Survey(), ProblemList(), first=True)
        return (example.text for example, side in zip(examples, choice.sides[0], strict=False) if side == TRAIN)

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

    def _chosen(self, choice: Choice) -> Iterator[tuple[int, list[Example]]]:
        """(side, examples) of all rows that stand on one, in batches."""
        for number, source in enumerate(self._sources):
            where = choice.sides[number]
            for start, batch in _batched(self._examples(source, Survey(), ProblemList(), first=number == 0)):
                part = where[start : start + len(batch)]
                if len(part) < len(batch):
                    raise DataError(f"{source.description} changed while it was read", hint="start again")
                for side in (TRAIN, HELD_OUT):
                    if chosen := [example for example, at in zip(batch, part, strict=True) if at == side]:
                        yield side, chosen

    def _refuse_empty(self, surveys: Sequence[Survey]) -> None:
        for source, survey in zip(self._sources, surveys, strict=True):
            if not len(survey):
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
            rows_read=sum(survey.rows for survey in surveys),
            bad_rows=sum(survey.rows - len(survey) for survey in surveys),
            repeated_rows=choice.repeated,
            leaked_rows=choice.leaked,
            truncated_rows=train.truncated + held_out.truncated,
            truncated_answers=train.truncated_answers + held_out.truncated_answers,
            longest_labels=max(train.longest_labels, held_out.longest_labels),
            untrained_rows=train.untrained + held_out.untrained,
        )


def _batched(examples: Iterable[Example]) -> Iterator[tuple[int, list[Example]]]:
    """(number of the first, some examples)."""
    examples, start = iter(examples), 0
    while batch := list(islice(examples, BATCH_ROWS)):
        yield start, batch
        start += len(batch)


__all__ = ["Encoded", "Example", "Reader", "prepare_examples"]
