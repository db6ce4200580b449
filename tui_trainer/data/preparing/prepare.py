"""From sources to rows of tokens on disk, once for each content and settings: the same way for every task.

    pass 1   read and check every row, hash its text             -> a spool on disk
             by the hashes: repeats, what is held out, leaks, and how often each row is used
    pass 2   only where the tokenizer is made here: train it     -> tokenizer.json
    pass 3   encode what is used, by this process or several     -> train.arrow, eval.arrow

What a row means is the task's matter, which gives a `Reader`; `Cut.rows` says how tokens are cut into rows. In memory
are about 40 bytes a row and some chunks of rows, so the data may be of any length; on the disk the spool takes about
twice as much as the text, until the rows are made.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from tui_trainer.data.columns.row_reader import Reader
from tui_trainer.data.preparing import cache
from tui_trainer.data.preparing.cache import Counts
from tui_trainer.data.preparing.encode_batches import EncodedBatch, encoded
from tui_trainer.data.preparing.mixture import SOURCES, source_rows
from tui_trainer.data.preparing.row_notes import RowNotes, notes_of_counts, row_details, write_cut_rows
from tui_trainer.data.preparing.row_selection import TRAIN, Selection, choose, chosen_rows
from tui_trainer.data.preparing.survey import Survey, Surveyor
from tui_trainer.data.preparing.token_rows import LABELS, DocumentWriter, Rows, RowWriter, StreamWriter
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError

_SKIP_HINT = "data.on_bad_rows=skip leaves out rows that cannot be used"


def prepare(
    sources: Sequence[Source],
    reader: Reader,
    cut: cache.Cut,
    cache_dir: Path,
    progress: Progress | None = None,
    *,
    processes: int = 1,
) -> cache.PreparedData:
    """Rows for training and evaluation, from the cache (`cache.find_entry`) or made now. `sources`: to train on, and to
    evaluate on if any. `processes` encode.

    Without a second source, `cut.eval_fraction` is held out: of the characters of texts, of the rows of a table. Raises
    DataError for what is wrong in the data, for too little of it, and for a cache that cannot be written.
    """
    if entry := cache.find_entry(sources, cut, cache_dir, progress):
        return entry
    work = _Preparation(sources, reader, cut, progress, processes)
    return cache.make_entry(sources, cut, cache_dir, progress, work.build)


@dataclass(slots=True)
class _Side:
    writer: RowWriter
    counted: Counter[str] = field(default_factory=Counter)
    longest_labels: int = 0
    notes: RowNotes = field(default_factory=RowNotes)

    def add(self, batch: EncodedBatch) -> None:
        if len(batch.cut):
            self.writer.add(batch.columns)
        if LABELS in batch.columns:
            self.longest_labels = max(self.longest_labels, int(batch.columns[LABELS][1].max(initial=0)))
        self.counted.update(batch.counted)
        self.notes.add(batch)


class _Preparation:
    def __init__(
        self, sources: Sequence[Source], reader: Reader, cut: cache.Cut, progress: Progress | None, processes: int
    ) -> None:
        self._sources, self._reader, self._cut, self._progress = sources, reader, cut, progress
        self._processes = processes
        self._surveyor = Surveyor(reader, cut, progress)
        self._problems = self._surveyor.problems

    def build(self, folder: Path) -> cache.Built:
        with TemporaryDirectory(prefix="spool-", dir=folder) as spool:
            return self._build(folder, Path(spool))

    def _build(self, folder: Path, spool: Path) -> cache.Built:
        surveys = [
            self._surveyor.survey(source, spool / str(number), held_out=number > 0)
            for number, source in enumerate(self._sources)
        ]
        fix = _SKIP_HINT if all(all(survey.counts) for survey in surveys) else ""
        all_rows = not any(survey.hashes or survey.blank for survey in surveys)
        skips_rows = self._cut.skip_bad_rows and not all_rows
        self._problems.raise_any(skips_rows=skips_rows, fix=fix, all_rows=all_rows)
        self._refuse_empty(surveys)
        choice = choose(surveys, self._cut, [part.description for part in self._sources[0].parts])
        if self._cut.dedup and not choice.trained.any():
            what = (
                f"no row is left to train on: {choice.repeated:,} are repeats, {choice.leaked:,} are held out as well"
            )
            raise DataError(what, where=self._sources[0].description, hint="set data.dedup to false, or give more rows")
        used = source_rows(self._sources[0], surveys[0].counts, choice.trained, self._cut.weights)
        self._reader.settle()
        if self._reader.learns:
            self._reader.learn(self._training_texts(surveys, choice), folder / cache.TOKENIZER_FILE)
        train, held_out = self._encode(folder, surveys, choice)
        self._refuse_too_little(train, held_out)
        if not held_out.writer.row_count:
            (folder / cache.EVAL_FILE).unlink()
        counts = self._counts(surveys, choice, train, held_out)
        notes = [note for survey in surveys for note in survey.notes]
        notes += [*self._reader.notes(), *self._problems.notes(), *choice.split.notes]
        notes += [*(one.words() for one in used), *notes_of_counts(counts, self._cut)]
        details = self._reader.details() | row_details(surveys[0], choice, self._surveyor.strata, self._problems)
        details |= self._write_cut_rows(folder, train) | ({SOURCES: [asdict(one) for one in used]} if used else {})
        lengths: tuple[int, ...] = ()
        if self._cut.rows != "stream":  # whose rows are all full; of documents their labels, else tokens
            lengths = cache.quantiles(Rows(folder / cache.TRAIN_FILE).lengths - int(self._cut.reads_text))
        return cache.Built(counts, tuple(notes), lengths, details)

    def _training_texts(self, surveys: Sequence[Survey], choice: Selection) -> Iterator[str]:
        characters, done = int(np.dot(surveys[0].lengths, choice.trained)), 0
        meter = Meter(self._progress, "training the tokenizer", characters, "characters")
        for rows in chosen_rows(surveys[:1], choice, self._cut):
            for example in rows.examples(TRAIN)[TRAIN]:
                yield example.text
                done += len(example.text)
                meter.report(done)
        meter.finish(characters)

    def _encode(self, folder: Path, surveys: Sequence[Survey], choice: Selection) -> tuple[_Side, _Side]:
        used = zip(surveys, choice.copies, strict=True)
        characters = sum(int(np.dot(survey.lengths, copies)) for survey, copies in used)
        meter = Meter(self._progress, "tokenising", characters, "characters")
        processes = min(self._processes, sum(len(survey.chunks) for survey in surveys))
        with ExitStack() as stack:
            train, held_out = (
                _Side(stack.enter_context(self._writer(folder / name))) for name in (cache.TRAIN_FILE, cache.EVAL_FILE)
            )
            for batch in encoded(self._reader, chosen_rows(surveys, choice, self._cut), processes):
                (train if batch.side == TRAIN else held_out).add(batch)
                meter.report(train.counted["characters"] + held_out.counted["characters"])
        meter.finish(characters)
        return train, held_out

    def _writer(self, path: Path) -> RowWriter:
        if self._cut.rows == "examples":
            return RowWriter(path, self._reader.columns)
        return (StreamWriter if self._cut.rows == "stream" else DocumentWriter)(path, max_length=self._cut.max_length)

    def _refuse_empty(self, surveys: Sequence[Survey]) -> None:
        for side, survey in zip(self._sources, surveys, strict=True):
            for source, count in zip(side.parts, survey.counts, strict=True):
                if not count:
                    self._problems.raise_any()
                    raise DataError("there are no rows to learn from", where=source.description, hint="give some rows")

    def _refuse_too_little(self, train: _Side, held_out: _Side) -> None:
        length, refused = self._cut.max_length, partial(DataError, where=self._sources[0].description)
        if self._cut.rows == "stream":
            tokens = train.counted["tokens"]
            if tokens > length:
                return
            message = f"the training text has {tokens:,} tokens, fewer than one row of {length + 1:,} "
            # A shorter row helps only where enough rows come out to learn from.
            shorter = tokens // 10
            more = f", or lower data.max_length to {shorter:,} or so" if shorter >= 16 else ""
            raise refused(f"{message}(data.max_length = {length:,}, and one)", hint=f"give more text{more}")
        if self._cut.rows == "documents":
            if not train.counted["documents"]:
                raise refused("no document for training has two tokens or more", hint="give more text")
            if len(self._sources) > 1 and not held_out.counted["documents"]:
                where = self._sources[1].description
                raise refused("no document for evaluation has two tokens or more", where=where, hint="give more text")
        elif not train.counted["documents"]:
            untrained = train.counted["untrained"]
            what = f"none of the {untrained:,} training rows has a label within the first {length:,} tokens"
            hint = "raise data.max_length, or see `tui-trainer preview` for which tokens train"
            raise refused(what if untrained else "no row is left to train on", hint=hint)

    def _write_cut_rows(self, folder: Path, train: _Side) -> dict[str, object]:
        """Which training rows were cut; the details of how long those of a table would be."""
        if self._cut.rows == "examples":
            return train.notes.write(folder)
        if self._cut.rows == "documents":
            write_cut_rows(folder, np.concatenate(train.writer.cut_rows))
        return {}

    def _counts(self, surveys: Sequence[Survey], choice: Selection, train: _Side, held_out: _Side) -> Counts:
        text, both = self._cut.reads_text, train.counted + held_out.counted
        read = self._problems.count + sum(len(survey.hashes) + survey.blank for survey in surveys)
        # The first token of a stream is no label.
        first = int(self._cut.rows == "stream")
        of_sides = {
            f"{name}_{what}": side.counted[what]
            for name, side in (("train", train), ("eval", held_out))
            for what in ("tokens", "documents", "characters")
        }
        return Counts(
            **of_sides,
            train_rows=train.writer.row_count,
            eval_rows=held_out.writer.row_count,
            vocabulary=self._reader.vocabulary(),
            unknown_eval_tokens=held_out.counted["unknown"],
            train_labels=train.counted["labels"] - first,
            eval_labels=max(0, held_out.counted["labels"] - first),
            longest_row=max(train.writer.longest_row, held_out.writer.longest_row) - int(text),
            row_documents=max(train.writer.row_documents, held_out.writer.row_documents),
            rows_read=0 if text else read,
            documents_read=read if text else 0,
            bad_rows=self._problems.count,
            repeated_rows=choice.repeated,
            leaked_rows=choice.leaked,
            truncated_rows=both["truncated"],
            truncated_answers=both["truncated_answers"],
            longest_labels=max(train.longest_labels, held_out.longest_labels),
            untrained_rows=0 if text else both["untrained"],
            cut_documents=train.writer.cut_documents + held_out.writer.cut_documents,
            pieces=train.writer.pieces + held_out.writer.pieces,
            short_documents=both["untrained"] if text else 0,
            marked_rows=both["marked"],
        )
