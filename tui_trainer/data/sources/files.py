"""Which files a path names, those of one split where they are splits, and how one is opened so that nothing hangs.

Known here: names, kinds and sizes. What stands in a file is the matter of `reading.py`, which split a name belongs to
that of `named_splits.py`.
"""

from __future__ import annotations

import glob
import gzip
import os
import stat
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from tui_trainer.data.sources.dataset_folder import data_files, saved_splits
from tui_trainer.data.sources.file_formats import SUPPORTED, Form, form_of
from tui_trainer.data.sources.hub_parts import GLOB_SIGNS, separate_parts, several_parts
from tui_trainer.data.sources.hub_path import PREFIX as HUB_PREFIX
from tui_trainer.data.sources.hub_path import could_be_on_the_hub, parse_hub_path
from tui_trainer.data.sources.hub_snapshot import as_written, find_in_cache
from tui_trainer.data.sources.named_splits import Part, Split, split_in, split_of_file, tell_apart
from tui_trainer.data.sources.nearest_path import nearest_path
from tui_trainer.errors import DataError
from tui_trainer.local_paths import at_home
from tui_trainer.safe_text import one_line

SNIFFED_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFile:
    """One file to read. `label` is how messages and fingerprints name it; `label` is safe to show."""

    path: Path
    label: str
    size_bytes: int

    @property
    def compressed(self) -> bool:
        return self.path.suffix.lower() == ".gz"

    @property
    def form(self) -> Form:
        return form_of(self.path)

    @property
    def holds_rows(self) -> bool:
        return self.form not in ("text", "unknown")


@dataclass(frozen=True, kw_only=True, slots=True)
class SplitFiles:
    """Files of one split: how it is called, and which of the three it is, if any."""

    label: str
    split: Split | None
    files: tuple[SourceFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFiles:
    """What a path names. `chosen` are read: all, or where they are splits those of one, and `others` are the rest.

    `beside`: names of files that are no data beside splits. `remark` as `NamedSplits` has it.
    """

    chosen: SplitFiles
    others: tuple[SplitFiles, ...] = ()
    beside: tuple[str, ...] = ()
    remark: str = ""


def find_files(path: str, *, measured: bool = False) -> FoundFiles:
    """The files that `path` (a file, a folder, a glob or `hub:...`) names, sorted by name.

    Of splits, those of the one to train on; with `measured` those to evaluate on. Raises DataError when there is none
    that can be used, and for splits that cannot be told apart.
    """
    if not path.strip() or "\0" in path:
        raise DataError(
            "no data is named", hint="set data.path to a file, a folder, a glob, hub:owner/name or sample:NAME"
        )
    if path.startswith(HUB_PREFIX):
        return _in_the_cache(path, measured)
    place = at_home(path)
    try:
        mode = place.stat().st_mode
    except (OSError, UnicodeEncodeError) as error:
        if isinstance(error, FileNotFoundError) and set(path) & GLOB_SIGNS:
            return _of_a_glob(place, path, measured)
        raise _cannot_open(path, error) from None
    if stat.S_ISDIR(mode):
        named = _named_from(place, _usable(_files_below(place), path, place))
        return _of_one_split(named, place, path, measured, saved_splits(place))
    file = _named_file(place, mode)
    split = split_of_file(place.name)
    return FoundFiles(chosen=SplitFiles(label=split or "", split=split, files=(file,)))


def _in_the_cache(path: str, measured: bool) -> FoundFiles:
    wanted = parse_hub_path(path)
    named = {
        name: _named_file(file, file.stat().st_mode, f"{wanted.name}/{name}")
        for name, file in find_in_cache(path).items()
    }
    is_glob = bool(GLOB_SIGNS & {*wanted.inside})
    return _chosen(named, measured, one_line(str(wanted), 120), partial(as_written, wanted), is_glob=is_glob)


def _of_a_glob(pattern: Path, path: str, measured: bool) -> FoundFiles:
    names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
    below: dict[Path, list[str]] = {}
    for found in map(Path, names):
        below.setdefault(found.parent, []).append(found.name)
    files = (folder / name for folder, inside in below.items() for name in data_files(folder, inside))
    steps = takewhile(lambda step: not GLOB_SIGNS & {*step}, pattern.parts)
    place = Path(*steps)
    return _of_one_split(_named_from(place, _usable(files, path, None)), place, path, measured, is_glob=True)


def _named_from(place: Path, files: Iterable[SourceFile]) -> dict[str, SourceFile]:
    return {file.path.relative_to(place).as_posix(): file for file in files}


def _of_one_split(
    named: dict[str, SourceFile],
    place: Path,
    path: str,
    measured: bool,
    saved: frozenset[str] = frozenset(),
    *,
    is_glob: bool = False,
) -> FoundFiles:
    """Of files that are named from `place` on; where they name no split, the folder itself may."""

    def written(way: tuple[str, ...]) -> str:
        return ", ".join(str(place / inside).replace(",", "\\,") for inside in way)

    found = _chosen(named, measured, f"'{one_line(path, 120)}'", written, saved, is_glob=is_glob)
    if found.chosen.label:
        return found
    split = split_in(place.name)
    return replace(found, chosen=replace(found.chosen, split=split, label=place.name if split else ""))


def _chosen(
    named: dict[str, SourceFile],
    measured: bool,
    shown: str,
    written: Callable[[tuple[str, ...]], str],
    saved: frozenset[str] = frozenset(),
    *,
    is_glob: bool = False,
) -> FoundFiles:
    splits = tell_apart(named, saved)
    if not splits.parts:
        return FoundFiles(chosen=SplitFiles(label="", split=None, files=tuple(named.values())), remark=splits.remark)
    chosen = splits.measured() if measured else splits.trained()
    kinds = {part.split for part in splits.parts}
    if isinstance(chosen, str) and is_glob and len(kinds) == 1 and (split := kinds.pop()):
        # `*/train.jsonl` names exactly the training files of several places.
        files = tuple(named[name] for names in splits.parts.values() for name in names)
        return FoundFiles(chosen=SplitFiles(label=split, split=split, files=files), beside=splits.beside)
    if isinstance(chosen, str):
        raise several_parts(shown, separate_parts([*named], saved), written, chosen)

    def files_of(part: Part) -> SplitFiles:
        files = tuple(named[name] for name in splits.parts[part])
        return SplitFiles(label=part.label, split=part.split, files=files)

    order = ("train", "validation", "test", None)
    rest = sorted((part for part in splits.parts if part != chosen), key=lambda part: order.index(part.split))
    others = tuple(map(files_of, rest))
    return FoundFiles(chosen=files_of(chosen), others=others, beside=splits.beside)


@contextmanager
def open_bytes(file: SourceFile) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """The file's own bytes (for the position) and what it holds, unpacked where it is a .gz.

    Every failure to open or to read leaves as a DataError of one line. O_NONBLOCK: opening a FIFO must not wait for
    somebody to write into it.
    """
    with _told_in_one_line(file.label):
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with os.fdopen(os.open(file.path, flags), "rb") as raw:
            if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
                raise DataError("not a regular file", where=file.label)
            if not file.compressed:
                yield raw, raw
                return
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield raw, unpacked  # type: ignore[misc]  # GzipFile reads like a BinaryIO, but is not typed as one


@contextmanager
def _told_in_one_line(label: str) -> Iterator[None]:
    try:
        yield
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"not a sound gzip file ({one_line(str(error), 60)})",
            where=label,
            hint="rename it if it is not compressed, or download it again",
        ) from None
    except EOFError:
        raise DataError("the gzip file is cut short", where=label, hint="download or copy it again") from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or type(error).__name__}", where=label) from None


def _named_file(path: Path, mode: int, label: str = "") -> SourceFile:
    label = one_line(label or path.name)
    if not stat.S_ISREG(mode):
        raise DataError("not a regular file", where=label, hint="data.path wants a file, a folder or a glob")
    if form_of(path) == "unsupported":
        ending = "".join(path.suffixes[-2:]) if path.suffix.lower() == ".gz" else path.suffix
        raise DataError(f"{one_line(ending, 20)} files are not supported in this version", where=label, hint=SUPPORTED)
    file = SourceFile(path=path, label=label, size_bytes=path.stat().st_size)
    with open_bytes(file):  # says now that it may not be read
        return file


def _files_below(folder: Path) -> Iterator[Path]:
    """Files in `folder`, sorted, at any depth. Hidden ones are left out, links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in data_files(Path(place), sorted(names)):
            if not name.startswith("."):
                yield Path(place) / name


def _usable(paths: Iterable[Path], asked: str, folder: Path | None) -> tuple[SourceFile, ...]:
    """The files that can be read as text or rows; labels are relative to `folder` where there is one."""
    files: list[SourceFile] = []
    left_out: Counter[str] = Counter()
    for path in paths:
        file = _candidate(path, folder)
        if file is None or not _can_be_used(file):
            left_out[path.suffix.lower() or "without an ending"] += 1
        else:
            files.append(file)
    if files:
        return tuple(sorted(files, key=lambda file: str(file.path)))
    shown = ", ".join(f"{count} {one_line(ending, 20)}" for ending, count in left_out.most_common(6))
    found = f"found only {shown}" if shown else "nothing was found"
    raise DataError(f"no usable file in '{one_line(asked, 200)}': {found}", hint=SUPPORTED)


def _candidate(path: Path, folder: Path | None) -> SourceFile | None:
    try:
        facts = path.stat()
    except OSError:
        return None
    if not stat.S_ISREG(facts.st_mode):
        return None
    name = path.relative_to(folder).as_posix() if folder else str(path)
    return SourceFile(path=path, label=one_line(name), size_bytes=facts.st_size)


def _can_be_used(file: SourceFile) -> bool:
    """Whether a file that was not named itself counts; an unknown ending is settled by its first bytes."""
    if file.form != "unknown":
        return file.form != "unsupported"
    try:
        with open_bytes(file) as (_, content):
            return b"\0" not in content.read(SNIFFED_BYTES)
    except DataError:
        return False


def _cannot_open(path: str, error: OSError | UnicodeEncodeError) -> DataError:
    shown = one_line(path, 200)
    if isinstance(error, FileNotFoundError):
        return DataError(f"there is no file or folder '{shown}'", hint=_instead_of(path))
    return DataError(f"'{shown}' cannot be opened: {getattr(error, 'strerror', 'not a file name')}")


def _instead_of(path: str) -> str:
    near = one_line(nearest_path(path), 200)
    written = _from_here(path)
    on_the_hub = f"{HUB_PREFIX}{written}" if could_be_on_the_hub(written) else ""
    meant = " or ".join(filter(None, (f"'{near}'" if near else "", on_the_hub)))
    return f"did you mean {meant}?" if meant else "check the path; a data set of the hub is written hub:owner/name"


def _from_here(path: str) -> str:
    """As it was written, most likely: a config is given whole paths before its data is opened."""
    try:
        return Path(path).relative_to(Path.cwd()).as_posix()
    except (OSError, ValueError):
        return path
