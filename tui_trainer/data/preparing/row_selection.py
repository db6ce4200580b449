"""Which rows are trained on, how often, held out, or left out: by the hashes of their texts, their classes and their
lengths alone, which the survey (pass 1) takes of every row; what can be used lies in its spool. Of sources with weights
rows are repeated or left out randomly.

What is held out is drawn with a seed: the same lengths and seed give the same split on every machine and with every
numpy (a bit generator's raw stream is fixed; see numpy NEP 19).
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
from tui_trainer.data.columns.text_columns import LOOKED_ROWS, ColumnChoices, head_of
from tui_trainer.data.preparing.cache import SOURCES, Cut
from tui_trainer.data.preparing.processes import Processes
from tui_trainer.data.problems import ProblemList, RecordedProblems
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.sources.reading import LineBlock, line_blocks, texts_of
from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError, Problem
from tui_trainer.units import quantity

CHUNK_ROWS = 1000
CHUNK_CHARACTERS = 1_000_000  # between two reports of how far it is, and two places where it can be cancelled
_PIECE_CHARACTERS = 1 << 16
_SPACE = re.compile(r"\s")
LARGEST_MISS = 0.5  # how far the held-out share may be from the wanted one, relative to it
TRAIN, HELD_OUT, LEFT_OUT = 0, 1, 2
Places = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRows:
    """One of several sources: its rows that can be used, held-out ones too, and those of an epoch of training.

    Before the data is prepared both are estimates.
    """

    description: str
    weight: float
    rows: int
    rows_per_epoch: int

    def words(self, *, exact: bool = True) -> str:
        """`a.jsonl (1.2 MiB): 1,000 rows, 1,800 per training epoch (data.weights 2)`."""
        weight = "" if self.weight == 1 else f" (data.weights {self.weight:g})"
        about = "" if exact else "about "
        rows = f"{about}{self.rows:,} rows, {about}{self.rows_per_epoch:,} per training epoch"
        return f"{self.description}: {rows}{weight}"


def used_rows(rows: int, weight: float) -> int:
    """Of so many training rows of a source, those of an epoch."""
    whole = int(weight)
    return whole * rows + round((weight - whole) * rows)


def copies_of(
    trained: NDArray[np.bool_], counts: Sequence[int], weights: Sequence[float], seed: int
) -> NDArray[np.int16]:
    """How often each row is used in an epoch: int16 [rows], 0 where it is not `trained` on, bool [rows].

    Sources have `counts` rows each, one after another. Of n rows with weight w each is used floor(w) times, and
    round((w - floor(w)) n) of them, drawn with the seed, once more. Without weights, every row is used once.
    """
    copies = trained.astype(np.int16)
    start = 0
    for number, (count, weight) in enumerate(zip(counts, weights, strict=bool(weights))):
        places = start + np.flatnonzero(trained[start : start + count])
        copies[places] = int(weight)
        if more := used_rows(len(places), weight) - int(weight) * len(places):
            drawn = np.argsort(np.random.PCG64([seed, number]).random_raw(len(places)), kind="stable")
            copies[places[drawn[:more]]] += 1
        start += count
    return copies


def source_rows(
    source: Source, counts: Sequence[int], copies: NDArray[np.int16], weights: Sequence[float]
) -> tuple[SourceRows, ...]:
    """What came of each source; () for a single one without a weight. Raises DataError for one that is thinned to
    nothing.
    """
    if not source.several and not weights:
        return ()
    found, start = [], 0
    for part, count, weight in zip(source.parts, counts, weights or [1.0] * len(counts), strict=True):
        used = int(copies[start : start + count].sum())
        if not used and weight < 1:
            message = f"a weight of {weight:g} leaves none of its {count:,} rows to train on"
            whole = "; a text file is one row, which is used as a whole or not at all" if count == 1 else ""
            hint = f"raise its weight in data.weights, or remove the source{whole}"
            raise DataError(message, where=part.description, hint=hint)
        found.append(SourceRows(description=part.description, weight=weight, rows=count, rows_per_epoch=used))
        start += count
    return tuple(found)


def sources_in(details: Mapping[str, Any]) -> tuple[SourceRows, ...]:
    """What came of each source, as it is kept with the prepared data."""
    return tuple(SourceRows(**one) for one in details.get(SOURCES, ()))


@dataclass(frozen=True, slots=True)
class SpooledRows:
    """Where some examples lie that were written together."""

    path: Path
    offset: int
    rows: int

    def examples(self) -> list[Example]:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            found: list[tuple[Any, ...]] = pickle.load(file)
        return [Example(*one) for one in found]


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are encoded together: `rows` of the `spooled` ones, behind the first `skipped`."""

    spooled: tuple[SpooledRows, ...]
    skipped: int
    rows: int

    def examples(self) -> list[Example]:
        found = [example for some in self.spooled for example in some.examples()]
        return found[self.skipped : self.skipped + self.rows]


def chunks_of(spooled: Sequence[SpooledRows], lengths: NDArray[np.int64]) -> list[Chunk]:
    """All rows, CHUNK_ROWS in a chunk or fewer that have CHUNK_CHARACTERS: the same ones, however they were spooled.
    `lengths` in characters, int64 [rows]."""
    ends, behind = np.cumsum(lengths), np.cumsum([some.rows for some in spooled])
    chunks: list[Chunk] = []
    start = 0
    while start < len(lengths):
        before = int(ends[start] - lengths[start])
        end = min(start + CHUNK_ROWS, int(np.searchsorted(ends, before + CHUNK_CHARACTERS)) + 1, len(lengths))
        first, last = np.searchsorted(behind, [start, end - 1], side="right").tolist()
        chunks.append(
            Chunk(tuple(spooled[first : last + 1]), start - int(behind[first] - spooled[first].rows), end - start)
        )
        start = end
    return chunks


class Spool:
    """Writes the examples of one side at the end of a file. A context manager: `written` is complete at its end."""

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

    def add(self, examples: Iterable[Example], strata: dict[str, int], spool: Spool) -> None:
        """Rows that can be used, which go into the spool."""
        for example in examples:
            self.hashes.append(text_hash(example.text))
            self.strata.append(strata.setdefault(example.stratum, len(strata)))
            self.lengths.append(len(example.text))
            spool.add(example)

    def contradictions(self) -> list[str]:
        """Say how many rows have the text of an earlier one and another class."""
        strata = np.frombuffer(self.strata, dtype=np.int64)
        _, first, same = np.unique(np.frombuffer(self.hashes, dtype=np.uint64), return_index=True, return_inverse=True)
        count = int((strata != strata[first[same]]).sum())
        return [f"{quantity(count, 'row', 'duplicate')} earlier rows, but with another label"] if count else []

    def with_text(self, texts: Iterable[str]) -> Iterator[Example]:
        """The documents that are not blank."""
        for text in texts:
            if text and not text.isspace():
                yield Example(text, None)
            else:
                self.blank += 1


@dataclass(frozen=True, slots=True)
class _RowsToRead:
    """A block of lines for another process: a table that begins with the columns `known`, or documents, whose text
    column the block names. Examples go into files of this `spool`, one for each process."""

    block: LineBlock
    known: frozenset[str] | None
    looks_first: bool
    spool: Path


@dataclass(frozen=True, slots=True)
class _RowsRead:
    """The survey of the rows of a block. Its `strata` are numbers of `names`; `noted` is of the reader."""

    survey: Survey
    names: list[str]
    spooled: list[SpooledRows]
    problems: list[tuple[tuple[Problem, ...], Mapping[str, object] | None]]
    noted: Any


def _read_in_order(row: Row) -> None:
    raise ReadInOrder


def _read_here(reader: Reader | None, task: _RowsToRead) -> _RowsRead:
    """In another process. Raises ReadInOrder."""
    survey, names, problems = Survey(), dict[str, int](), RecordedProblems()
    with Spool(task.spool.with_name(f"{task.spool.name}-{os.getpid()}")) as spool:
        try:
            rows = task.block.rows(problems)
            if task.looks_first:  # at the first rows, as one process does: their mistakes are found before others
                head, mistake = head_of(rows) if task.known is None else (list(islice(rows, LOOKED_ROWS)), None)
                if mistake:
                    raise ReadInOrder
                rows = chain(head, rows)
            if reader is None or task.known is None:
                late = LateColumns(task.block.columns, _read_in_order)
                documents = texts_of(rows, task.block.column, problems, late)
                examples = survey.with_text(document.text for document in documents)
            else:
                examples = (example for _, example in read_more(reader, rows, task.known, problems))
            survey.add(examples, names, spool)
        except DataError:  # of a file, no longer of a row
            raise ReadInOrder from None
    return _RowsRead(survey, list(names), spool.written, problems.of_rows, reader.noted() if reader else None)


class Surveyor:
    """Reads the sources one after another. What cannot be used goes into `problems`; `strata` numbers the classes.

    With `processes`, these read; then ReadInOrder is raised where one alone can, and a new reader has to begin anew.
    """

    def __init__(self, reader: Reader, cut: Cut, progress: Progress | None, processes: Processes | None = None) -> None:
        self.problems = ProblemList()
        self.strata: dict[str, int] = {}
        self._reader, self._cut, self._progress, self._processes = reader, cut, progress, processes

    def survey(self, source: Source, path: Path, *, held_out: bool) -> Survey:
        """One side, with the spool at `path`. Only what is trained on is limited. Raises DataError for a source
        without text.
        """
        self._reader.held_out = held_out
        cut = replace(self._cut, max_rows=0, max_chars=0) if held_out else self._cut
        survey, spooled = Survey(), list[SpooledRows]()
        for part, progress in source.each(self._progress):
            before = len(survey.hashes)
            choices = ColumnChoices(part.text_column if cut.reads_text else "")
            if self._processes:
                spooled += self._read_by_others(self._processes, part, cut, choices, progress, survey, path)
            else:
                read = self._documents if cut.reads_text else self._rows
                with Spool(path) as spool:
                    survey.add(read(part, cut, choices, progress, survey), self.strata, spool)
                spooled += spool.written
            survey.counts.append(len(survey.hashes) - before)
        survey.notes += survey.contradictions() if len(self.strata) > 1 else []
        survey.chunks = chunks_of(spooled, np.frombuffer(survey.lengths, dtype=np.int64))
        return survey

    def _read_by_others(
        self,
        processes: Processes,
        part: Source,
        cut: Cut,
        choices: ColumnChoices,
        progress: Progress | None,
        survey: Survey,
        path: Path,
    ) -> Iterator[SpooledRows]:
        """The same by other processes, with the notes in the same order. Raises ReadInOrder."""
        known: frozenset[str] | None = None
        if cut.max_rows or cut.max_chars or not part.entries:
            raise ReadInOrder
        if not cut.reads_text:
            head = list(islice(part.rows(ProblemList(), choices=choices), LOOKED_ROWS))
            if not head:
                raise ReadInOrder
            if len(part.entries) > 1 and file_of(head[:1]) != file_of(head[-1:]):
                raise ReadInOrder  # the first rows are of several files
            self._reader.begin(head)
            known = frozenset(columns_of(head))
        meter = Meter(progress, "reading the data", part.bytes_on_disk, "bytes")
        before, blank, done = len(survey.hashes), survey.blank, 0
        of_texts = choices if cut.reads_text else None
        blocks = (block for entry in part.entries for block in line_blocks(entry, of_texts))
        tasks = (
            _RowsToRead(block, known, not (block.lines_before if known is None else number), path)
            for number, block in enumerate(blocks)
        )
        for task, found in processes.each(_read_here, None if known is None else self._reader, tasks):
            self.problems.add_all(found.problems)
            if known is not None:
                self._reader.note(found.noted)
            numbers = np.array([self.strata.setdefault(name, len(self.strata)) for name in found.names], dtype=np.int64)
            survey.hashes += found.survey.hashes
            survey.lengths += found.survey.lengths
            survey.strata.frombytes(numbers[np.frombuffer(found.survey.strata, dtype=np.int64)].tobytes())
            survey.blank += found.survey.blank
            yield from found.spooled
            done += task.block.size
            meter.report(done)
        if cut.reads_text and len(survey.hashes) == before:
            raise ReadInOrder  # who reads alone says what is missing
        meter.finish(done)
        survey.notes += [*choices.notes(), *_blank_notes(survey.blank - blank)]

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
        before, characters, used = survey.blank, 0, 0

        def counted() -> Iterator[str]:
            nonlocal characters
            for document in found:
                characters += len(document.text)
                yield document.text

        for example in survey.with_text(counted()):
            used += 1
            yield example
        documents = quantity(used, "document")
        limit = f"data.max_chars: the first {characters:,} characters are used ({documents}, the last one truncated)"
        has_limit = cut.max_chars and characters >= cut.max_chars
        survey.notes += [*choices.notes(), *([limit] if has_limit else []), *_blank_notes(survey.blank - before)]


def _blank_notes(count: int) -> list[str]:
    return [f"{quantity(count, 'document', 'contain')} only white space: skipped"] if count else []


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


@dataclass(frozen=True, kw_only=True, slots=True)
class DocumentSplit:
    """`held_out[i]` says whether document i is evaluated on.

    Where the whole documents of a source cannot give the share, none of them is held out and the end of one is taken
    instead: `tails` has the number of the document, and how many characters; `notes` says so.
    """

    held_out: NDArray[np.bool_]
    tails: Mapping[int, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def split_documents(lengths: Sequence[int] | NDArray[np.int64], eval_fraction: float, seed: int) -> DocumentSplit:
    """Hold out documents with about `eval_fraction` of all characters; never all of them, and none for 0.

    `lengths` are characters per document, 1 or more each.
    """
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction {eval_fraction} is not in [0, 1)")
    sizes = np.asarray(lengths, dtype=np.int64)
    nothing = np.zeros(len(sizes), dtype=np.bool_)
    if eval_fraction == 0 or len(sizes) == 0:
        return DocumentSplit(held_out=nothing)
    wanted = eval_fraction * int(sizes.sum())
    chosen = _draw(sizes, wanted, seed)
    if chosen and abs(int(sizes[chosen].sum()) - wanted) <= LARGEST_MISS * wanted:
        held_out = nothing.copy()
        held_out[chosen] = True
        return DocumentSplit(held_out=held_out)
    return _tail_of_the_longest(sizes, wanted, nothing)


def split_each(
    lengths: Sequence[int],
    names: Sequence[str],
    counts: Sequence[int],
    eval_fraction: float,
    seed: int,
    usable: NDArray[np.bool_] | None = None,
) -> DocumentSplit:
    """The same for documents of several sources, `counts` of each in turn: every source gives its share.

    Only documents that are `usable`, bool [documents], are held out. `names` of the sources are for the notes.
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    held_out, tails, notes = np.zeros(len(sizes), dtype=np.bool_), dict[int, int](), list[str]()
    start = 0
    for name, count in zip(names, counts, strict=True):
        places = np.arange(start, start + count)
        if usable is not None:
            places = places[usable[places]]
        part = split_documents(sizes[places], eval_fraction, seed)
        held_out[places[part.held_out]] = True
        tails |= {int(places[document]): characters for document, characters in part.tails.items()}
        notes += [f"{name}: {note}" for note in part.notes] if len(names) > 1 else part.notes
        start += count
    return DocumentSplit(held_out=held_out, tails=tails, notes=tuple(notes))


def tail_start(text: str, tail_characters: int) -> int:
    """Where the tail begins: at the line break nearest to the wanted place, if one is near; 0 < start < len(text)."""
    wanted = len(text) - tail_characters
    reach = max(1, tail_characters // 2)
    before = text.rfind("\n", max(0, wanted - reach), wanted) + 1
    after = text.find("\n", wanted, wanted + reach) + 1
    near = [place for place in (before, after) if 0 < place < len(text)]
    return min(near, key=lambda place: abs(place - wanted), default=wanted)


def _draw(sizes: NDArray[np.int64], wanted: float, seed: int) -> list[int]:
    """Documents in a seeded order that fit into `wanted`, then one more if that comes closer; one always stays."""
    raw = np.random.PCG64(seed).random_raw(len(sizes))
    order = np.argsort(raw, kind="stable")
    chosen: list[int] = []
    room, left = wanted, order
    while len(left := left[sizes[left] <= room]):  # never all: their sum is more than wanted
        ends = np.cumsum(sizes[left])
        fitting = int(np.searchsorted(ends, room, side="right"))
        chosen += left[:fitting].tolist()
        room -= int(ends[fitting - 1])
        left = left[fitting:]
    rest = order[~np.isin(order, chosen)]
    if len(rest) > 1:
        gaps = np.abs(room - sizes[rest])
        nearest = int(gaps.argmin())
        if gaps[nearest] < room:
            chosen.append(int(rest[nearest]))
    return chosen


def _tail_of_the_longest(sizes: NDArray[np.int64], wanted: float, nothing: NDArray[np.bool_]) -> DocumentSplit:
    longest = int(sizes.argmax())
    size = int(sizes[longest])
    if size < 2:
        return DocumentSplit(held_out=nothing, notes=("nothing is held out: no document has two or more characters",))
    tail = min(max(1, round(wanted)), size - 1)
    why = "there is one document" if len(sizes) == 1 else "whole documents cannot match data.eval_fraction"
    note = f"{why}: about the last {tail:,} of the {size:,} characters of document {longest + 1} are held out"
    return DocumentSplit(held_out=nothing, tails={longest: tail}, notes=(note,))


def split_rows(strata: NDArray[np.int64], eval_fraction: float, seed: int) -> NDArray[np.int64]:
    """Numbers of the rows that are held out: `eval_fraction` of each stratum as nearly as whole rows allow.

    `strata` [N] says which class each row has. At least one row of each class stays for training.
    """
    if not 0 <= eval_fraction < 1:
        raise ValueError(f"eval_fraction {eval_fraction} is not in [0, 1)")
    if not len(strata) or not eval_fraction:
        return np.zeros(0, dtype=np.int64)
    drawn = np.argsort(np.random.PCG64(seed).random_raw(len(strata)), kind="stable")
    ordered = drawn[np.argsort(strata[drawn], kind="stable")]
    sizes = np.unique(strata, return_counts=True)[1]
    # What a class cannot give in whole rows is carried over to the next one, so that the sum is right.
    ends = np.round(np.cumsum(sizes) * eval_fraction).astype(np.int64)
    wanted = np.minimum(np.diff(ends, prepend=0), sizes - 1)
    starts = np.cumsum(sizes) - sizes
    chosen = [ordered[start : start + count] for start, count in zip(starts, wanted, strict=True)]
    return np.sort(np.concatenate(chosen))


@dataclass(frozen=True, slots=True)
class Selection:
    """For each survey, on which side each row stands, int8 [rows], and how often it is used in an epoch, int16 [rows]:
    held-out rows once. `split` says of which documents the end alone is held out.
    """

    sides: tuple[NDArray[np.int8], ...]
    copies: tuple[NDArray[np.int16], ...]
    repeated: int
    leaked: int
    split: DocumentSplit

    @property
    def trained(self) -> NDArray[np.int16]:
        """How often each row of the first survey is trained on: int16 [rows]."""
        return np.where(self.sides[0] == TRAIN, self.copies[0], 0).astype(np.int16)


def choose(surveys: Sequence[Survey], cut: Cut, names: Sequence[str]) -> Selection:
    """Repeats first, then what is held out, then leaks, then weights: so weights count what is left of a source.
    `names` of the sources are for notes.
    """
    first = surveys[0]
    hashes = [np.frombuffer(survey.hashes, dtype=np.uint64) for survey in surveys]
    repeats = [_repeats(some) for some in hashes]
    sides = [
        np.where(found & cut.dedup, LEFT_OUT, side).astype(np.int8)
        for found, side in zip(repeats, (TRAIN, HELD_OUT), strict=False)
    ]
    split = DocumentSplit(held_out=np.zeros(len(hashes[0]), dtype=np.bool_))
    if len(surveys) == 1:
        split = _hold_out(first, cut, names, sides[0] == TRAIN)
        sides[0][split.held_out] = HELD_OUT
    torn = np.array(sorted(split.tails), dtype=np.int64)
    measured = hashes[0][sides[0] == HELD_OUT] if len(surveys) == 1 else hashes[1]
    leaks = (sides[0] == TRAIN) & np.isin(hashes[0], measured)
    # A document leaks no part of itself, but a repeat of it does.
    of_torn = (sides[0] == TRAIN) & np.isin(hashes[0], hashes[0][torn])
    of_torn[torn] = False
    leaks |= of_torn
    if cut.dedup:
        sides[0][leaks] = LEFT_OUT
    copies = copies_of(sides[0] == TRAIN, first.counts, cut.weights, cut.seed)
    leaked = int(leaks.sum() if cut.dedup else (leaks & (copies > 0)).sum())
    copies[sides[0] == HELD_OUT] = 1
    used = [copies, *((side == HELD_OUT).astype(np.int16) for side in sides[1:])]
    return Selection(tuple(sides), tuple(used), sum(int(found.sum()) for found in repeats), leaked, split)


def _hold_out(survey: Survey, cut: Cut, names: Sequence[str], usable: NDArray[np.bool_]) -> DocumentSplit:
    """Of each source its share: of the characters of documents; of the rows of a table, and of each class in it."""
    if cut.reads_text:
        return split_each(survey.lengths, names, survey.counts, cut.eval_fraction, cut.seed, usable)
    strata = np.frombuffer(survey.strata, dtype=np.int64)
    groups = np.repeat(np.arange(len(survey.counts)), survey.counts) * (strata.max(initial=0) + 1) + strata
    places, held_out = np.flatnonzero(usable), np.zeros(len(usable), dtype=np.bool_)
    held_out[places[split_rows(groups[places], cut.eval_fraction, cut.seed)]] = True
    return DocumentSplit(held_out=held_out)


def _repeats(hashes: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Which have an equal one before them."""
    _, first = np.unique(hashes, return_index=True)
    found = np.ones(len(hashes), dtype=np.bool_)
    found[first] = False
    return found


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Rows of one chunk, by their `places` in it: to train on and to evaluate on, each as often as it is used.

    Of those in `tails` the last so many characters are evaluated on, and the others trained on.
    """

    chunk: Chunk
    places: tuple[Places, Places]
    tails: Mapping[int, int]

    def examples(self, side: int | None = None) -> tuple[list[Example], list[Example]]:
        """Of both sides, or of one alone."""
        found = self.chunk.examples()
        train, held_out = (
            [self._part(found[place], place, number) for place in places.tolist() if side in (None, number)]
            for number, places in enumerate(self.places)
        )
        return train, held_out

    def _part(self, example: Example, place: int, side: int) -> Example:
        if place not in self.tails:
            return example
        start = tail_start(example.text, self.tails[place])
        return replace(example, text=example.text[:start] if side == TRAIN else example.text[start:])


def chosen_rows(surveys: Sequence[Survey], choice: Selection, cut: Cut) -> Iterator[ChosenRows]:
    """What is used of these surveys, or of the first alone, in order, a bounded number of characters at a time.

    A document that is used twice stands twice in a row; the rows of a table's chunk come one after another, then again.
    """
    for survey, sides, copies in zip(surveys, choice.sides, choice.copies, strict=False):
        lengths, start = np.frombuffer(survey.lengths, dtype=np.int64), 0
        tails = choice.split.tails if survey is surveys[0] else {}
        for chunk in survey.chunks:
            rows = np.arange(start, start + chunk.rows)
            of_chunk = {row - start: length for row, length in tails.items() if start <= row < start + chunk.rows}
            trained = rows[sides[rows] == TRAIN]
            often = copies[trained]
            if cut.reads_text:
                trained = np.repeat(trained, often)
            else:
                trained = np.concatenate([trained[often > number] for number in range(often.max(initial=1))])
            held_out = rows[(sides[rows] == HELD_OUT) | np.isin(rows - start, list(of_chunk))]
            none = np.zeros(0, dtype=np.int64)
            for both in zip_longest(_portions(trained, lengths), _portions(held_out, lengths), fillvalue=none):
                yield ChosenRows(chunk, (both[0] - start, both[1] - start), of_chunk)
            start += chunk.rows


def _portions(rows: Places, lengths: NDArray[np.int64]) -> list[Places]:
    """Rows that are used again and again are not encoded all at once."""
    sizes = np.maximum(lengths[rows], CHUNK_CHARACTERS // CHUNK_ROWS)
    return np.split(rows, np.flatnonzero(np.diff(np.cumsum(sizes) // (2 * CHUNK_CHARACTERS))) + 1)
