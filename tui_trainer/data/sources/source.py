"""A source of text: a file, a folder, a glob, a built-in sample, or several of these, read one document at a time.

`open_source` looks at names and sizes only. What is wrong inside the files is raised at the end of `documents`,
all together. Slices of splits are written as `datasets` writes them: `train[:10%]`, `train[100:]+validation`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import BinaryIO, TypeVar

from tui_trainer.data.columns.row import AUTO, Row
from tui_trainer.data.columns.text_column import ColumnChoices
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.samples import PREFIX, Sample, find_sample
from tui_trainer.data.sources.choice import Choice
from tui_trainer.data.sources.files import SplitFiles, find_files
from tui_trainer.data.sources.named_splits import SplitUse
from tui_trainer.data.sources.reading import Document, count_rows, documents_of, first_characters, read_file, rows_of
from tui_trainer.data.sources.source_file import SourceFile, open_bytes, refuse_unsupported
from tui_trainer.errors import DataError, Problem
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

T = TypeVar("T")
SHOWN_SOURCES = 4
EVERYTHING = Choice()
_digests: dict[tuple[str, int, int], str] = {}  # of files already hashed by this process: (path, size, mtime_ns)


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Text to learn from. `bytes_on_disk` counts a .gz as it is stored, a sample as UTF-8.

    Where several paths are named, `several` holds the source of each; what reads rows or documents takes them one
    after another, by `parts` or `each`.

    `split` says which split the entries are, if any; what else its path names, and is not read, is in `others` and
    `beside` (see `FoundFiles`). `splits` says what becomes of all of it in a run.
    """

    path: str
    text_column: str
    description: str
    bytes_on_disk: int
    entries: tuple[SourceFile, ...] = ()
    sample: Sample | None = None
    several: "tuple[Source, ...]" = ()
    split: SplitFiles | None = None
    others: tuple[SplitFiles, ...] = ()
    beside: tuple[str, ...] = ()
    remark: str = ""
    splits: tuple[SplitUse, ...] = ()

    @property
    def parts(self) -> "tuple[Source, ...]":
        """The single sources, itself where it is one."""
        return self.several or (self,)

    def each(self, progress: Progress | None) -> "Iterator[tuple[Source, Progress | None]]":
        """The same, each with what tells how far it is within the whole."""
        done = 0
        for part in self.parts:
            yield part, _shifted(progress, done, self.bytes_on_disk) if self.several else progress
            done += part.bytes_on_disk

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(entry.path for entry in self.entries)

    def documents(
        self,
        progress: Progress | None = None,
        *,
        max_chars: int = 0,
        max_rows: int = 0,
        choices: ColumnChoices | None = None,
        problems: ProblemList | None = None,
    ) -> Iterator[Document]:
        """Each document in file order, the first `max_rows` of them, up to `max_chars` characters (0: all; the last one
        is cut).

        `choices` takes up what was found out on the way, to be told as notes, and `problems` the mistakes. Raises
        DataError at the end when nothing held any text and, without `problems`, with every mistake that was met.
        """
        found = ProblemList() if problems is None else problems
        holds_text, is_empty = False, True
        choices = choices or ColumnChoices(self.text_column)
        rows = islice(self._all_documents(choices, found, progress), max_rows or None)
        for document in first_characters(rows, max_chars):
            is_empty = False
            holds_text = holds_text or not (document.text == "" or document.text.isspace())
            yield document
        if problems is None or not holds_text:
            found.raise_any(all_rows=is_empty)
        if not holds_text:
            raise DataError(
                f"{self.description} holds no text", hint="0 documents were found; choose another data.path"
            )

    def rows(
        self, problems: ProblemList, progress: Progress | None = None, *, max_rows: int = 0, choices: ColumnChoices
    ) -> Iterator[Row]:
        """Each row of a table in file order, the first `max_rows` of them (0: all).

        Mistakes in rows go into `problems`. Raises DataError for a source that is no table.
        """
        return islice(self._all_rows(problems, progress, choices), max_rows or None)

    def _all_rows(self, problems: ProblemList, progress: Progress | None, choices: ColumnChoices) -> Iterator[Row]:
        if self.sample is None:
            yield from self._read(partial(rows_of, choices=choices, problems=problems), problems, progress)
        elif not self.sample.is_table:
            raise DataError(f"{self.description} is text, and this task reads a table", hint="choose another sample")
        else:
            yield from (Row(where, values) for where, values in self.sample.content())

    def fingerprint(self, progress: Progress | None = None) -> str:
        """XXH3-128 over names and content; for a sample over its content and the Python version."""
        import xxhash

        total = xxhash.xxh3_128()
        if self.several:
            total.update(repr([part.fingerprint(told) for part, told in self.each(progress)]).encode())
            return str(total.hexdigest())
        if self.sample:
            total.update(repr((self.path, sys.version_info[:3], self.sample.content())).encode())
            return str(total.hexdigest())
        meter = Meter(progress, "hashing the data", self.bytes_on_disk, "bytes")
        done = 0
        for entry in self.entries:
            part = (entry.rows, entry.features) if entry.rows or entry.features else ()
            form = (entry.separator, entry.header) if entry.separator or entry.header else ()
            total.update(repr((entry.label, _digest(entry, meter, done), *part, *form)).encode())
            done += entry.size_bytes
        meter.finish(done)
        return str(total.hexdigest())

    def signature(self) -> tuple[tuple[int, int], ...]:
        """(size, mtime in ns) of each file as it is now: equal before and after means that nothing was written."""
        return tuple(entry.size_and_time() for entry in self.entries)

    def _all_documents(
        self, choices: ColumnChoices, problems: ProblemList, progress: Progress | None
    ) -> Iterator[Document]:
        if self.sample is None:
            yield from self._read(partial(documents_of, choices=choices, problems=problems), problems, progress)
        elif self.sample.is_table:
            columns = ", ".join(dict.fromkeys(name for _, row in self.sample.content() for name in row))
            hint = f"choose another task.type or another sample; its columns are {columns}"
            raise DataError(f"{self.description} is a table, and this task reads text", hint=hint)
        else:
            yield from (Document(text, where) for where, text in self.sample.content())

    def _read(
        self, read: Callable[[BinaryIO, SourceFile], Iterator[T]], problems: ProblemList, progress: Progress | None
    ) -> Iterator[T]:
        meter = Meter(progress, "reading the data", self.bytes_on_disk, "bytes")
        done = 0
        for entry in self.entries:
            yield from read_file(entry, read, problems, meter, done)
            done += entry.size_bytes
            meter.report(done)
        meter.finish(done)


def open_source(path: str, text_column: str = AUTO, choice: Choice = EVERYTHING) -> Source:
    """The source that `data.path` names, or what is wanted of it.

    Raises DataError when there is none, or none that can be used. Rows are counted where a slice of a split is wanted.
    """
    if path.startswith(PREFIX):
        name = "" if choice.measured else choice.name  # which is of data.path
        if name or choice.split:
            setting = "data.name" if name else choice.split_setting
            raise DataError(f"a sample has no parts, and {setting} names one", hint=f"leave {setting} empty")
        return _sample_source(path, text_column)
    found = find_files(path, choice)
    for file in found.chosen.files:
        refuse_unsupported(file)
    chosen = cut(found.chosen, choice.split, choice.split_setting) if "[" in choice.split else found.chosen
    source = source_of_files(path, text_column, chosen, is_split=bool(found.others) or chosen is not found.chosen)
    return replace(source, others=found.others, beside=found.beside, remark=found.remark)


def source_of_files(path: str, text_column: str, found: SplitFiles, *, is_split: bool) -> Source:
    """`is_split`: they are not all that `path` names."""
    slice_of = f", {one_line(found.label, 80)}" if "[" in found.label and found.several else ""
    return Source(
        path=path,
        text_column=text_column,
        description=_description(f"{path}, split {found.label}" if is_split else path, found.files, slice_of),
        bytes_on_disk=sum(entry.size_bytes for entry in found.files),
        entries=found.files,
        split=found if found.label else None,
    )


def open_sources(paths: Sequence[str], text_column: str = AUTO, choice: Choice = EVERYTHING) -> Source:
    """The source of one path, or one that holds those of several. Raises DataError as `open_source` does."""
    parts: list[Source] = []
    problems: list[Problem] = []
    for path in paths:
        try:
            parts.append(open_source(path, text_column, choice))
        except DataError as error:
            problems += error.problems
    if problems:
        raise DataError(problems)
    return join_sources(parts)


def join_sources(parts: Sequence[Source]) -> Source:
    """One source of several, itself where there is one."""
    if len(parts) == 1:
        return parts[0]
    labels = Counter(part.entries[0].label for part in parts if len(part.entries) == 1)
    parts = [
        _with_folder(part) if len(part.entries) == 1 and labels[part.entries[0].label] > 1 else part for part in parts
    ]
    named = [part.description for part in parts[:SHOWN_SOURCES]]
    more = len(parts) - len(named)
    return Source(
        path=", ".join(part.path for part in parts),
        text_column=parts[0].text_column,
        description=", ".join(named) + (f" and {more:,} more sources" if more else ""),
        bytes_on_disk=sum(part.bytes_on_disk for part in parts),
        entries=tuple(entry for part in parts for entry in part.entries),
        several=tuple(parts),
    )


def _with_folder(source: Source) -> Source:
    """A file whose name others have too, named with the folder that it is in."""
    [entry] = source.entries
    entries = (replace(entry, label=one_line(f"{entry.path.parent.name}/{entry.path.name}")),)
    return replace(source, entries=entries, description=_description(source.path, entries))


def _shifted(progress: Progress | None, before: float, total: float) -> Progress | None:
    """Progress of a part that begins at `before`."""
    if progress is None:
        return None
    return lambda what, done, _, unit: progress(what, before + done, total, unit)


def _sample_source(path: str, text_column: str) -> Source:
    sample = find_sample(path.removeprefix(PREFIX))
    texts = (content if isinstance(content, str) else repr(content) for _, content in sample.content())
    return Source(
        path=path,
        text_column=text_column,
        description=f"{path} ({sample.description})",
        bytes_on_disk=sum(len(text.encode()) for text in texts),
        sample=sample,
    )


def _description(path: str, entries: tuple[SourceFile, ...], slice_of: str = "") -> str:
    size = format_bytes(sum(entry.size_bytes for entry in entries))
    if len(entries) == 1:
        return f"{entries[0].label}{slice_of} ({size})"
    return f"{one_line(path, 200)} ({len(entries):,} files, {size})"


def _digest(entry: SourceFile, meter: Meter, done: int) -> str:
    """Hash of the file as stored, remembered while its size and time stay the same."""
    import xxhash

    if entry.digest:
        return entry.digest
    known = (str(entry.path.absolute()), *entry.size_and_time())
    if known not in _digests:
        digest = xxhash.xxh3_128()
        with open_bytes(entry) as (raw, _):
            while piece := raw.read(4 * MIB):
                digest.update(piece)
                meter.report(done + raw.tell())
        _digests[known] = str(digest.hexdigest())
    return _digests[known]


_counts: dict[tuple[str, int, int], int] = {}  # of files already counted by this process: (path, size, mtime_ns)


def cut(chosen: SplitFiles, wanted: str, setting: str) -> SplitFiles:
    """The slices that are `wanted` of the splits in `chosen.several`; `setting` names them.

    Raises DataError for what is no slice, and where no row is in it.
    """
    from datasets import ReadInstruction

    shown = one_line(wanted, 80)
    counts = {one.label: [_count(file) for file in one.files] for one in chosen.several}
    files = {one.label: one.files for one in chosen.several}
    try:
        slices = ReadInstruction.from_spec(wanted).to_absolute({label: sum(each) for label, each in counts.items()})
    except (ValueError, AssertionError) as error:
        hint = "slices are written train[:10%], train[100:200] or train[-500:]"
        raise DataError(f"{setting}: '{shown}' is no part of a split: {one_line(str(error), 120)}", hint=hint) from None
    found = [
        entry
        for piece in slices
        for entry in _rows_of(files[piece.splitname], counts[piece.splitname], piece.from_ or 0, piece.to)
    ]
    if not found:
        raise DataError(f"{setting}: no row is in '{shown}'", hint=f"there are {sum(map(sum, counts.values())):,} rows")
    return replace(chosen, files=tuple(found))


def _rows_of(files: tuple[SourceFile, ...], counts: list[int], start: int, end: int | None) -> Iterator[SourceFile]:
    """The rows from `start` to before `end`, counted over all files of a split."""
    for file, count in zip(files, counts, strict=True):
        first, last = max(start, 0), count if end is None else min(end, count)
        if (first, last) == (0, count):
            yield file
        elif first < last:
            share = round(file.size_bytes * (last - first) / count)
            yield replace(file, rows=(first, last), size_bytes=share, whole_bytes=file.size_bytes)
        start, end = start - count, None if end is None else end - count


def _count(file: SourceFile) -> int:
    known = (file.remote or str(file.path.absolute()), *file.size_and_time())
    if known not in _counts:
        _counts[known] = count_rows(file)
    return _counts[known]
