"""One path of data.path as a `Source`: its files, their forms and sizes, its splits, and its documents or rows.

A path is a file, a folder, a glob, a data set of the hub (`hub.py`) or a built-in sample; what is on this disk wins
over a name on the hub. `open_source` looks at names and sizes only; which split a file belongs to is the matter of
`splits.py`. What is wrong inside the files is raised at the end of `documents`, all together. Slices of splits are
written as `datasets` writes them: `train[:10%]`, `train[100:]+validation`.
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
from tui_trainer.data.sources.hub import (
    GLOB_SIGNS,
    MAIN,
    HubPath,
    data_names,
    names_wanted,
    parse_hub_path,
    remedies,
    remote_splits,
    snapshot,
)
from tui_trainer.data.sources.reading import (
    Document,
    documents_of,
    first_characters,
    rows_of,
    slices_of,
)
from tui_trainer.data.sources.source_file import (
    SUPPORTED,
    SourceFile,
    candidate,
    form_of,
    named_file,
    open_bytes,
    refuse_unsupported,
    usable,
)
from tui_trainer.data.sources.splits import (
    NamedSplits,
    NoConfiguration,
    Split,
    SplitPart,
    SplitUse,
    cached_data_set,
    configured_splits,
    data_files,
    has_configurations,
    is_about_the_data,
    missing_files,
    no_configuration,
    saved_splits,
    split_in,
    split_of_file,
    splits_of_cache,
    tell_apart,
)
from tui_trainer.errors import DataError, Problem
from tui_trainer.files.hub_layout import (
    HUB_PREFIX,
    SAMPLE_PREFIX,
    address_of,
    could_be_on_the_hub,
    repository_folder,
)
from tui_trainer.files.local_paths import at_home, nearest_path
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import MIB, format_bytes

T = TypeVar("T")
SHOWN_SOURCES, _MOST_SHOWN = 4, 6
_ABOUT_A_MODEL = ("config.json", "adapter_config.json")
_NEVER_WALKED = frozenset(map(Path, ("/", "/proc", "/sys", "/dev", "/home", "/usr")))
_FEW_SETTINGS, _SETTINGS_BYTES = 20, 1 * MIB
_FETCH_AGAIN = "copy or download the dataset again"
_digests: dict[tuple[str, int, int], str] = {}  # of files already hashed by this process: (path, size, mtime_ns)

RowsRead = dict[Path, list[tuple[int, float]]]
"""Of each file, by its path without links: the first row that is read, and the one behind the last."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataChoice:
    """What of a path is wanted: a configuration, splits (`train`, `train[:10%]+validation`), a revision of the hub; and
    whether what is not on this machine is read from there.

    Empty stands for the only one or the default; of splits that is the one to train on or, with `measured`, to evaluate
    on.
    """

    name: str = ""
    split: str = ""
    revision: str = ""
    streaming: bool = False
    measured: bool = False

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that are named, without their slices."""
        return tuple(part.partition("[")[0].strip() for part in self.split.split("+")) if self.split.strip() else ()

    @property
    def split_setting(self) -> str:
        return "data.eval_split" if self.measured else "data.split"


EVERYTHING = DataChoice()


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFiles:
    """Files of one split: how it is called, and which of the three it is, if any. `several`: of what it is put
    together, where data.split names it.
    """

    label: str
    split: Split | None
    files: tuple[SourceFile, ...]
    several: "tuple[SplitFiles, ...]" = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """Text to learn from. `bytes_on_disk` counts a .gz as it is stored, a sample as UTF-8.

    Where several paths are named, `several` holds the source of each; what reads rows or documents takes them one
    after another, by `parts` or `each`.

    `split` says which split the entries are, if any; what else its path names, and is not read, is in `others` and
    `beside` (names of files that are no data beside splits). `splits` says what becomes of all of it in a run.
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
                f"{self.description} contains no text", hint="0 documents were found; choose another data.path"
            )

    @property
    def is_table(self) -> bool:
        return self.sample.is_table if self.sample else any(entry.holds_rows for entry in self.entries)

    def rows(
        self, problems: ProblemList, progress: Progress | None = None, *, max_rows: int = 0, choices: ColumnChoices
    ) -> Iterator[Row]:
        """Each row of a table in file order, the first `max_rows` of them (0: all).

        Mistakes in rows go into `problems`. Raises DataError for a source that is no table.
        """
        if self.sample and not self.sample.is_table:
            raise DataError(f"{self.description} is text, but this task reads a table", hint="choose another sample")
        if self.sample:
            return islice((Row(where, values) for where, values in self.sample.content()), max_rows or None)
        return islice(self._read(rows_of, choices, problems, progress), max_rows or None)

    def fingerprint(self, progress: Progress | None = None) -> str:
        """Return XXH3-128 over names and content."""
        import xxhash

        total = xxhash.xxh3_128()
        if self.several:
            total.update(repr([part.fingerprint(told) for part, told in self.each(progress)]).encode())
            return str(total.hexdigest())
        if self.sample:
            total.update(repr((self.path, SAMPLES_PYTHON, self.sample.content())).encode())
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
            return self._read(documents_of, choices, problems, progress)
        if self.sample.is_table:
            columns = ", ".join(dict.fromkeys(name for _, row in self.sample.content() for name in row))
            hint = f"choose another task.type or another sample; the columns of this sample are {columns}"
            raise DataError(f"{self.description} is a table, but this task reads text", hint=hint)
        return (Document(text, where) for where, text in self.sample.content())

    def _read(
        self,
        read: Callable[[BinaryIO, SourceFile, ColumnChoices, ProblemList], Iterator[T]],
        choices: ColumnChoices,
        problems: ProblemList,
        progress: Progress | None,
    ) -> Iterator[T]:
        """What `read` finds in the files. Mistakes go into `problems`."""
        meter = Meter(progress, "reading the data", self.bytes_on_disk, "bytes")
        done = 0
        for entry in self.entries:
            try:
                with open_bytes(entry) as (raw, content):
                    for found in read(content, entry, choices, problems):
                        yield found
                        if meter.due():
                            meter.report(done + raw.tell())
            except DataError as error:
                problems.add(error)
                # It makes the rest of the file unreadable: no row, but any number of them.
                problems.ends += error.problems
            done += entry.size_bytes
            meter.report(done)
        meter.finish(done)


def open_source(path: str, text_column: str = AUTO, choice: DataChoice = EVERYTHING) -> Source:
    """The source that one path of `data.path` names, or what is wanted of it.

    Raises DataError when there is none, or none that can be used; for splits that cannot be told apart, and for a
    configuration or split that is not there. Rows are counted where a slice of a split is wanted.
    """
    if path.startswith(SAMPLE_PREFIX):
        name = "" if choice.measured else choice.name  # which is of data.path
        if name or choice.split:
            setting = "data.name" if name else choice.split_setting
            raise DataError(
                f"{setting} is set, but a sample has no configurations or splits", hint=f"leave {setting} empty"
            )
        sample = find_sample(path.removeprefix(SAMPLE_PREFIX))
        texts = (content if isinstance(content, str) else repr(content) for _, content in sample.content())
        return Source(
            path=path,
            text_column=text_column,
            description=f"{path} ({sample.description})",
            bytes_on_disk=sum(len(text.encode()) for text in texts),
            sample=sample,
        )
    asked = _Asked(path=path, text=path, text_column=text_column, choice=choice)
    try:
        source = _find(asked)
    except NoConfiguration:
        if not choice.measured:
            raise
        source = _find(asked.without_configuration)  # data.name is of data.path
    return replace(source, remark="; ".join(filter(None, [source.remark, *_not_of_the_hub(path, choice)])))


def open_sources(paths: Sequence[str], text_column: str = AUTO, choice: DataChoice = EVERYTHING) -> Source:
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
    return _joined(parts)


def _joined(parts: Sequence[Source]) -> Source:
    """One source of several, itself where there is one. A file whose name others have too is named with its folder."""
    if len(parts) == 1:
        return parts[0]
    alone = [part.entries[0] if len(part.entries) == 1 else None for part in parts]
    labels = Counter(entry.label for entry in alone if entry)
    several = []
    for part, entry in zip(parts, alone, strict=True):
        if entry and labels[entry.label] > 1:
            entries = (replace(entry, label=one_line(f"{entry.path.parent.name}/{entry.path.name}")),)
            part = replace(part, entries=entries, description=_description(part.path, entries))
        several.append(part)
    named = [part.description for part in several[:SHOWN_SOURCES]]
    more = len(several) - len(named)
    return Source(
        path=", ".join(part.path for part in several),
        text_column=several[0].text_column,
        description=", ".join(named) + (f" and {more:,} more sources" if more else ""),
        bytes_on_disk=sum(part.bytes_on_disk for part in several),
        entries=tuple(entry for part in several for entry in part.entries),
        several=tuple(several),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Asked:
    """What is looked for: `path` as the config names it, and `text`, the part of it that is looked at now.

    Messages name it, and data.path takes a part of it behind `place`, or behind `wanted` on the hub. `pattern`: where
    some of the names in it are asked for, and not all.
    """

    path: str
    text: str
    text_column: str
    choice: DataChoice
    place: Path = Path()
    wanted: HubPath | None = None
    pattern: str = ""
    beside: tuple[str, ...] = ()
    """Files of its folder that are not read."""

    @property
    def name(self) -> str:
        return one_line(str(self.wanted), 120) if self.wanted else f"'{one_line(self.text, 120)}'"

    @property
    def without_configuration(self) -> "_Asked":
        """The same, where its configuration was found."""
        return replace(self, choice=replace(self.choice, name=""))

    def written(self, inside: str) -> str:
        path = str(replace(self.wanted, inside=inside) if self.wanted else self.place / inside)
        return path.replace(",", "\\,")

    def asks_for(self, inside: str) -> bool:
        return fnmatchcase(inside if self.wanted else str(self.place / inside), self.pattern)


def _find(asked: _Asked) -> Source:
    path = asked.path
    if not path.strip() or "\0" in path:
        raise DataError(
            "no data is set", hint="set data.path to a file, a folder, a glob, hub:owner/name or sample:NAME"
        )
    if address := address_of(path):
        hint = "download the file and give its path; a dataset on the Hub is written hub:owner/name"
        raise DataError(f"'{one_line(path, 200)}' is an address, but data is not read from {address}", hint=hint)
    is_of_the_hub = path.startswith(HUB_PREFIX)
    if not is_of_the_hub:
        place = at_home(path)
        try:
            mode = place.stat().st_mode
        except (OSError, UnicodeEncodeError) as error:
            if isinstance(error, FileNotFoundError) and set(path) & GLOB_SIGNS:
                return _of_a_glob(asked, place)
            if not isinstance(error, FileNotFoundError) or not could_be_on_the_hub(path):
                raise _cannot_open(path, error) from None
        else:
            if stat.S_ISDIR(mode):
                return _of_a_folder(asked, place)
            split = split_of_file(place.name)
            asked = replace(asked, place=place.parent, pattern=glob.escape(str(place)))
            return _choose(asked, {place.name: named_file(place, mode)}, NamedSplits(), split or "", split)
    wanted = parse_hub_path(path, asked.choice.revision)
    if found := _on_the_hub(asked, wanted):
        return found
    if is_of_the_hub:
        at = "" if wanted.revision == MAIN else f" at {one_line(wanted.revision, 80)}"
        raise DataError(f"the dataset {wanted.name}{at} is not on this machine", hint=remedies(wanted))
    near = one_line(nearest_path(path), 200)
    guess = f"did you mean '{near}'? Otherwise " if near else ""
    what = f"there is no file or folder '{one_line(path, 200)}', and no Hub dataset {path} on this machine"
    raise DataError(what, hint=guess + remedies(wanted))


def _of_a_folder(asked: _Asked, place: Path) -> Source:
    if place.resolve() in _NEVER_WALKED:
        what = f"'{one_line(asked.text, 200)}' is a system folder"
        raise DataError(what, hint="give the folder that contains the data, or a glob such as /data/*.jsonl")
    if any((place / name).is_file() for name in _ABOUT_A_MODEL) and any(place.glob("*.safetensors")):
        what = f"'{one_line(asked.text, 200)}' is the folder of a model, not data"
        raise DataError(what, hint="name your data here, and the model with --model")
    asked = replace(asked, place=place)
    if has_configurations(place):
        return _configured(asked, place)
    if (name := asked.choice.name) and (place / name).is_dir():
        return _of_a_folder(replace(asked.without_configuration, text=f"{asked.text}/{name}"), place / name)
    named, asked = _usable(_files_below(place), asked)
    saved = saved_splits(place)
    splits = splits_of_cache(place, named) or tell_apart(named, saved)
    if gone := saved - {part.folder for part in splits.parts}:
        splits = replace(splits, gone=(*splits.gone, *sorted(gone)))
    return _choose(asked, named, splits, place.name, split_in(place.name))


def _configured(asked: _Asked, place: Path) -> Source:
    splits, declared = configured_splits(place, asked.choice.name, asked.name)
    owner = f"{asked.wanted.name}/" if asked.wanted else ""
    found = {name: candidate(place / name, f"{owner}{name}") for names in splits.parts.values() for name in names}
    named = {name: replace(file, **declared) for name, file in found.items() if file}
    return _choose(asked.without_configuration, named, splits)


def _on_the_hub(asked: _Asked, wanted: HubPath) -> Source | None:
    """None where nothing of it is on this machine, and it is not read from the hub."""
    choice, label = asked.choice, ""
    found = snapshot(wanted)
    here = _names_in(found[0]) if found else []
    has_data = bool(data_names(here))
    if not wanted.inside and not has_data and (stored := cached_data_set(wanted.name, choice.name, wanted.revision)):
        return _of_a_folder(replace(asked.without_configuration, text=str(wanted)), stored)
    asked = replace(asked, wanted=wanted)
    if not has_data and choice.streaming:
        named, splits = remote_splits(wanted, choice.name)
        if splits:
            return _choose(asked.without_configuration, named, splits)
    elif not found or (found[1] is None and not has_data and not wanted.inside):
        return None
    else:
        folder, names = found[0], names_wanted(wanted, here, found[1])
        if not wanted.inside and has_configurations(folder):
            return _configured(asked, folder)
        named = {
            name: named_file(folder / name, (folder / name).stat().st_mode, f"{wanted.name}/{name}") for name in names
        }
        if GLOB_SIGNS & {*wanted.inside} or names == [wanted.inside]:
            asked = replace(asked, pattern=wanted.inside)
        label = wanted.inside.rpartition("/")[2]
    # The files in the folder that is called as the configuration, where there is one.
    inside = {name: file for name, file in named.items() if name.startswith(f"{choice.name}/")}
    if choice.name and inside:
        named, asked = inside, asked.without_configuration
    return _choose(asked, named, tell_apart(named), label, split_in(label))


def _names_in(folder: Path) -> list[str]:
    """Every file, at any depth, named from `folder` on. A link whose file is gone is none."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [path.relative_to(folder).as_posix() for path in found if os.path.exists(path)]  # noqa: PTH110  # Path raises in a closed folder


def _of_a_glob(asked: _Asked, pattern: Path) -> Source:
    names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
    below: dict[Path, list[str]] = {}
    for found in map(Path, names):
        below.setdefault(found.parent, []).append(found.name)
    files = (folder / name for folder, inside in below.items() for name in data_files(folder, inside))
    place = Path(*takewhile(lambda step: not GLOB_SIGNS & {*step}, pattern.parts))
    asked = replace(asked, place=place, pattern=str(pattern))
    named, asked = _usable(files, asked, whole_paths=True)
    return _choose(asked, named, tell_apart(named), place.name, split_in(place.name))


def _choose(
    asked: _Asked, named: Mapping[str, SourceFile], splits: NamedSplits, label: str = "", split: Split | None = None
) -> Source:
    """The source of the files that are wanted. `label` and `split` are of the whole, where its files name no split."""
    choice = asked.choice
    if choice.name:
        raise no_configuration(asked.name, choice.name, _configurations(named))
    chosen, others = _told_apart(asked, named, splits, label, split)
    read = {file.path for file in chosen.files}
    validation = () if choice.measured or choice.splits else others
    read |= {file.path for other in validation if other.split == "validation" for file in other.files}
    names = [name for name, file in named.items() if file.path in read and name not in splits.exact]
    missing = [name for name in missing_files(named, names) if not asked.pattern or asked.asks_for(name)]
    if missing:
        more = f" and {len(missing) - _MOST_SHOWN:,} more" if len(missing) > _MOST_SHOWN else ""
        listed = one_line(", ".join(missing[:_MOST_SHOWN]), 240) + more
        what = f"{asked.name} is incomplete; missing: {listed}"
        raise DataError(what, hint="copy or download the rest, or list the files in data.path, separated by commas")
    for file in chosen.files:
        refuse_unsupported(file)
    is_split = bool(others)
    if "[" in choice.split:
        files = {one.label: one.files for one in chosen.several}
        chosen, is_split = replace(chosen, files=slices_of(files, choice.split, choice.split_setting)), True
    is_gone = splits.gone and splits.parts and not choice.splits
    gone = f"declared, but without files: {', '.join(splits.gone)}" if is_gone else ""
    source = _source_of(asked.path, asked.text_column, chosen, is_split=is_split)
    return replace(
        source,
        others=others,
        beside=(*asked.beside, *(splits.beside if splits.parts else ())),
        remark=gone or ("" if splits.parts else splits.remark),
    )


def _told_apart(
    asked: _Asked, named: Mapping[str, SourceFile], splits: NamedSplits, label: str, split: Split | None
) -> tuple[SplitFiles, tuple[SplitFiles, ...]]:
    """What is read: all, or where they are splits those of one; and the other splits."""
    choice = asked.choice
    if not splits.parts:
        whole = SplitFiles(label=label if split else "", split=split, files=tuple(named.values()))
        known = {"train": whole} if not split else {label: whole, split: whole}
        return _picked(known, asked) if choice.splits else whole, ()

    def files_of(part: SplitPart) -> SplitFiles:
        files = tuple(named[name] for name in splits.parts[part] if name in named)
        return SplitFiles(label=part.label, split=part.split, files=files)

    order: tuple[Split | None, ...] = ("train", "validation", "test", None)
    parts = sorted(splits.parts, key=lambda part: order.index(part.split))
    if choice.splits:
        labels = Counter(part.label for part in parts)
        if twice := next((label for label in choice.splits if labels[label] > 1), ""):
            raise _several_parts(asked, named, splits, f"several splits are named {twice}")
        known = {part.label: files_of(part) for part in parts}
        known |= {kind: files_of(only[0]) for kind in order if kind and len(only := splits.of(kind)) == 1}
        if gone := next((label for label in choice.splits if label in splits.gone and label not in known), ""):
            message = f"{asked.name}: the split {gone} is declared, but its files are missing"
            raise DataError(message, hint=_FETCH_AGAIN)
        chosen = _picked(known, asked)
        taken = [one.files for one in chosen.several or (chosen,)]
        return chosen, tuple(other for part in parts if (other := files_of(part)).files not in taken)
    found = splits.measured() if choice.measured else splits.trained()
    if not isinstance(found, str):
        return files_of(found), tuple(files_of(part) for part in parts if part != found)
    kinds = {part.split for part in parts}
    names_it = asked.pattern or (len(parts) == 1 and {split} == kinds and not splits.gone)
    if names_it and len(kinds) == 1 and (kind := kinds.pop()):
        # `*/train.jsonl` names exactly the training files of several places.
        return SplitFiles(label=kind, split=kind, files=tuple(named[n] for f in splits.parts.values() for n in f)), ()
    raise _several_parts(asked, named, splits, found)


def _picked(known: Mapping[str, SplitFiles], asked: _Asked) -> SplitFiles:
    """The splits that are named, as one."""
    choice = asked.choice
    for label in choice.splits:
        if label not in known:
            has = one_line(", ".join(known), 200)
            hint = f"its splits are {has}; change {choice.split_setting}"
            raise DataError(f"{asked.name} has no split '{one_line(label, 60)}'", hint=hint)
    several = tuple(replace(known[label], label=label) for label in choice.splits)
    kinds = {one.split for one in several}
    files = tuple(dict.fromkeys(file for one in several for file in one.files))
    return SplitFiles(label=choice.split, split=kinds.pop() if len(kinds) == 1 else None, files=files, several=several)


def _several_parts(asked: _Asked, named: Mapping[str, SourceFile], splits: NamedSplits, doubt: str) -> DataError:
    """For files of which nobody knows which to train on, and what to write in data.path for each part of them."""
    ordered = sorted(splits.parts.items(), key=lambda item: "train" not in item[0].label.lower())
    below = Counter(str(folder) for name in named for folder in PurePosixPath(name).parents)
    ways = [(part.folder,) if part.folder and below[part.folder] == len(files) else files for part, files in ordered]
    listed = "; ".join(one_line(", ".join(way), 80) for way in ways[:_MOST_SHOWN])
    labels = Counter(part.label for part, _ in ordered)
    if only := [one_line(label, 60) for label, count in labels.items() if label and count == 1]:
        hint = f"set {asked.choice.split_setting} to {' or '.join(only[:_MOST_SHOWN])}; or "
    else:
        hint = ""
    short = next((way for way in ways if len(way) == 1), ways[0])
    setting = "data.eval_path" if asked.choice.measured else "data.path"
    hint += f"set {setting} to one of them, such as {one_line(', '.join(map(asked.written, short)), 160)}"
    hint += "" if asked.choice.measured else ", and data.eval_path to another"
    hint += "; paths separated by commas are read together"
    if configurations := _configurations(named):
        hint = f"set data.name to one of {one_line(', '.join(configurations), 160)}; or {hint}"
    if splits.gone_train and not (asked.choice.measured or asked.choice.splits):
        return DataError(f"{asked.name}: {one_line(doubt, 160)}; found: {listed}", hint=f"{_FETCH_AGAIN}; or {hint}")
    if len(ordered) == 1:
        return DataError(f"{asked.name} has only the split {ordered[0][0].label}: {listed}", hint=hint)
    why = f" ({one_line(doubt, 160)})" if doubt else ""
    return DataError(f"{asked.name} has several splits or configurations: {listed}{why}", hint=hint)


def _configurations(names: Iterable[str]) -> list[str]:
    """The folders that all of the files are in, where none of them is a split."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    return sorted(folders) if len(folders) > 1 and not any(not one or split_in(one) for one in folders) else []


def _files_below(folder: Path) -> Iterator[Path]:
    """Files in `folder`, sorted, at any depth. Hidden ones are left out, links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in data_files(Path(place), sorted(names)):
            if not name.startswith("."):
                yield Path(place) / name


def _usable(paths: Iterable[Path], asked: _Asked, *, whole_paths: bool = False) -> tuple[dict[str, SourceFile], _Asked]:
    """Return the readable files by their names below `asked.place`, and `asked` with the names of the other files.
    Labels are whole paths with `whole_paths`.

    Raises DataError where no file can be read, and for files whose names promise data that cannot be read.
    """
    files: dict[str, SourceFile] = {}
    unreadable: list[str] = []
    beside: list[str] = []
    for path in sorted(paths, key=str):
        name = path.relative_to(asked.place).as_posix()
        file = candidate(path, str(path) if whole_paths else name)
        if file is not None and (read := usable(file)):
            files[name] = read
        elif path.is_symlink() and form_of(path) != "unknown":
            unreadable.append(f"{one_line(name, 80)} is a broken link")
        elif form_of(path) == "unsupported":
            unreadable.append(
                f"{one_line(path.suffix, 20)} files are not supported in this version: {one_line(name, 80)}"
            )
        else:
            beside.append(name)
    if any(file.holds_rows for file in files.values()):
        # What describes the rows or makes them: `git clone` of a data set leaves it beside them.
        about = {
            name
            for name, file in files.items()
            if not file.holds_rows and (is_about_the_data(name) or name.endswith(".py"))
        } | _settings_among(files)
        files = {name: file for name, file in files.items() if name not in about}
        beside += about
    if not files:
        endings = Counter(PurePosixPath(name).suffix.lower() or "without an extension" for name in beside)
        shown = ", ".join(f"{count} {one_line(ending, 20)}" for ending, count in endings.most_common(6))
        reasons = [*unreadable[:_MOST_SHOWN], *([f"found only other files ({shown})"] if shown else [])]
        found = "; ".join(reasons) or "nothing was found"
        raise DataError(f"no usable file in '{one_line(asked.text, 200)}': {found}", hint=SUPPORTED)
    files = _labelled_by_folder(files)
    if unreadable:
        hint = "convert or remove these files, or list the files to train on in data.path, separated by commas"
        raise DataError([Problem(message=text, hint=hint) for text in unreadable[:_MOST_SHOWN]])
    return files, replace(asked, beside=tuple(sorted(beside)))


def _settings_among(files: Mapping[str, SourceFile]) -> set[str]:
    """Return the .json files that hold one object without rows, such as config.json, where others hold rows."""
    found = [name for name, file in files.items() if file.form == "json" and file.size_bytes <= _SETTINGS_BYTES]
    if len(found) > _FEW_SETTINGS:  # of many files each may be a row
        return set()
    alone = {name for name in found if _is_one_object(files[name])}
    return alone if any(file.holds_rows for name, file in files.items() if name not in alone) else set()


def _is_one_object(file: SourceFile) -> bool:
    try:
        with open_bytes(file) as (_, content):
            value = json.loads(content.read())
    except (DataError, ValueError, RecursionError):
        return False
    if not isinstance(value, dict) or not any(isinstance(one, str | int | float) for one in value.values()):
        return False
    if HEADER_NAMES & {name.strip().lower() for name in value}:  # a row
        return False
    return not any(isinstance(one, list) and one and isinstance(one[0], dict) for one in value.values())


def _labelled_by_folder(files: Mapping[str, SourceFile]) -> dict[str, SourceFile]:
    """Give texts their folder as a label, where each lies in a folder that is no split, and folders have several."""
    folders = {name: PurePosixPath(name).parent.name for name in files if not is_about_the_data(name)}
    are_labels = all(folder and not split_in(folder) for folder in folders.values())
    if any(file.holds_rows for file in files.values()) or not are_labels:
        return dict(files)
    if not 2 <= len({*folders.values()}) < len(folders):
        return dict(files)
    return {name: replace(file, label_of_folder=folders.get(name, "")) for name, file in files.items()}


def _cannot_open(path: str, error: OSError | UnicodeEncodeError) -> DataError:
    shown = one_line(path, 200)
    if isinstance(error, FileNotFoundError):
        if os.path.islink(os.path.expanduser(path)):  # noqa: PTH111, PTH114 - of a user who is not here as well
            return DataError(f"'{shown}' is a broken link", hint="repair the link, or give the path of the file")
        near = one_line(nearest_path(path), 200)
        hint = f"did you mean '{near}'?" if near else "check the path; a dataset on the Hub is written hub:owner/name"
        return DataError(f"there is no file or folder '{shown}'", hint=hint)
    return DataError(f"'{shown}' cannot be opened: {getattr(error, 'strerror', 'not a file name')}")


def _not_of_the_hub(path: str, choice: DataChoice) -> Iterator[str]:
    """What a person who meant the hub should know of a path of this disk."""
    place = at_home(path)
    if path.startswith(HUB_PREFIX) or (not os.path.lexists(place) and not set(path) & GLOB_SIGNS):
        return
    settings = [f"data.{key}" for key in ("revision", "streaming") if getattr(choice, key)]
    if settings:
        what = " and ".join(settings)
        yield f"{what} {'is' if len(settings) == 1 else 'are'} only for datasets on the Hub, and ignored for local data"
    name = os.path.relpath(place)
    if could_be_on_the_hub(name) and repository_folder("datasets", name).is_dir():
        yield f"the local folder is read, not the dataset of the same name on the Hub ({HUB_PREFIX}{name})"


def _source_of(path: str, text_column: str, found: SplitFiles, *, is_split: bool) -> Source:
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


def _description(path: str, entries: tuple[SourceFile, ...], slice_of: str = "") -> str:
    size = format_bytes(sum(entry.size_bytes for entry in entries))
    if len(entries) == 1:
        return f"{entries[0].label}{slice_of} ({size})"
    return f"{one_line(path, 200)} ({len(entries):,} files, {size})"


def _shifted(progress: Progress | None, before: float, total: float) -> Progress | None:
    """Progress of a part that begins at `before`."""
    if progress is None:
        return None
    return lambda what, done, _, unit: progress(what, before + done, total, unit)


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


def validation_of(source: Source) -> Source | None:
    """Return the validation splits beside what is trained on, or None. Raises DataError where they are ambiguous."""
    parts, found = source.parts, []
    for part in parts:
        splits = [other for other in part.others if other.split == "validation"]
        splits = [other for other in splits if other.label == "validation"] or splits
        if len(splits) > 1:
            what = f"has several validation splits: {', '.join(map(_shown, splits))}"
            raise DataError(what, where=one_line(part.path, 200), hint="set data.eval_split to one of them")
        found += [_source_of(part.path, part.text_column, split, is_split=True) for split in splits]
    if not found:
        return None
    if len(found) < len(parts):
        have = {one.path for one in found}
        without = ", ".join(one_line(part.path, 120) for part in parts if part.path not in have)
        what = f"has a validation split, but {without} has none"
        hint = "set data.eval_path to held-out data for all sources, or list only the training files in data.path"
        raise DataError(what, where=", ".join(one_line(path, 120) for path in have), hint=hint)
    return _joined(found)


def uses_of_splits(source: Source, held_out: Source | None, named_by: str) -> Iterator[SplitUse]:
    """Yield the use of each source that has splits. `named_by` is the setting that names the held-out data, if any."""
    held_parts = held_out.parts if held_out else ()
    # Of many files that stand alone no path is looked up: it is done at each edit of a config.
    compares = held_out is not None or any(part.others for part in source.parts)
    trained = [_rows_read(part) if compares else {} for part in source.parts]
    held_rows = [_rows_read(part) for part in held_parts]
    measured = {path for rows in held_rows for path in rows}
    read = measured | {path for rows in trained for path in rows}
    own = {one.path: one for one in held_parts} if named_by == "data.eval_split" else {}
    for part, rows in zip(source.parts, trained, strict=True):
        evaluated = [other for other in part.others if measured >= {file.path.resolve() for file in other.files}]
        unused = [other for other in part.others if other not in evaluated]
        notes = [part.remark]
        if (held := own.get(part.path)) and held.split:
            labels = {one.label for one in held.split.several}
            evaluated, unused = [held.split], [one for one in part.others if not {one.label, one.split} & labels]
        unused = [one for one in unused if not any(file.path.resolve() in read for file in one.files)]
        if part.split and part.split.split in ("validation", "test"):
            setting = "data.split" if part.split.several else "data.path"
            notes.append(
                f"it is trained on because {setting} lists it, although its name is that of a {part.split.split} split"
            )
        if named_by and any(other.split == "validation" for other in unused):
            notes.append(f"the held-out data comes from {named_by}")
        use = SplitUse(
            source=one_line(part.path, 200),
            trains=_shown(part.split) if part.split else "",
            evaluates=", ".join(map(_shown, evaluated)),
            left_alone=_left_alone(unused, part.beside),
            note="; ".join(filter(None, notes)),
            shares_rows=any(
                first < end and start < last
                for other in held_rows
                for path in rows.keys() & other.keys()
                for first, last in rows[path]
                for start, end in other[path]
            ),
        )
        if use.evaluates or use.left_alone or use.note or use.shares_rows:
            yield use
    if held_out is None or not named_by:
        return
    told = {part.path for part in source.parts}
    for part in held_parts:
        unused = [one for one in part.others if not any(file.path.resolve() in read for file in one.files)]
        if part.split and unused and part.path not in told:
            left_alone = _left_alone(unused, part.beside)
            yield SplitUse(source=one_line(part.path, 200), evaluates=_shown(part.split), left_alone=left_alone)


def _rows_read(source: Source) -> RowsRead:
    if source.sample:
        return {Path(source.path): [(0, math.inf)]}
    found: RowsRead = {}
    for entry in source.entries:
        found.setdefault(entry.path.resolve(), []).append(entry.rows or (0, math.inf))
    return found


def _left_alone(splits: Sequence[SplitFiles], beside: Sequence[str]) -> tuple[str, ...]:
    more = len(beside) - _MOST_SHOWN
    files = [one_line(name, 80) for name in beside[:_MOST_SHOWN]] + ([f"{more:,} more files"] if more > 0 else [])
    return (*map(_shown, splits), *files)


def _shown(split: SplitFiles) -> str:
    files = split.files[0].label if len(split.files) == 1 else f"{len(split.files):,} files"
    return f"{one_line(split.label, 60)} ({files})"
