"""One path of data.path as a `Source`: its files with their forms and sizes, its splits, and its documents or rows.

A path is a file, a folder, a glob, a data set of the Hub (`hub.py`) or a built-in sample. Local files take precedence
over a name on the Hub. `open_source` only reads names and sizes; `splits.py` assigns files to splits. Errors inside the
files are raised together at the end of `documents`. Slices of splits have the notation of `datasets`: `train[:10%]`,
`train[100:]+validation`.
"""

import glob
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import BinaryIO, TypeVar

from tui_trainer.data.columns.row import AUTO, Row
from tui_trainer.data.columns.text_columns import ColumnChoices
from tui_trainer.data.columns.usual_names import HEADER_NAMES
from tui_trainer.data.problems import ProblemList
from tui_trainer.data.progress import Meter, Progress
from tui_trainer.data.samples import SAMPLES_PYTHON, Sample, find_sample
from tui_trainer.data.sources import hub
from tui_trainer.data.sources.reading import Document, documents_of, first_characters, rows_of, slices_of
from tui_trainer.data.sources.source_file import (
    SUPPORTED,
    SourceFile,
    find_regular_file,
    form_of,
    named_file,
    open_bytes,
    refuse_unsupported,
    sniff_readable_file,
)
from tui_trainer.data.sources.splits import (
    NamedSplits,
    NoConfiguration,
    Split,
    SplitPart,
    SplitUse,
    assign_splits,
    cached_data_set,
    configured_splits,
    data_files,
    has_configurations,
    is_readme_or_licence,
    missing_files,
    no_configuration,
    saved_splits,
    split_in,
    split_of_file,
    splits_of_cache,
)
from tui_trainer.errors import DataError, Problem
from tui_trainer.files.hub_layout import HUB_PREFIX, SAMPLE_PREFIX, could_be_on_the_hub, repository_folder, url_scheme
from tui_trainer.files.local_paths import expand_home, nearest_path
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

T = TypeVar("T")
SHOWN_SOURCES, _MOST_SHOWN = 4, 6
_MODEL_FILES = ("config.json", "adapter_config.json")
_SYSTEM_FOLDERS = frozenset(map(Path, ("/", "/proc", "/sys", "/dev", "/home", "/usr")))
_MOST_SETTINGS_FILES, _SETTINGS_BYTES = 20, 1 * MIB
_FETCH_AGAIN = "copy or download the dataset again"
_digests: dict[tuple[str, int, int], str] = {}  # of files already hashed by this process: (path, size, mtime_ns)

RowsRead = dict[Path, list[tuple[int, float]]]
"""The (first row, end) of each range of rows that is read from a file, by its path without links."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataChoice:
    """Selection from a path: a configuration, splits (`train`, `train[:10%]+validation`) and a revision of the Hub.

    Empty means the only one or the default. The default split is the one to train on or, with `is_evaluation`, to
    evaluate on. `streaming`: data that is not on this machine is read from the Hub."""

    name: str = ""
    split: str = ""
    revision: str = ""
    streaming: bool = False
    is_evaluation: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the selected splits, without their slices."""
        return tuple(part.partition("[")[0].strip() for part in self.split.split("+")) if self.split.strip() else ()

    @property
    def split_setting(self) -> str:
        return "data.eval_split" if self.is_evaluation else "data.split"


WHOLE_DATA = DataChoice()


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFiles:
    """The files of one split, or of several that are joined.

    `label` is its name in the data, `split` its kind, if known. For `train+test`, `joined_splits` has both splits."""

    label: str
    split: Split | None
    files: tuple[SourceFile, ...]
    joined_splits: "tuple[SplitFiles, ...]" = ()

    @property
    def paths(self) -> set[Path]:
        """Paths of the files, without links."""
        return {file.path.resolve() for file in self.files}


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Data to learn from. `bytes_on_disk` counts a .gz as it is stored, and a sample as UTF-8.

    If several paths are named, `joined_sources` has the source of each. Rows and documents are then read one after
    another, from `parts` or `each`.

    `entries` are the files to read, and `split` is the split that they belong to, if any. The path may name files that
    are not read: those of `other_splits`, and `ignored_files`, which hold no data. `splits` tells what a run uses each
    split for."""

    path: str
    text_column: str
    description: str
    bytes_on_disk: int
    entries: tuple[SourceFile, ...] = ()
    sample: Sample | None = None
    joined_sources: "tuple[Source, ...]" = ()
    split: SplitFiles | None = None
    other_splits: tuple[SplitFiles, ...] = ()
    ignored_files: tuple[str, ...] = ()
    remark: str = ""
    splits: tuple[SplitUse, ...] = ()

    @property
    def parts(self) -> "tuple[Source, ...]":
        """The source of each path, or only this source if there is one path."""
        return self.joined_sources or (self,)

    def each(self, progress: Progress | None) -> "Iterator[tuple[Source, Progress | None]]":
        """Yield the source of each path, with a callback that reports its progress as a part of the whole."""
        bytes_before, total = 0, self.bytes_on_disk
        for part in self.parts:
            yield part, _progress_within(progress, bytes_before, total) if self.joined_sources else progress
            bytes_before += part.bytes_on_disk

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
        """Yield documents in file order: the first `max_rows` of them, up to `max_chars` characters in total (0: all).

        The last document is truncated. `choices` collects notes, and `problems` the errors. Raises DataError at the end
        if there was no text and, without `problems`, for all errors."""
        errors = ProblemList() if problems is None else problems
        holds_text, is_empty = False, True
        choices = choices or ColumnChoices(self.text_column)
        rows = islice(self._all_documents(choices, errors, progress), max_rows or None)
        for document in first_characters(rows, max_chars):
            is_empty = False
            holds_text = holds_text or not (document.text == "" or document.text.isspace())
            yield document
        if problems is None or not holds_text:
            errors.raise_any(all_rows=is_empty)
        if not holds_text:
            problem = f"{self.description} contains no text"
            raise DataError(problem, hint="0 documents were found; choose another data.path")

    @property
    def is_table(self) -> bool:
        return self.sample.is_table if self.sample else any(entry.holds_rows for entry in self.entries)

    def rows(
        self, problems: ProblemList, progress: Progress | None = None, *, max_rows: int = 0, choices: ColumnChoices
    ) -> Iterator[Row]:
        """Yield rows of a table in file order: the first `max_rows` of them (0: all).

        Errors in rows are added to `problems`. Raises DataError for a source that is not a table."""
        if self.sample and not self.sample.is_table:
            raise DataError(f"{self.description} is text, but this task reads a table", hint="choose another sample")
        if self.sample:
            return islice((Row(where, values) for where, values in self.sample.content()), max_rows or None)
        return islice(self._read(rows_of, choices, problems, progress), max_rows or None)

    def fingerprint(self, progress: Progress | None = None) -> str:
        """Return a hash (XXH3-128) of the names and contents of the files."""
        import xxhash

        digest = xxhash.xxh3_128()
        if self.joined_sources:
            fingerprints = [part.fingerprint(part_progress) for part, part_progress in self.each(progress)]
            digest.update(repr(fingerprints).encode())
            return str(digest.hexdigest())
        if self.sample:
            digest.update(repr((self.path, SAMPLES_PYTHON, self.sample.content())).encode())
            return str(digest.hexdigest())
        meter = Meter(progress, "hashing the data", self.bytes_on_disk, "bytes")
        bytes_hashed = 0
        for entry in self.entries:
            row_facts = (entry.row_range, entry.features) if entry.row_range or entry.features else ()
            format_facts = (entry.separator, entry.header) if entry.separator or entry.header else ()
            digest.update(repr((entry.label, _digest(entry, meter, bytes_hashed), *row_facts, *format_facts)).encode())
            bytes_hashed += entry.size_bytes
        meter.finish(bytes_hashed)
        return str(digest.hexdigest())

    def signature(self) -> tuple[tuple[int, int], ...]:
        """Return (size, mtime in ns) of each file. It stays the same during reading if no file changes."""
        return tuple(entry.size_and_time() for entry in self.entries)

    def _all_documents(
        self, choices: ColumnChoices, problems: ProblemList, progress: Progress | None
    ) -> Iterator[Document]:
        if self.sample is None:
            return self._read(documents_of, choices, problems, progress)
        if self.sample.is_table:
            columns = ", ".join(dict.fromkeys(name for _, row in self.sample.content() for name in row))
            hint = f"choose another task.type or another sample; the columns of this sample are {columns}"
            raise DataError(f"{self.description} is a table, but this task reads text", hint=hint)
        return (Document(text, where) for where, text in self.sample.content())

    def _read(
        self,
        read_entry: Callable[[BinaryIO, SourceFile, ColumnChoices, ProblemList], Iterator[T]],
        choices: ColumnChoices,
        problems: ProblemList,
        progress: Progress | None,
    ) -> Iterator[T]:
        """Yield what `read_entry` yields for each file. Errors are added to `problems`."""
        meter = Meter(progress, "reading the data", self.bytes_on_disk, "bytes")
        bytes_read = 0
        for entry in self.entries:
            try:
                with open_bytes(entry) as (raw_file, content):
                    for row in read_entry(content, entry, choices, problems):
                        yield row
                        if meter.is_due():
                            meter.report(bytes_read + raw_file.tell())
            except DataError as error:
                problems.add(error)
                # The error makes the rest of the file unreadable, with any number of rows.
                problems.file_errors += error.problems
            bytes_read += entry.size_bytes
            meter.report(bytes_read)
        meter.finish(bytes_read)


def open_source(path: str, text_column: str = AUTO, choice: DataChoice = WHOLE_DATA) -> Source:
    """Return the source that one path of `data.path` names, or the part of it that `choice` selects.

    Raises DataError if there is no usable data, if its splits are unclear, or if a configuration or split is missing.
    If `choice` has a slice, it counts the rows of the split."""
    if path.startswith(SAMPLE_PREFIX):
        name = "" if choice.is_evaluation else choice.name  # data.name applies to data.path only
        if name or choice.split:
            setting = "data.name" if name else choice.split_setting
            problem = f"{setting} is set, but a sample has no configurations or splits"
            raise DataError(problem, hint=f"leave {setting} empty")
        sample = find_sample(path.removeprefix(SAMPLE_PREFIX))
        texts = (content if isinstance(content, str) else repr(content) for _, content in sample.content())
        return Source(
            path=path,
            text_column=text_column,
            description=f"{path} ({sample.description})",
            bytes_on_disk=sum(len(text.encode()) for text in texts),
            sample=sample,
        )
    request = _Request(path=path, text=path, text_column=text_column, choice=choice)
    try:
        source = _open_path(request)
    except NoConfiguration:
        if not choice.is_evaluation:
            raise
        source = _open_path(request.without_configuration)  # data.name may apply to data.path only
    return replace(source, remark="; ".join(filter(None, [source.remark, *_remarks_on_local_path(path, choice)])))


def open_sources(paths: Sequence[str], text_column: str = AUTO, choice: DataChoice = WHOLE_DATA) -> Source:
    """Return the source of one path, or one that joins the sources of several. Raises DataError like `open_source`."""
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
    """Join sources into one; return a single source as it is. Equal file names are shown with their folders."""
    if len(parts) == 1:
        return parts[0]
    single_files = [part.entries[0] if len(part.entries) == 1 else None for part in parts]
    label_counts = Counter(entry.label for entry in single_files if entry)
    named_parts = []
    for part, entry in zip(parts, single_files, strict=True):
        if entry and label_counts[entry.label] > 1:
            entries = (replace(entry, label=one_line(f"{entry.path.parent.name}/{entry.path.name}")),)
            part = replace(part, entries=entries, description=_description(part.path, entries))
        named_parts.append(part)
    descriptions = [part.description for part in named_parts[:SHOWN_SOURCES]]
    sources_left = len(named_parts) - len(descriptions)
    return Source(
        path=", ".join(part.path for part in named_parts),
        text_column=named_parts[0].text_column,
        description=", ".join(descriptions) + (f" and {sources_left:,} more sources" if sources_left else ""),
        bytes_on_disk=sum(part.bytes_on_disk for part in named_parts),
        entries=tuple(entry for part in named_parts for entry in part.entries),
        joined_sources=tuple(named_parts),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Request:
    """A path to open. `path` is the setting, and `text` the part of it that is opened now, for messages. File names are
    relative to `base_folder`, or to `hub_path` on the Hub. `pattern`: a glob, if it selects from these names."""

    path: str
    text: str
    text_column: str
    choice: DataChoice
    base_folder: Path = Path()
    hub_path: hub.HubPath | None = None
    pattern: str = ""
    ignored_files: tuple[str, ...] = ()
    """Files in the folder of `path` that are not read, because they are not data."""

    @property
    def name(self) -> str:
        return one_line(str(self.hub_path), 120) if self.hub_path else f"'{one_line(self.text, 120)}'"

    @property
    def without_configuration(self) -> "_Request":
        """The request without the name of a configuration, for use when the configuration was found."""
        return replace(self, choice=replace(self.choice, name=""))

    def as_setting(self, file_name: str) -> str:
        path = str(replace(self.hub_path, subpath=file_name) if self.hub_path else self.base_folder / file_name)
        return path.replace(",", "\\,")

    def selects(self, file_name: str) -> bool:
        return fnmatchcase(file_name if self.hub_path else str(self.base_folder / file_name), self.pattern)


def _open_path(request: _Request) -> Source:
    """Return the source of a path of any kind. Raises DataError if there is no such data."""
    path = request.path
    if not path.strip() or "\0" in path:
        problem = "no data is set"
        raise DataError(problem, hint="set data.path to a file, a folder, a glob, hub:owner/name or sample:NAME")
    if address := url_scheme(path):
        hint = "download the file and give its path; a dataset on the Hub is written hub:owner/name"
        raise DataError(f"'{one_line(path, 200)}' is an address, but data is not read from {address}", hint=hint)
    is_hub_path = path.startswith(HUB_PREFIX)
    if not is_hub_path:
        local_path = expand_home(path)
        try:
            mode = local_path.stat().st_mode
        except (OSError, UnicodeEncodeError) as error:
            if isinstance(error, FileNotFoundError) and set(path) & hub.GLOB_SIGNS:
                return _open_glob(request, local_path)
            if not isinstance(error, FileNotFoundError) or not could_be_on_the_hub(path):
                raise _error_of_opening(path, error) from None
        else:
            if stat.S_ISDIR(mode):
                return _open_folder(request, local_path)
            split = split_of_file(local_path.name)
            request = replace(request, base_folder=local_path.parent, pattern=glob.escape(str(local_path)))
            files_by_name = {local_path.name: named_file(local_path, mode)}
            return _choose_files(request, files_by_name, NamedSplits(), split or "", split)
    hub_path = hub.parse_hub_path(path, request.choice.revision)
    if source := _open_from_hub(request, hub_path):
        return source
    if is_hub_path:
        at_revision = "" if hub_path.revision == hub.MAIN else f" at {one_line(hub_path.revision, 80)}"
        problem = f"the dataset {hub_path.name}{at_revision} is not on this machine"
        raise DataError(problem, hint=hub.missing_data_hint(hub_path))
    similar_path = one_line(nearest_path(path), 200)
    suggestion = f"did you mean '{similar_path}'? Otherwise " if similar_path else ""
    problem = f"there is no file or folder '{one_line(path, 200)}', and no Hub dataset {path} on this machine"
    raise DataError(problem, hint=suggestion + hub.missing_data_hint(hub_path))


def _open_folder(request: _Request, folder: Path) -> Source:
    if folder.resolve() in _SYSTEM_FOLDERS:
        problem = f"'{one_line(request.text, 200)}' is a system folder"
        raise DataError(problem, hint="give the folder that contains the data, or a glob such as /data/*.jsonl")
    if any((folder / name).is_file() for name in _MODEL_FILES) and any(folder.glob("*.safetensors")):
        problem = f"'{one_line(request.text, 200)}' is the folder of a model, not data"
        raise DataError(problem, hint="give the path of the data here, and the model with --model")
    request = replace(request, base_folder=folder)
    if has_configurations(folder):
        return _open_configured(request, folder)
    if (name := request.choice.name) and (folder / name).is_dir():
        return _open_folder(replace(request.without_configuration, text=f"{request.text}/{name}"), folder / name)
    files_by_name, request = _usable_files(_files_below(folder), request)
    saved_folders = saved_splits(folder)
    splits = splits_of_cache(folder, files_by_name) or assign_splits(files_by_name, saved_folders)
    if missing_splits := saved_folders - {part.folder for part in splits.parts}:
        splits = replace(splits, missing_splits=(*splits.missing_splits, *sorted(missing_splits)))
    return _choose_files(request, files_by_name, splits, folder.name, split_in(folder.name))


def _open_configured(request: _Request, folder: Path) -> Source:
    """Return the source of a folder whose README.md declares configurations."""
    splits, declared_facts = configured_splits(folder, request.choice.name, request.name)
    owner = f"{request.hub_path.name}/" if request.hub_path else ""
    names = (name for part_names in splits.parts.values() for name in part_names)
    candidates = {name: find_regular_file(folder / name, f"{owner}{name}") for name in names}
    files_by_name = {name: replace(file, **declared_facts) for name, file in candidates.items() if file}
    return _choose_files(request.without_configuration, files_by_name, splits)


def _open_from_hub(request: _Request, path: hub.HubPath) -> Source | None:
    """Return the source of a data set of the Hub. None if nothing of it is on this machine, and it is not streamed."""
    choice, label = request.choice, ""
    cached_snapshot = hub.snapshot(path)
    local_names = _names_in(cached_snapshot[0]) if cached_snapshot else []
    has_data = bool(hub.data_names(local_names))
    if not path.subpath and not has_data and (converted := cached_data_set(path.name, choice.name, path.revision)):
        return _open_folder(replace(request.without_configuration, text=str(path)), converted)
    request = replace(request, hub_path=path)
    if not has_data and choice.streaming:
        files_by_name, splits = hub.remote_splits(path, choice.name)
        if splits:
            return _choose_files(request.without_configuration, files_by_name, splits)
    elif not cached_snapshot or (cached_snapshot[1] is None and not has_data and not path.subpath):
        return None
    else:
        folder, names = cached_snapshot[0], hub.selected_names(path, local_names, cached_snapshot[1])
        if not path.subpath and has_configurations(folder):
            return _open_configured(request, folder)
        files_by_name = {
            name: named_file(folder / name, (folder / name).stat().st_mode, f"{path.name}/{name}") for name in names
        }
        if hub.GLOB_SIGNS & {*path.subpath} or names == [path.subpath]:
            request = replace(request, pattern=path.subpath)
        label = path.subpath.rpartition("/")[2]
    # A folder may have the name of the configuration.
    configured_files = {name: file for name, file in files_by_name.items() if name.startswith(f"{choice.name}/")}
    if choice.name and configured_files:
        files_by_name, request = configured_files, request.without_configuration
    return _choose_files(request, files_by_name, assign_splits(files_by_name), label, split_in(label))


def _names_in(folder: Path) -> list[str]:
    """Return all files at any depth by their paths relative to `folder`. Broken links are excluded."""
    paths = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return [path.relative_to(folder).as_posix() for path in paths if os.path.exists(path)]  # noqa: PTH110  # Path raises in a closed folder


def _open_glob(request: _Request, pattern: Path) -> Source:
    paths = glob.glob(str(pattern), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
    names_of_folder: dict[Path, list[str]] = {}
    for path in map(Path, paths):
        names_of_folder.setdefault(path.parent, []).append(path.name)
    files = (folder / name for folder, file_names in names_of_folder.items() for name in data_files(folder, file_names))
    base = Path(*takewhile(lambda step: not hub.GLOB_SIGNS & {*step}, pattern.parts))
    request = replace(request, base_folder=base, pattern=str(pattern))
    files_by_name, request = _usable_files(files, request, whole_paths=True)
    return _choose_files(request, files_by_name, assign_splits(files_by_name), base.name, split_in(base.name))


def _choose_files(
    request: _Request,
    files_by_name: Mapping[str, SourceFile],
    splits: NamedSplits,
    label: str = "",
    split: Split | None = None,
) -> Source:
    """Return the source of the selected files. If no file name shows a split, all belong to `split`, named `label`."""
    choice = request.choice
    if choice.name:
        raise no_configuration(request.name, choice.name, _configurations(files_by_name))
    chosen_split, other_splits = _chosen_split(request, files_by_name, splits, label, split)
    read_paths = {file.path for file in chosen_split.files}
    read_splits = () if choice.is_evaluation or choice.splits else other_splits
    read_paths |= {file.path for other in read_splits if other.split == "validation" for file in other.files}
    names = [name for name, file in files_by_name.items() if file.path in read_paths]
    read_names = [name for name in names if name not in splits.listed_files]
    missing_names = missing_files(files_by_name, read_names)
    missing_names = [name for name in missing_names if not request.pattern or request.selects(name)]
    if missing_names:
        more_note = f" and {len(missing_names) - _MOST_SHOWN:,} more" if len(missing_names) > _MOST_SHOWN else ""
        shown_names = one_line(", ".join(missing_names[:_MOST_SHOWN]), 240) + more_note
        problem = f"{request.name} is incomplete; missing: {shown_names}"
        raise DataError(problem, hint="copy or download them, or list the files in data.path, separated by commas")
    for file in chosen_split.files:
        refuse_unsupported(file)
    is_split = bool(other_splits)
    if "[" in choice.split:
        files = {selected.label: selected.files for selected in chosen_split.joined_splits}
        chosen_split, is_split = replace(chosen_split, files=slices_of(files, choice.split, choice.split_setting)), True
    should_note_missing = splits.missing_splits and splits.parts and not choice.splits
    missing_note = f"declared splits without files: {', '.join(splits.missing_splits)}" if should_note_missing else ""
    source = _source_of(request.path, request.text_column, chosen_split, is_split=is_split)
    return replace(
        source,
        other_splits=other_splits,
        ignored_files=(*request.ignored_files, *(splits.ignored_files if splits.parts else ())),
        remark=missing_note or ("" if splits.parts else splits.remark),
    )


def _chosen_split(
    request: _Request, files_by_name: Mapping[str, SourceFile], splits: NamedSplits, label: str, split: Split | None
) -> tuple[SplitFiles, tuple[SplitFiles, ...]]:
    """Return the files to read, which are those of one split or all, and the files of each other split."""
    choice = request.choice
    if not splits.parts:
        all_files = SplitFiles(label=label if split else "", split=split, files=tuple(files_by_name.values()))
        by_label = {"train": all_files} if not split else {label: all_files, split: all_files}
        return _join_splits(by_label, request) if choice.splits else all_files, ()

    def files_of(part: SplitPart) -> SplitFiles:
        files = tuple(files_by_name[name] for name in splits.parts[part] if name in files_by_name)
        return SplitFiles(label=part.label, split=part.split, files=files)

    order: tuple[Split | None, ...] = ("train", "validation", "test", None)
    parts = sorted(splits.parts, key=lambda part: order.index(part.split))
    if choice.splits:
        labels = Counter(part.label for part in parts)
        if repeated_label := next((label for label in choice.splits if labels[label] > 1), ""):
            raise _error_of_parts(request, files_by_name, splits, f"several splits are named {repeated_label}")
        by_label = {part.label: files_of(part) for part in parts}
        parts_by_kind = {kind: splits.with_split(kind) for kind in order if kind}
        by_label |= {kind: files_of(found[0]) for kind, found in parts_by_kind.items() if len(found) == 1}
        unknown_labels = (label for label in choice.splits if label not in by_label)
        if missing_split := next((label for label in unknown_labels if label in splits.missing_splits), ""):
            message = f"{request.name}: the split {missing_split} is declared, but its files are missing"
            raise DataError(message, hint=_FETCH_AGAIN)
        chosen_files = _join_splits(by_label, request)
        read_files = [selected.files for selected in chosen_files.joined_splits or (chosen_files,)]
        return chosen_files, tuple(other for part in parts if (other := files_of(part)).files not in read_files)
    chosen_part = splits.evaluation_part() if choice.is_evaluation else splits.training_part()
    if not isinstance(chosen_part, str):
        return files_of(chosen_part), tuple(files_of(part) for part in parts if part != chosen_part)
    kinds = {part.split for part in parts}
    is_explicit = request.pattern or (len(parts) == 1 and {split} == kinds and not splits.missing_splits)
    if is_explicit and len(kinds) == 1 and (kind := kinds.pop()):
        # `*/train.jsonl` names exactly the training files of several places.
        files = tuple(files_by_name[name] for names in splits.parts.values() for name in names)
        return SplitFiles(label=kind, split=kind, files=files), ()
    raise _error_of_parts(request, files_by_name, splits, chosen_part)


def _join_splits(by_label: Mapping[str, SplitFiles], request: _Request) -> SplitFiles:
    """Join the files of the splits that the request names. Raises DataError if a split is missing."""
    choice = request.choice
    for label in choice.splits:
        if label not in by_label:
            known_labels = one_line(", ".join(by_label), 200)
            hint = f"set {choice.split_setting} to one of the splits {known_labels}"
            raise DataError(f"{request.name} has no split '{one_line(label, 60)}'", hint=hint)
    selected_splits = tuple(replace(by_label[label], label=label) for label in choice.splits)
    kinds = {selected.split for selected in selected_splits}
    files = tuple(dict.fromkeys(file for selected in selected_splits for file in selected.files))
    split = kinds.pop() if len(kinds) == 1 else None
    return SplitFiles(label=choice.split, split=split, files=files, joined_splits=selected_splits)


def _error_of_parts(
    request: _Request, files_by_name: Mapping[str, SourceFile], splits: NamedSplits, cause: str
) -> DataError:
    """Return the error for files that have several splits or configurations. Its hint has the setting for each one."""
    ordered = sorted(splits.parts.items(), key=lambda item: "train" not in item[0].label.lower())
    file_counts = Counter(str(folder) for name in files_by_name for folder in PurePosixPath(name).parents)
    alternatives = [
        (part.folder,) if part.folder and file_counts[part.folder] == len(files) else files for part, files in ordered
    ]
    shown_alternatives = "; ".join(one_line(", ".join(alternative), 80) for alternative in alternatives[:_MOST_SHOWN])
    labels = Counter(part.label for part, _ in ordered)
    if unique_labels := [one_line(label, 60) for label, count in labels.items() if label and count == 1]:
        hint = f"set {request.choice.split_setting} to {' or '.join(unique_labels[:_MOST_SHOWN])}; or "
    else:
        hint = ""
    example = next((alternative for alternative in alternatives if len(alternative) == 1), alternatives[0])
    setting = "data.eval_path" if request.choice.is_evaluation else "data.path"
    hint += f"set {setting} to one of these paths, such as {one_line(', '.join(map(request.as_setting, example)), 160)}"
    hint += "" if request.choice.is_evaluation else ", and data.eval_path to another"
    hint += "; several paths can be joined with commas"
    if configurations := _configurations(files_by_name):
        hint = f"set data.name to one of {one_line(', '.join(configurations), 160)}; or {hint}"
    if splits.missing_train and not (request.choice.is_evaluation or request.choice.splits):
        problem = f"{request.name}: {one_line(cause, 160)}; found: {shown_alternatives}"
        return DataError(problem, hint=f"{_FETCH_AGAIN}; or {hint}")
    if len(ordered) == 1:
        return DataError(f"{request.name} has only the split {ordered[0][0].label}: {shown_alternatives}", hint=hint)
    reason = f" ({one_line(cause, 160)})" if cause else ""
    return DataError(f"{request.name} has several splits or configurations: {shown_alternatives}{reason}", hint=hint)


def _configurations(names: Iterable[str]) -> list[str]:
    """Return the names of the folders that look like configurations: all files are in them, and none is a split."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    return sorted(folders) if len(folders) > 1 and not any(not folder or split_in(folder) for folder in folders) else []


def _files_below(folder: Path) -> Iterator[Path]:
    """Yield the files in `folder` at any depth, sorted. Hidden files and links to folders are skipped."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in data_files(Path(parent), sorted(names)):
            if not name.startswith("."):
                yield Path(parent) / name


def _usable_files(
    paths: Iterable[Path], request: _Request, *, whole_paths: bool = False
) -> tuple[dict[str, SourceFile], _Request]:
    """Return the readable files by their names below `base_folder`, and the request with the others as ignored files.

    With `whole_paths`, messages show whole paths. Raises DataError if a data file, or every file, cannot be read."""
    files: dict[str, SourceFile] = {}
    unreadable: list[str] = []
    other_names: list[str] = []
    for path in sorted(paths, key=str):
        name = path.relative_to(request.base_folder).as_posix()
        file = find_regular_file(path, str(path) if whole_paths else name)
        if file is not None and (usable_file := sniff_readable_file(file)):
            files[name] = usable_file
        elif path.is_symlink() and form_of(path) != "unknown":
            unreadable.append(f"{one_line(name, 80)} is a broken link")
        elif form_of(path) == "unsupported":
            problem = f"{one_line(path.suffix, 20)} files are not supported in this version"
            unreadable.append(f"{problem}: {one_line(name, 80)}")
        else:
            other_names.append(name)
    if any(file.holds_rows for file in files.values()):
        # Descriptions of the rows, and scripts that make them: `git clone` of a data set includes them.
        text_names = [name for name, file in files.items() if not file.holds_rows]
        description_names = {name for name in text_names if is_readme_or_licence(name) or name.endswith(".py")}
        description_names |= _settings_files(files)
        files = {name: file for name, file in files.items() if name not in description_names}
        other_names += description_names
    if not files:
        endings = Counter(PurePosixPath(name).suffix.lower() or "without an extension" for name in other_names)
        shown_suffixes = ", ".join(f"{count} {one_line(ending, 20)}" for ending, count in endings.most_common(6))
        reasons = unreadable[:_MOST_SHOWN]
        reasons += [f"found only other files ({shown_suffixes})"] if shown_suffixes else []
        summary = "; ".join(reasons) or "nothing was found"
        raise DataError(f"no usable file in '{one_line(request.text, 200)}': {summary}", hint=SUPPORTED)
    files = _with_folder_labels(files)
    if unreadable:
        hint = "convert or remove these files, or list the files to train on in data.path, separated by commas"
        raise DataError([Problem(message=text, hint=hint) for text in unreadable[:_MOST_SHOWN]])
    return files, replace(request, ignored_files=tuple(sorted(other_names)))


def _settings_files(files: Mapping[str, SourceFile]) -> set[str]:
    """Return the .json files that are settings, such as config.json: one object, next to other files with rows."""
    json_names = [name for name, file in files.items() if file.form == "json" and file.size_bytes <= _SETTINGS_BYTES]
    if len(json_names) > _MOST_SETTINGS_FILES:  # each of many files may be a row
        return set()
    settings = {name for name in json_names if _is_one_object(files[name])}
    return settings if any(file.holds_rows for name, file in files.items() if name not in settings) else set()


def _is_one_object(file: SourceFile) -> bool:
    try:
        with open_bytes(file) as (_, content):
            value = json.loads(content.read())
    except (DataError, ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or not any(isinstance(item, str | int | float) for item in value.values()):
        return False
    if HEADER_NAMES & {name.strip().lower() for name in value}:  # a row
        return False
    return not any(isinstance(item, list) and item and isinstance(item[0], dict) for item in value.values())


def _with_folder_labels(files: Mapping[str, SourceFile]) -> dict[str, SourceFile]:
    """Make the folder of each text its class, if every folder is no split, and folders have several texts."""
    folders = {name: PurePosixPath(name).parent.name for name in files if not is_readme_or_licence(name)}
    are_labels = all(folder and not split_in(folder) for folder in folders.values())
    if any(file.holds_rows for file in files.values()) or not are_labels:
        return dict(files)
    if not 2 <= len({*folders.values()}) < len(folders):
        return dict(files)
    return {name: replace(file, label_of_folder=folders.get(name, "")) for name, file in files.items()}


def _error_of_opening(path: str, error: OSError | UnicodeEncodeError) -> DataError:
    shown_path = one_line(path, 200)
    if isinstance(error, FileNotFoundError):
        if os.path.islink(os.path.expanduser(path)):  # noqa: PTH111, PTH114 - of a user who is not here as well
            return DataError(f"'{shown_path}' is a broken link", hint="repair the link, or give the path of the file")
        similar_path = one_line(nearest_path(path), 200)
        hint = (
            f"did you mean '{similar_path}'?"
            if similar_path
            else "check the path; a dataset on the Hub is written hub:owner/name"
        )
        return DataError(f"there is no file or folder '{shown_path}'", hint=hint)
    return DataError(f"'{shown_path}' cannot be opened: {getattr(error, 'strerror', 'not a file name')}")


def _remarks_on_local_path(path: str, choice: DataChoice) -> Iterator[str]:
    """Yield remarks if a user may have meant the Hub, but the path is a local one."""
    local_path = expand_home(path)
    if path.startswith(HUB_PREFIX) or (not os.path.lexists(local_path) and not set(path) & hub.GLOB_SIGNS):
        return
    settings = [f"data.{key}" for key in ("revision", "streaming") if getattr(choice, key)]
    if settings:
        verb = "is" if len(settings) == 1 else "are"
        yield f"{' and '.join(settings)} {verb} only for datasets on the Hub, and ignored for local data"
    name = os.path.relpath(local_path)
    if could_be_on_the_hub(name) and repository_folder("datasets", name).is_dir():
        yield f"the local folder is read, not the dataset of the same name on the Hub ({HUB_PREFIX}{name})"


def _source_of(path: str, text_column: str, files: SplitFiles, *, is_split: bool) -> Source:
    """Return the source of these files. `is_split`: `path` also names files of other splits."""
    slice_note = f", {one_line(files.label, 80)}" if "[" in files.label and files.joined_splits else ""
    return Source(
        path=path,
        text_column=text_column,
        description=_description(f"{path}, split {files.label}" if is_split else path, files.files, slice_note),
        bytes_on_disk=sum(entry.size_bytes for entry in files.files),
        entries=files.files,
        split=files if files.label else None,
    )


def _description(path: str, entries: tuple[SourceFile, ...], slice_note: str = "") -> str:
    size = format_bytes(sum(entry.size_bytes for entry in entries))
    if len(entries) == 1:
        return f"{entries[0].label}{slice_note} ({size})"
    return f"{one_line(path, 200)} ({len(entries):,} files, {size})"


def _progress_within(progress: Progress | None, before: float, total: float) -> Progress | None:
    """Return a callback that reports the progress of one source, which begins at `before`, as progress of all."""
    if progress is None:
        return None
    return lambda activity, done, _, unit: progress(activity, before + done, total, unit)


def _digest(entry: SourceFile, meter: Meter, bytes_before: int) -> str:
    """Return the hash of a file as stored. It is cached as long as the size and the time of the file are the same."""
    import xxhash

    if entry.digest:
        return entry.digest
    key = (str(entry.path.absolute()), *entry.size_and_time())
    if key not in _digests:
        digest = xxhash.xxh3_128()
        with open_bytes(entry) as (raw_file, _):
            while chunk := raw_file.read(4 * MIB):
                digest.update(chunk)
                meter.report(bytes_before + raw_file.tell())
        _digests[key] = str(digest.hexdigest())
    return _digests[key]


def validation_of(source: Source) -> Source | None:
    """Return the source of the validation splits, None without any. Raises DataError if ambiguous or incomplete."""
    parts, validation_sources = source.parts, []
    for part in parts:
        splits = [other for other in part.other_splits if other.split == "validation"]
        splits = [other for other in splits if other.label == "validation"] or splits
        if len(splits) > 1:
            problem = f"has several validation splits: {', '.join(map(_with_files, splits))}"
            raise DataError(problem, where=one_line(part.path, 200), hint="set data.eval_split to one of these splits")
        validation_sources += [_source_of(part.path, part.text_column, split, is_split=True) for split in splits]
    if not validation_sources:
        return None
    if len(validation_sources) < len(parts):
        paths_with = {validation.path for validation in validation_sources}
        paths_without = ", ".join(one_line(part.path, 120) for part in parts if part.path not in paths_with)
        problem = f"has a validation split, but {paths_without} has none"
        hint = "set data.eval_path to held-out data for all sources, or list only the training files in data.path"
        raise DataError(problem, where=", ".join(one_line(path, 120) for path in paths_with), hint=hint)
    return join_sources(validation_sources)


def uses_of_splits(source: Source, held_out: Source | None, setting_of_held_out: str) -> Iterator[SplitUse]:
    """Yield, for each source with something to report, which of its splits are trained on, held out and not read.

    `setting_of_held_out` is the setting that names `held_out`, such as `data.eval_path`; empty if none does."""
    held_out_parts = held_out.parts if held_out else ()
    # Resolving the paths of many files takes long, and happens at each edit of a config: skip it if possible.
    needs_paths = held_out is not None or any(part.other_splits for part in source.parts)
    rows_of_parts = [_rows_by_path(part) if needs_paths else {} for part in source.parts]
    held_out_rows = [_rows_by_path(part) for part in held_out_parts]
    evaluated_paths = {path for rows in held_out_rows for path in rows}
    read_paths = evaluated_paths | {path for rows in rows_of_parts for path in rows}
    names_splits = setting_of_held_out == "data.eval_split"
    held_out_sources = {other.path: other for other in held_out_parts} if names_splits else {}
    for part, rows in zip(source.parts, rows_of_parts, strict=True):
        evaluated_splits = [other for other in part.other_splits if evaluated_paths >= other.paths]
        unread_splits = [other for other in part.other_splits if other not in evaluated_splits]
        notes = [part.remark]
        if (held_out_source := held_out_sources.get(part.path)) and held_out_source.split:
            evaluated_labels = {other.label for other in held_out_source.split.joined_splits}
            evaluated_splits = [held_out_source.split]
            unread_splits = [other for other in part.other_splits if not {other.label, other.split} & evaluated_labels]
        unread_splits = [other for other in unread_splits if read_paths.isdisjoint(other.paths)]
        if part.split and part.split.split in ("validation", "test"):
            setting = "data.split" if part.split.joined_splits else "data.path"
            notes.append(f"this {part.split.split} split is trained on, because {setting} lists it")
        if setting_of_held_out and any(other.split == "validation" for other in unread_splits):
            notes.append(f"the held-out data comes from {setting_of_held_out}")
        split_use = SplitUse(
            source=one_line(part.path, 200),
            training_split=_with_files(part.split) if part.split else "",
            evaluation_split=", ".join(map(_with_files, evaluated_splits)),
            unread_splits=_unread_names(unread_splits, part.ignored_files),
            note="; ".join(filter(None, notes)),
            shares_rows=any(
                first < end and start < last
                for other in held_out_rows
                for path in rows.keys() & other.keys()
                for first, last in rows[path]
                for start, end in other[path]
            ),
        )
        if split_use.evaluation_split or split_use.unread_splits or split_use.note or split_use.shares_rows:
            yield split_use
    if held_out is None or not setting_of_held_out:
        return
    reported_paths = {part.path for part in source.parts}
    for part in held_out_parts:
        unread_splits = [other for other in part.other_splits if read_paths.isdisjoint(other.paths)]
        if part.split and unread_splits and part.path not in reported_paths:
            unread_names = _unread_names(unread_splits, part.ignored_files)
            split_name = _with_files(part.split)
            yield SplitUse(source=one_line(part.path, 200), evaluation_split=split_name, unread_splits=unread_names)


def _rows_by_path(source: Source) -> RowsRead:
    if source.sample:
        return {Path(source.path): [(0, math.inf)]}
    rows: RowsRead = {}
    for entry in source.entries:
        rows.setdefault(entry.path.resolve(), []).append(entry.row_range or (0, math.inf))
    return rows


def _unread_names(splits: Sequence[SplitFiles], ignored_files: Sequence[str]) -> tuple[str, ...]:
    more_count = len(ignored_files) - _MOST_SHOWN
    names = [one_line(name, 80) for name in ignored_files[:_MOST_SHOWN]]
    names += [f"{more_count:,} more files"] if more_count > 0 else []
    return (*map(_with_files, splits), *names)


def _with_files(split: SplitFiles) -> str:
    files_shown = split.files[0].label if len(split.files) == 1 else f"{len(split.files):,} files"
    return f"{one_line(split.label, 60)} ({files_shown})"
