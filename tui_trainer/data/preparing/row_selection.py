"""Selection of rows: which are trained on and how often, held out, or left out.

It depends only on the hashes of the texts, the classes and the lengths, which the survey (pass 1) collects from every
row while it writes usable rows to a spool. Sources with weights have rows repeated or left out at random.

The held-out rows are drawn with a seed: the same lengths and seed give the same split on every machine and with every
version of numpy (the raw stream of a bit generator is fixed; see numpy NEP 19).
"""

import os
import pickle
import re
import unicodedata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.columns.reader import Example, Reader, ReadInOrder, read_more, read_rows
from tui_trainer.data.columns.row import LateColumns, Row, columns_of, file_of
from tui_trainer.data.columns.text_columns import FIRST_ROWS, ColumnChoices, head_of
from tui_trainer.data.preparing.cache import SOURCES_KEY, RowSettings
from tui_trainer.data.preparing.processes import Processes
from tui_trainer.data.problems import ProblemList, RecordedProblems
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.reading import LineBlock, line_blocks, texts_of
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError, Problem
from tui_trainer.units import quantity

CHUNK_ROWS = 1000
CHUNK_CHARACTERS = 1_000_000  # between two reports of progress, where the work can also be cancelled
_PIECE_CHARACTERS = 1 << 16
_SPACE = re.compile(r"\s")
# A row that is repeated more often in an epoch is memorised, and keeps nothing else of what the model could do.
_MOST_REPETITIONS = 100
LARGEST_RELATIVE_ERROR = 0.5  # largest relative error of the held-out share
TRAIN, HELD_OUT, LEFT_OUT = 0, 1, 2
RowNumbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of one of several sources: its usable rows, including held-out ones, and the rows that an epoch of training
    uses. Both numbers are estimates before the data is prepared."""

    description: str
    weight: float
    rows: int
    rows_per_epoch: int
    is_replay: bool = False

    def words(self, *, exact: bool = True) -> str:
        """Return text such as `a.jsonl (1.2 MiB): 1,000 rows, 1,800 per training epoch (data.weights 2)`."""
        weight_note = "" if self.weight == 1 else f" (data.weights {self.weight:g})"
        weight_note = " (data.replay)" if self.is_replay else weight_note
        qualifier = "" if exact else "about "
        row_counts = f"{qualifier}{self.rows:,} rows, {qualifier}{self.rows_per_epoch:,} per training epoch"
        return f"{self.description}: {row_counts}{weight_note}"


def used_rows(rows: int, weight: float) -> int:
    """Return how many rows of a source an epoch uses: its training rows times its weight, as a whole number."""
    repetitions = int(weight)
    return repetitions * rows + round((weight - repetitions) * rows)


def source_weights(settings: RowSettings, amounts: Sequence[float], where: str) -> tuple[float, ...]:
    """Return the weight of each source, such that those of data.replay, the last ones, give `settings.replay_share` of
    what an epoch trains on; () if all are 1.

    `amounts`: the training rows of each source, or the characters of its texts. Raises DataError, which names `where`,
    if replayed rows would be repeated too often."""
    if not settings.replay_sources:
        return settings.weights
    path_weights = settings.weights or (1.0,) * (len(amounts) - settings.replay_sources)
    path_amount = sum(amount * weight for amount, weight in zip(amounts, path_weights, strict=False))
    share, replay_amount = settings.replay_share, sum(amounts[len(path_weights) :])
    weight = share / (1 - share) * path_amount / max(replay_amount, 1)
    if weight > _MOST_REPETITIONS:
        message = f"has too few rows for data.replay_share = {share:g}: each would be used {weight:,.0f} times"
        raise DataError(message, where=where, hint="add rows to data.replay, or lower data.replay_share")
    return (*path_weights, *(weight,) * settings.replay_sources)


def copies_of(is_trained: Mask, counts: Sequence[int], weights: Sequence[float], seed: int) -> NDArray[np.int16]:
    """Return how often an epoch uses each row: int16 [rows], 0 for rows that are not `is_trained`, bool [rows].

    The rows of the sources follow one another, `counts` of each. Of the n trained rows of a source with weight w, each
    is used floor(w) times, and round((w - floor(w)) n), drawn with the seed, once more. Without weights, w is 1."""
    copies = is_trained.astype(np.int16)
    first_row = 0
    for source_number, (count, weight) in enumerate(zip(counts, weights, strict=bool(weights))):
        row_numbers = first_row + np.flatnonzero(is_trained[first_row : first_row + count])
        copies[row_numbers] = int(weight)
        if extra_rows := used_rows(len(row_numbers), weight) - int(weight) * len(row_numbers):
            drawn_order = np.argsort(np.random.PCG64([seed, source_number]).random_raw(len(row_numbers)), kind="stable")
            copies[row_numbers[drawn_order[:extra_rows]]] += 1
        first_row += count
    return copies


def source_rows(
    source: Source, counts: Sequence[int], selection: "Selection", replay_sources: int
) -> tuple[SourceRows, ...]:
    """Return the rows of each source; () for one without a weight. Raises DataError if no row of a source is used."""
    if not source.joined_sources and not selection.weights:
        return ()
    sources, first_row = list[SourceRows](), 0
    for part, count, weight in zip(source.parts, counts, selection.weights or [1.0] * len(counts), strict=True):
        epoch_rows = int(selection.training_copies[first_row : first_row + count].sum())
        is_replay = len(sources) >= len(counts) - replay_sources
        if not epoch_rows and weight < 1:
            message = f"with a weight of {weight:g}, none of the {count:,} rows of this source is trained on"
            text_note = "; a text file is one row, which is used as a whole or not at all" if count == 1 else ""
            setting = "data.replay_share" if is_replay else "the weight of the source in data.weights"
            hint = f"raise {setting}, or remove the source{text_note}"
            raise DataError(message, where=part.description, hint=hint)
        sources.append(SourceRows(part.description, weight, count, epoch_rows, is_replay))
        first_row += count
    return tuple(sources)


def sources_in(details: Mapping[str, Any]) -> tuple[SourceRows, ...]:
    """Return the rows of each source, as they are stored in the details of prepared data."""
    return tuple(SourceRows(**values) for values in details.get(SOURCES_KEY, ()))


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """Position in a spool of some examples that were written together."""

    path: Path
    offset: int
    row_count: int

    def examples(self) -> list[Example]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            examples: list[tuple[Any, ...]] = pickle.load(file)
        return [Example(*values) for values in examples]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are encoded together: `row_count` of the `spooled` examples, after leaving out the first `skipped`."""

    spooled: tuple[SpooledRows, ...]
    skipped: int
    row_count: int

    def examples(self) -> list[Example]:
        examples = [example for spooled_rows in self.spooled for example in spooled_rows.examples()]
        return examples[self.skipped : self.skipped + self.row_count]


def chunks_of(spooled: Sequence[SpooledRows], lengths: NDArray[np.int64]) -> list[Chunk]:
    """Split all rows into chunks of CHUNK_ROWS, or fewer with CHUNK_CHARACTERS. The chunks do not depend on how the
    rows were spooled. `lengths` are the characters of each row, int64 [rows]."""
    ends, spool_ends = np.cumsum(lengths), np.cumsum([spooled_rows.row_count for spooled_rows in spooled])
    chunks: list[Chunk] = []
    start = 0
    while start < len(lengths):
        used_characters = int(ends[start] - lengths[start])
        end = min(start + CHUNK_ROWS, int(np.searchsorted(ends, used_characters + CHUNK_CHARACTERS)) + 1, len(lengths))
        first_spool, last_spool = np.searchsorted(spool_ends, [start, end - 1], side="right").tolist()
        skipped = start - int(spool_ends[first_spool] - spooled[first_spool].row_count)
        chunks.append(Chunk(tuple(spooled[first_spool : last_spool + 1]), skipped, end - start))
        start = end
    return chunks


class Spool:
    """Writes the examples of one source to the end of a file. A context manager: `written` is complete after it."""

    def __init__(self, path: Path) -> None:
        self.written: list[SpooledRows] = []
        self._path = path
        self._file = path.open("ab")
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
        self.written.append(SpooledRows(self._path, self._file.tell(), len(self._waiting)))
        pickle.dump(self._waiting, self._file, protocol=pickle.HIGHEST_PROTOCOL)
        self._waiting, self._characters = [], 0


@dataclass(slots=True)
class Survey:
    """Facts about the usable rows of a source, in order: a hash of each text, the number of its class, and its length
    in characters. `counts`: rows of each part of the source. `chunks`: positions of the rows in the spool.
    `blank_count`: number of skipped documents without text."""

    hashes: "array[int]" = field(default_factory=lambda: array("Q"))
    strata: "array[int]" = field(default_factory=lambda: array("q"))
    lengths: "array[int]" = field(default_factory=lambda: array("q"))
    counts: list[int] = field(default_factory=list)
    blank_count: int = 0
    notes: list[str] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)

    def add(self, examples: Iterable[Example], strata: dict[str, int], spool: Spool) -> None:
        """Add usable rows, and write them to the spool. `strata` numbers the classes, and gets the new ones."""
        for example in examples:
            self.hashes.append(text_hash(example.text))
            self.strata.append(strata.setdefault(example.stratum, len(strata)))
            self.lengths.append(len(example.text))
            spool.add(example)

    def contradictions(self) -> list[str]:
        """Return a note about rows that have the text of an earlier row but another class."""
        strata = np.frombuffer(self.strata, dtype=np.int64)
        hashes = np.frombuffer(self.hashes, dtype=np.uint64)
        _, first_rows, group_of_row = np.unique(hashes, return_index=True, return_inverse=True)
        count = int((strata != strata[first_rows[group_of_row]]).sum())
        return [f"{quantity(count, 'row', 'duplicate')} earlier rows, but with another label"] if count else []

    def with_text(self, texts: Iterable[str]) -> Iterator[Example]:
        """Yield an example for each text that is not blank, and count the blank ones."""
        for text in texts:
            if text and not text.isspace():
                yield Example(text, None)
            else:
                self.blank_count += 1


@dataclass(frozen=True, slots=True)
class _BlockTask:
    """A block of lines for another process to read. `table_columns` are those of the table's first rows; None for
    documents. Each process writes its examples to a file of its own, named after `spool`."""

    block: LineBlock
    table_columns: frozenset[str] | None
    checks_first_rows: bool
    spool: Path


@dataclass(frozen=True, slots=True)
class _BlockSurvey:
    """The survey of a block, whose `strata` are positions in `class_names`, and what the reader observed."""

    survey: Survey
    class_names: list[str]
    spooled: list[SpooledRows]
    problems: list[tuple[tuple[Problem, ...], Mapping[str, object] | None]]
    observations: Any


def _read_in_order(row: Row) -> None:
    raise ReadInOrder


def _survey_block(reader: Reader | None, task: _BlockTask) -> _BlockSurvey:
    """Read and survey a block, in another process. Raises ReadInOrder if one process has to read all rows."""
    survey, classes, problems = Survey(), dict[str, int](), RecordedProblems()
    with Spool(task.spool.with_name(f"{task.spool.name}-{os.getpid()}")) as spool:
        try:
            rows = task.block.rows(problems)
            if task.checks_first_rows:  # a single process also finds the errors of the first rows before any others
                is_text = task.table_columns is None
                first_rows, error = head_of(rows) if is_text else (list(islice(rows, FIRST_ROWS)), None)
                if error:
                    raise ReadInOrder
                rows = chain(first_rows, rows)
            if reader is None or task.table_columns is None:
                late_columns = LateColumns(task.block.columns, _read_in_order)
                documents = texts_of(rows, task.block.column, problems, late_columns)
                examples = survey.with_text(document.text for document in documents)
            else:
                examples = (example for _, example in read_more(reader, rows, task.table_columns, problems))
            survey.add(examples, classes, spool)
        except DataError:  # an error of the file: errors of rows are in `problems`
            raise ReadInOrder from None
    observations = reader.take_observations() if reader else None
    return _BlockSurvey(survey, list(classes), spool.written, problems.problems_of_rows, observations)


class Surveyor:
    """Reads the sources one after another. Collects errors in `problems`, and numbers the classes in `strata`. With
    `processes`, raises ReadInOrder if a single process has to read the rows, which needs a new reader."""

    def __init__(
        self, reader: Reader, settings: RowSettings, progress: Progress | None, processes: Processes | None = None
    ) -> None:
        self.problems = ProblemList()
        self.strata: dict[str, int] = {}
        self._reader, self._settings, self._progress, self._processes = reader, settings, progress, processes

    def survey(self, source: Source, path: Path, *, held_out: bool) -> Survey:
        """Read one source, and write its usable rows to a spool at `path`. data.max_rows and data.max_chars apply to
        training data only. Raises DataError if the source is empty."""
        self._reader.is_held_out = held_out
        settings = replace(self._settings, max_rows=0, max_chars=0) if held_out else self._settings
        survey, spooled_rows = Survey(), list[SpooledRows]()
        for part, progress in source.each(self._progress):
            rows_before = len(survey.hashes)
            choices = ColumnChoices(part.text_column if settings.reads_text else "")
            if self._processes:
                spooled_rows += self._rows_in_parallel(self._processes, part, settings, choices, progress, survey, path)
            else:
                read_rows = self._documents if settings.reads_text else self._rows
                with Spool(path) as spool:
                    survey.add(read_rows(part, settings, choices, progress, survey), self.strata, spool)
                spooled_rows += spool.written
            survey.counts.append(len(survey.hashes) - rows_before)
        survey.notes += survey.contradictions() if len(self.strata) > 1 else []
        survey.chunks = chunks_of(spooled_rows, np.frombuffer(survey.lengths, dtype=np.int64))
        return survey

    def _rows_in_parallel(
        self,
        processes: Processes,
        part: Source,
        settings: RowSettings,
        choices: ColumnChoices,
        progress: Progress | None,
        survey: Survey,
        path: Path,
    ) -> Iterator[SpooledRows]:
        """Read rows in other processes, add them to `survey` in order, and yield their positions in the spools."""
        known_columns: frozenset[str] | None = None
        if settings.max_rows or settings.max_chars or not part.entries:
            raise ReadInOrder
        if not settings.reads_text:
            first_rows = list(islice(part.rows(ProblemList(), choices=choices), FIRST_ROWS))
            if not first_rows:
                raise ReadInOrder
            if len(part.entries) > 1 and file_of(first_rows[:1]) != file_of(first_rows[-1:]):
                raise ReadInOrder  # the first rows come from several files
            self._reader.begin(first_rows)
            known_columns = frozenset(columns_of(first_rows))
        meter = Meter(progress, "reading the data", part.bytes_on_disk, "bytes")
        rows_before, blank_before, bytes_read = len(survey.hashes), survey.blank_count, 0
        text_choices = choices if settings.reads_text else None
        blocks = (block for entry in part.entries for block in line_blocks(entry, text_choices))
        tasks = (
            _BlockTask(block, known_columns, not (block.lines_before if known_columns is None else block_number), path)
            for block_number, block in enumerate(blocks)
        )
        for task, result in processes.map_tasks(_survey_block, None if known_columns is None else self._reader, tasks):
            self.problems.add_all(result.problems)
            if known_columns is not None:
                self._reader.add_observations(result.observations)
            numbers = [self.strata.setdefault(name, len(self.strata)) for name in result.class_names]
            class_numbers = np.array(numbers, dtype=np.int64)
            survey.hashes += result.survey.hashes
            survey.lengths += result.survey.lengths
            survey.strata.frombytes(class_numbers[np.frombuffer(result.survey.strata, dtype=np.int64)].tobytes())
            survey.blank_count += result.survey.blank_count
            yield from result.spooled
            bytes_read += task.block.size
            meter.report(bytes_read)
        if settings.reads_text and len(survey.hashes) == rows_before:
            raise ReadInOrder  # a single process reports what is missing
        meter.finish(bytes_read)
        survey.notes += [*choices.notes(), *_blank_notes(survey.blank_count - blank_before)]

    def _rows(
        self, part: Source, settings: RowSettings, choices: ColumnChoices, progress: Progress | None, survey: Survey
    ) -> Iterator[Example]:
        """Yield the usable rows of a table, after the reader has chosen the columns from the first rows."""
        rows = part.rows(self.problems, progress, max_rows=settings.max_rows, choices=choices)
        yield from (example for _, example in read_rows(self._reader, rows, self.problems))
        survey.notes += choices.notes()

    def _documents(
        self, part: Source, settings: RowSettings, choices: ColumnChoices, progress: Progress | None, survey: Survey
    ) -> Iterator[Example]:
        """Yield the documents that are not blank. Only one is in memory at a time, however long it is."""
        documents = part.documents(
            progress, max_chars=settings.max_chars, max_rows=settings.max_rows, choices=choices, problems=self.problems
        )
        blank_before, character_count, document_count = survey.blank_count, 0, 0

        def counted_texts() -> Iterator[str]:
            nonlocal character_count
            for document in documents:
                character_count += len(document.text)
                yield document.text

        for example in survey.with_text(counted_texts()):
            document_count += 1
            yield example
        survey.notes += choices.notes()
        if settings.max_chars and character_count >= settings.max_chars:
            documents_used = f"{quantity(document_count, 'document')}, the last one truncated"
            survey.notes.append(f"data.max_chars: the first {character_count:,} characters are used ({documents_used})")
        survey.notes += _blank_notes(survey.blank_count - blank_before)


def _blank_notes(count: int) -> list[str]:
    return [f"{quantity(count, 'document', 'contain')} only white space (skipped)"] if count else []


def text_hash(text: str) -> int:
    """Return a 64-bit hash that is equal for duplicates: texts that differ only in white space and Unicode composition.

    Among a billion different texts, the chance of two equal hashes is one in 40. A long text is hashed in pieces that
    begin at white space, where letters do not combine."""
    import xxhash

    digest, start, separator = xxhash.xxh3_64(), 0, ""
    while start < len(text):
        space_match = _SPACE.search(text, start + _PIECE_CHARACTERS)
        end = space_match.start() if space_match else len(text)
        words = unicodedata.normalize("NFC", text[start:end]).split()
        if words:
            digest.update((separator + " ".join(words)).encode())
            separator = " "
        start = end
    return int(digest.intdigest())


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSplit:
    """The documents that are held out: `is_held_out`, bool [documents].

    If whole documents of a source cannot give the share, the end of one document is held out instead: `tails` maps the
    number of that document to the number of characters at its end, and `notes` reports it."""

    is_held_out: Mask
    tails: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def split_documents(lengths: Sequence[int] | NDArray[np.int64], eval_fraction: float, seed: int) -> DocumentSplit:
    """Hold out documents with about `eval_fraction` of all characters, but never all text, and none for 0.

    `lengths` are the characters of each document, 1 or more."""
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction {eval_fraction} is not in [0, 1)")
    characters = np.asarray(lengths, dtype=np.int64)
    none_held_out = np.zeros(len(characters), dtype=np.bool_)
    if eval_fraction == 0 or len(characters) == 0:
        return DocumentSplit(is_held_out=none_held_out)
    target = eval_fraction * int(characters.sum())
    chosen_documents = _draw(characters, target, seed)
    if chosen_documents and abs(int(characters[chosen_documents].sum()) - target) <= LARGEST_RELATIVE_ERROR * target:
        held_out = none_held_out.copy()
        held_out[chosen_documents] = True
        return DocumentSplit(is_held_out=held_out)
    return _hold_out_tail(characters, target, none_held_out)


def split_each(
    lengths: Sequence[int],
    names: Sequence[str],
    counts: Sequence[int],
    eval_fraction: float,
    seed: int,
    is_usable: Mask | None = None,
) -> DocumentSplit:
    """Hold out a share of each of several sources, whose documents follow one another, `counts` of each.

    Only documents with `is_usable`, bool [documents], are held out. `names` of the sources appear in the notes."""
    sizes = np.asarray(lengths, dtype=np.int64)
    held_out, tails, notes = np.zeros(len(sizes), dtype=np.bool_), dict[int, int](), list[str]()
    first_document = 0
    for name, document_count in zip(names, counts, strict=True):
        document_numbers = np.arange(first_document, first_document + document_count)
        if is_usable is not None:
            document_numbers = document_numbers[is_usable[document_numbers]]
        part_split = split_documents(sizes[document_numbers], eval_fraction, seed)
        held_out[document_numbers[part_split.is_held_out]] = True
        tails |= {int(document_numbers[document]): characters for document, characters in part_split.tails.items()}
        notes += [f"{name}: {note}" for note in part_split.notes] if len(names) > 1 else part_split.notes
        first_document += document_count
    return DocumentSplit(is_held_out=held_out, tails=tails, notes=tuple(notes))


def tail_start(text: str, tail_characters: int) -> int:
    """Return where the last `tail_characters` of a text begin, moved to a line break that is near. Never 0."""
    exact_start = len(text) - tail_characters
    reach_characters = max(1, tail_characters // 2)
    break_before = text.rfind("\n", max(0, exact_start - reach_characters), exact_start) + 1
    break_after = text.find("\n", exact_start, exact_start + reach_characters) + 1
    break_positions = [position for position in (break_before, break_after) if 0 < position < len(text)]
    return min(break_positions, key=lambda position: abs(position - exact_start), default=exact_start)


def _draw(sizes: NDArray[np.int64], target: float, seed: int) -> list[int]:
    """Return the documents to hold out, drawn in a seeded order: each that still fits into `target`, then one more if
    the sum comes nearer to it. One document always remains."""
    random_numbers = np.random.PCG64(seed).random_raw(len(sizes))
    order = np.argsort(random_numbers, kind="stable")
    chosen_documents: list[int] = []
    target_left, candidates = target, order
    while len(candidates := candidates[sizes[candidates] <= target_left]):  # never draws all: they exceed `target`
        running_totals = np.cumsum(sizes[candidates])
        fitting_count = int(np.searchsorted(running_totals, target_left, side="right"))
        chosen_documents += candidates[:fitting_count].tolist()
        target_left -= int(running_totals[fitting_count - 1])
        candidates = candidates[fitting_count:]
    undrawn_documents = order[~np.isin(order, chosen_documents)]
    if len(undrawn_documents) > 1:
        distances = np.abs(target_left - sizes[undrawn_documents])
        nearest_index = int(distances.argmin())
        if distances[nearest_index] < target_left:
            chosen_documents.append(int(undrawn_documents[nearest_index]))
    return chosen_documents


def _hold_out_tail(sizes: NDArray[np.int64], target: float, none_held_out: Mask) -> DocumentSplit:
    """Hold out about `target` characters at the end of the longest document, instead of whole documents."""
    longest_document = int(sizes.argmax())
    size = int(sizes[longest_document])
    if size < 2:
        note = "nothing is held out, because no document has two or more characters"
        return DocumentSplit(is_held_out=none_held_out, notes=(note,))
    tail_characters = min(max(1, round(target)), size - 1)
    reason = (
        "there is only one document" if len(sizes) == 1 else "whole documents have other shares than data.eval_fraction"
    )
    characters = f"about the last {tail_characters:,} of the {size:,} characters of document {longest_document + 1}"
    note = f"{reason}, so {characters} are held out"
    return DocumentSplit(is_held_out=none_held_out, tails={longest_document: tail_characters}, notes=(note,))


def split_rows(strata: NDArray[np.int64], eval_fraction: float, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the held-out rows: `eval_fraction` of each stratum, as nearly as whole rows permit.

    `strata` [N] has the class of each row. At least one row of each class stays for training."""
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction {eval_fraction} is not in [0, 1)")
    if not len(strata) or not eval_fraction:
        return np.zeros(0, dtype=np.int64)
    drawn_order = np.argsort(np.random.PCG64(seed).random_raw(len(strata)), kind="stable")
    rows_by_class = drawn_order[np.argsort(strata[drawn_order], kind="stable")]
    class_sizes = np.unique(strata, return_counts=True)[1]
    # The rounding error of a class is carried over to the next one, so that the total is right.
    held_out_ends = np.round(np.cumsum(class_sizes) * eval_fraction).astype(np.int64)
    held_out_counts = np.minimum(np.diff(held_out_ends, prepend=0), class_sizes - 1)
    class_starts = np.cumsum(class_sizes) - class_sizes
    rows = [rows_by_class[start : start + count] for start, count in zip(class_starts, held_out_counts, strict=True)]
    return np.sort(np.concatenate(rows))


@dataclass(frozen=True, slots=True)
class Selection:
    """The split of each row (`sides`, int8 [rows]) and how often an epoch uses it (`copies`, int16 [rows]), for each
    survey. Held-out rows are used once. `split` has the documents of which only the end is held out, and `weights` the
    weight of each source of the first survey; () if all are 1."""

    sides: tuple[NDArray[np.int8], ...]
    copies: tuple[NDArray[np.int16], ...]
    repeated_row_count: int
    leaked_row_count: int
    split: DocumentSplit
    weights: tuple[float, ...]

    @property
    def training_copies(self) -> NDArray[np.int16]:
        """How often each row of the first survey is trained on: int16 [rows]."""
        return np.where(self.sides[0] == TRAIN, self.copies[0], 0).astype(np.int16)


def select_rows(surveys: Sequence[Survey], settings: RowSettings, names: Sequence[str]) -> Selection:
    """Choose rows: drop duplicates, hold out rows, drop leaks, apply weights. `names` are those of the sources."""
    first_survey = surveys[0]
    hashes = [np.frombuffer(survey.hashes, dtype=np.uint64) for survey in surveys]
    repeats = [_is_repeated(source_hashes) for source_hashes in hashes]
    repeats_and_sides = zip(repeats, (TRAIN, HELD_OUT), strict=False)
    sides = [np.where(repeat & settings.dedup, LEFT_OUT, side).astype(np.int8) for repeat, side in repeats_and_sides]
    split = DocumentSplit(is_held_out=np.zeros(len(hashes[0]), dtype=np.bool_))
    if len(surveys) == 1:
        split = _hold_out_share(first_survey, settings, names, sides[0] == TRAIN)
        sides[0][split.is_held_out] = HELD_OUT
    divided_documents = np.array(sorted(split.tails), dtype=np.int64)
    held_out_hashes = hashes[0][sides[0] == HELD_OUT] if len(surveys) == 1 else hashes[1]
    is_leak = (sides[0] == TRAIN) & np.isin(hashes[0], held_out_hashes)
    # The rest of a split document is not a leak, but a duplicate of the document is.
    has_divided_text = (sides[0] == TRAIN) & np.isin(hashes[0], hashes[0][divided_documents])
    has_divided_text[divided_documents] = False
    is_leak |= has_divided_text
    if settings.dedup:
        sides[0][is_leak] = LEFT_OUT
    lengths = np.frombuffer(first_survey.lengths, dtype=np.int64) if settings.reads_text else 1
    sizes = np.where(sides[0] == TRAIN, lengths, 0)
    amounts = [float(part.sum()) for part in np.split(sizes, np.cumsum(first_survey.counts)[:-1])]
    weights = source_weights(settings, amounts, names[-1])
    copies = copies_of(sides[0] == TRAIN, first_survey.counts, weights, settings.seed)
    leaked_count = int(is_leak.sum() if settings.dedup else (is_leak & (copies > 0)).sum())
    copies[sides[0] == HELD_OUT] = 1
    used_copies = [copies, *((side == HELD_OUT).astype(np.int16) for side in sides[1:])]
    repeated_count = sum(int(is_repeat.sum()) for is_repeat in repeats)
    return Selection(tuple(sides), tuple(used_copies), repeated_count, leaked_count, split, weights)


def _hold_out_share(survey: Survey, settings: RowSettings, names: Sequence[str], is_usable: Mask) -> DocumentSplit:
    """Hold out a share of each source except data.replay: of the characters of documents, or of the rows of a class."""
    trained_rows = sum(survey.counts[: len(survey.counts) - settings.replay_sources])
    is_usable = is_usable & (np.arange(len(is_usable)) < trained_rows)
    if settings.reads_text:
        return split_each(survey.lengths, names, survey.counts, settings.eval_fraction, settings.seed, is_usable)
    strata = np.frombuffer(survey.strata, dtype=np.int64)
    group_of_row = np.repeat(np.arange(len(survey.counts)), survey.counts) * (strata.max(initial=0) + 1) + strata
    usable_rows, held_out = np.flatnonzero(is_usable), np.zeros(len(is_usable), dtype=np.bool_)
    held_out[usable_rows[split_rows(group_of_row[usable_rows], settings.eval_fraction, settings.seed)]] = True
    return DocumentSplit(is_held_out=held_out)


def _is_repeated(hashes: NDArray[np.uint64]) -> Mask:
    """Return for each hash whether an earlier one is equal to it."""
    _, first_positions = np.unique(hashes, return_index=True)
    is_repeated = np.ones(len(hashes), dtype=np.bool_)
    is_repeated[first_positions] = False
    return is_repeated


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """The used rows of one chunk, for training and for evaluation: the position of each row, as often as it is used.

    `tails` maps some positions to a number of characters: that end of the text is evaluated, the rest is trained on."""

    chunk: Chunk
    row_positions: tuple[RowNumbers, RowNumbers]
    tails: Mapping[int, int]

    def examples(self, side: int | None = None) -> tuple[list[Example], list[Example]]:
        """Return the training examples and the held-out ones, or those of one `side` only."""
        examples = self.chunk.examples()
        train_examples, held_out_examples = (
            [self._part(examples[row], row, row_side) for row in positions.tolist() if side in (None, row_side)]
            for row_side, positions in enumerate(self.row_positions)
        )
        return train_examples, held_out_examples

    def _part(self, example: Example, position: int, side: int) -> Example:
        if position not in self.tails:
            return example
        split_position = tail_start(example.text, self.tails[position])
        return replace(example, text=example.text[:split_position] if side == TRAIN else example.text[split_position:])


def chosen_rows(surveys: Sequence[Survey], selection: Selection, settings: RowSettings) -> Iterator[ChosenRows]:
    """Yield the used rows of `surveys`, which may be the first one alone, in order, in portions of limited size.

    A document that is used twice comes twice in succession. The used rows of a chunk of a table come once, then again.
    """
    for survey, sides, copies in zip(surveys, selection.sides, selection.copies, strict=False):
        lengths, start = np.frombuffer(survey.lengths, dtype=np.int64), 0
        tails = selection.split.tails if survey is surveys[0] else {}
        for chunk in survey.chunks:
            rows = np.arange(start, start + chunk.row_count)
            end = start + chunk.row_count
            chunk_tails = {row - start: length for row, length in tails.items() if start <= row < end}
            train_rows = rows[sides[rows] == TRAIN]
            counts = copies[train_rows]
            if settings.reads_text:
                train_rows = np.repeat(train_rows, counts)
            else:
                train_rows = np.concatenate([train_rows[counts > copy] for copy in range(counts.max(initial=1))])
            eval_rows = rows[(sides[rows] == HELD_OUT) | np.isin(rows - start, list(chunk_tails))]
            no_rows = np.zeros(0, dtype=np.int64)
            for pair in zip_longest(_portions(train_rows, lengths), _portions(eval_rows, lengths), fillvalue=no_rows):
                yield ChosenRows(chunk, (pair[0] - start, pair[1] - start), chunk_tails)
            start += chunk.row_count


def _portions(rows: RowNumbers, lengths: NDArray[np.int64]) -> list[RowNumbers]:
    """Split rows into portions of limited size, because many repetitions would not fit into memory at once."""
    row_characters = np.maximum(lengths[rows], CHUNK_CHARACTERS // CHUNK_ROWS)
    return np.split(rows, np.flatnonzero(np.diff(np.cumsum(row_characters) // (2 * CHUNK_CHARACTERS))) + 1)
