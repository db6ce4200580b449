"""Which files a path names, and those of one split where they are splits.

Known here: names, kinds and sizes. What stands in a file is the matter of `reading.py`; which split a file belongs to
that of `declared_splits.py` and, where nothing is declared, of `named_splits.py`.
"""

import glob
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path, PurePosixPath

from tui_trainer.data.sources import declared_splits, hub
from tui_trainer.data.sources.choice import Choice
from tui_trainer.data.sources.named_splits import NamedSplits, Part, Split, split_in, split_of_file, tell_apart
from tui_trainer.data.sources.nearest_path import nearest_path
from tui_trainer.data.sources.source_file import SUPPORTED, SourceFile, can_be_used, candidate, named_file
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import could_be_on_the_hub, repository_folder
from tui_trainer.files.local_paths import at_home
from tui_trainer.terminal.safe_text import one_line

_MOST_SHOWN = 6
_FETCH_AGAIN = "copy or download the data set again"


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
class FoundFiles:
    """What a path names. `chosen` are read: all, or where they are splits those of one, and `others` are the rest.

    `beside`: names of files that are no data beside splits. `remark` as `NamedSplits` has it.
    """

    chosen: SplitFiles
    others: tuple[SplitFiles, ...] = ()
    beside: tuple[str, ...] = ()
    remark: str = ""


def find_files(path: str, choice: Choice) -> FoundFiles:
    """The files that `path` (a file, a folder, a glob or a data set of the hub) names, sorted by name.

    What is on this disk wins over a name on the hub. Raises DataError when there is none that can be used, for splits
    that cannot be told apart, and for a configuration or split that is not there.
    """
    try:
        found = _found(path, choice)
    except declared_splits.NoConfiguration:
        if not choice.measured:
            raise
        found = _found(path, replace(choice, name=""))  # data.name is of data.path
    return replace(found, remark="; ".join(filter(None, [found.remark, *_not_of_the_hub(path, choice)])))


def _not_of_the_hub(path: str, choice: Choice) -> Iterator[str]:
    """What a person who meant the hub should know of a path of this disk."""
    place = at_home(path)
    if path.startswith(hub.PREFIX) or (not os.path.lexists(place) and not set(path) & hub.GLOB_SIGNS):
        return
    settings = [f"data.{key}" for key in ("revision", "streaming") if getattr(choice, key)]
    if settings:
        what = " and ".join(settings)
        yield f"{what} {'is' if len(settings) == 1 else 'are'} of data sets of the hub, and not used for what is here"
    name = os.path.relpath(place)
    if could_be_on_the_hub(name) and repository_folder("datasets", name).is_dir():
        yield f"the folder is read, and not the data set of the hub of the same name, which is {hub.PREFIX}{name}"


def _found(path: str, choice: Choice) -> FoundFiles:
    if not path.strip() or "\0" in path:
        raise DataError(
            "no data is named", hint="set data.path to a file, a folder, a glob, hub:owner/name or sample:NAME"
        )
    if path.startswith(hub.PREFIX):
        wanted = hub.parse_hub_path(path, choice.revision)
        if found := _on_the_hub(wanted, choice):
            return found
        at = "" if wanted.revision == hub.MAIN else f" at {one_line(wanted.revision, 80)}"
        raise DataError(f"the data set {wanted.name}{at} is not on this machine", hint=hub.remedies(wanted))
    place = at_home(path)
    try:
        mode = place.stat().st_mode
    except (OSError, UnicodeEncodeError) as error:
        if isinstance(error, FileNotFoundError) and set(path) & hub.GLOB_SIGNS:
            return _of_a_glob(place, path, choice)
        if isinstance(error, FileNotFoundError) and could_be_on_the_hub(path):
            return _maybe_on_the_hub(path, choice)
        raise _cannot_open(path, error) from None
    if stat.S_ISDIR(mode):
        return _of_a_folder(place, path, choice)
    split = split_of_file(place.name)
    shown = _Shown(f"'{one_line(path, 120)}'", place.parent, pattern=glob.escape(str(place)))
    return _chosen({place.name: named_file(place, mode)}, NamedSplits(), shown, choice, split or "", split)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shown:
    """How messages name the whole, and how data.path takes a part of it: behind `place`, or behind `wanted`."""

    name: str = field(kw_only=False)
    place: Path | None = field(kw_only=False, default=None)
    wanted: hub.HubPath | None = None
    pattern: str = ""  # where some of the names below are asked for, and not all

    def written(self, inside: str) -> str:
        path = str(replace(self.wanted, inside=inside) if self.wanted else (self.place or Path()) / inside)
        return path.replace(",", "\\,")

    def asks_for(self, inside: str) -> bool:
        name = inside if self.wanted else str((self.place or Path()) / inside)
        return fnmatchcase(name, self.pattern)


def _of_a_folder(place: Path, path: str, choice: Choice) -> FoundFiles:
    shown = _Shown(f"'{one_line(path, 120)}'", place)
    if declared_splits.has_configurations(place):
        return _configured(place, choice, shown)
    if choice.name and (place / choice.name).is_dir():
        return _of_a_folder(place / choice.name, f"{path}/{choice.name}", replace(choice, name=""))
    named = _usable(_files_below(place), path, place)
    saved = declared_splits.saved_splits(place)
    splits = declared_splits.splits_of_cache(place, named) or tell_apart(named, saved)
    if gone := saved - {part.folder for part in splits.parts}:
        splits = replace(splits, gone=(*splits.gone, *sorted(gone)))
    return _chosen(named, splits, shown, choice, place.name, split_in(place.name))


def _configured(place: Path, choice: Choice, shown: _Shown) -> FoundFiles:
    splits, declared = declared_splits.configured_splits(place, choice.name, shown.name)
    owner = f"{shown.wanted.name}/" if shown.wanted else ""
    found = {name: candidate(place / name, f"{owner}{name}") for names in splits.parts.values() for name in names}
    named = {name: replace(file, **declared) for name, file in found.items() if file}
    return _chosen(named, splits, shown, replace(choice, name=""))


def _maybe_on_the_hub(name: str, choice: Choice) -> FoundFiles:
    """A path that is not there may be the name of a data set."""
    wanted = hub.parse_hub_path(name, choice.revision)
    if found := _on_the_hub(wanted, choice):
        return found
    near = one_line(nearest_path(name), 200)
    guess = f"did you mean '{near}'? Else " if near else ""
    what = f"there is no file or folder '{one_line(name, 200)}', and no data set {name} of the hub on this machine"
    raise DataError(what, hint=guess + hub.remedies(wanted))


def _on_the_hub(wanted: hub.HubPath, choice: Choice) -> FoundFiles | None:
    shown = _Shown(one_line(str(wanted), 120), wanted=wanted)
    found = hub.snapshot(wanted)
    here = _names_in(found[0]) if found else []
    is_empty = not wanted.inside and not hub.data_names(here)
    if is_empty and (stored := declared_splits.cached_data_set(wanted.name, choice.name, wanted.revision)):
        return _of_a_folder(stored, str(wanted), replace(choice, name=""))
    if not hub.data_names(here) and choice.streaming:
        return _streamed(wanted, choice, shown)
    if not found or (found[1] is None and not hub.data_names(here) and not wanted.inside):
        return None
    folder, names = found[0], hub.names_wanted(wanted, here, found[1])
    if not wanted.inside and declared_splits.has_configurations(folder):
        return _configured(folder, choice, shown)
    named = {name: named_file(folder / name, (folder / name).stat().st_mode, f"{wanted.name}/{name}") for name in names}
    named, choice = _of_a_configuration(named, choice)
    if hub.GLOB_SIGNS & {*wanted.inside} or names == [wanted.inside]:
        shown = replace(shown, pattern=wanted.inside)
    last = wanted.inside.rpartition("/")[2]
    return _chosen(named, tell_apart(named), shown, choice, last, split_in(last))


def _streamed(wanted: hub.HubPath, choice: Choice, shown: _Shown) -> FoundFiles:
    named, splits = hub.remote_splits(wanted, choice.name)
    if splits:
        return _chosen(named, splits, shown, replace(choice, name=""))
    named, choice = _of_a_configuration(named, choice)
    return _chosen(named, tell_apart(named), shown, choice)


def _of_a_configuration(named: dict[str, SourceFile], choice: Choice) -> tuple[dict[str, SourceFile], Choice]:
    """The files in the folder that is called as the configuration, where there is one."""
    inside = {name: file for name, file in named.items() if name.startswith(f"{choice.name}/")}
    return (inside, replace(choice, name="")) if choice.name and inside else (named, choice)


def _names_in(folder: Path) -> list[str]:
    """Every file, at any depth, named from `folder` on. A link whose file is gone is none."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [path.relative_to(folder).as_posix() for path in found if os.path.exists(path)]  # noqa: PTH110  # Path raises in a closed folder


def _of_a_glob(pattern: Path, path: str, choice: Choice) -> FoundFiles:
    names = glob.glob(str(pattern), recursive=True)  # noqa: PTH207  # Path.glob takes no absolute pattern
    below: dict[Path, list[str]] = {}
    for found in map(Path, names):
        below.setdefault(found.parent, []).append(found.name)
    files = (folder / name for folder, inside in below.items() for name in declared_splits.data_files(folder, inside))
    steps = takewhile(lambda step: not hub.GLOB_SIGNS & {*step}, pattern.parts)
    place = Path(*steps)
    named = _usable(files, path, place, whole_paths=True)
    shown = _Shown(f"'{one_line(path, 120)}'", place, pattern=str(pattern))
    return _chosen(named, tell_apart(named), shown, choice, place.name, split_in(place.name))


def _chosen(
    named: Mapping[str, SourceFile],
    splits: NamedSplits,
    shown: _Shown,
    choice: Choice,
    label: str = "",
    split: Split | None = None,
) -> FoundFiles:
    """`label` and `split` are of the whole, where its files name no split."""
    if choice.name:
        raise declared_splits.no_configuration(shown.name, choice.name, _configurations(named))
    found = _told_apart(named, splits, shown, choice, label, split)
    read = {file.path for file in found.chosen.files}
    validation = () if choice.measured or choice.splits else found.others
    read |= {file.path for other in validation if other.split == "validation" for file in other.files}
    names = [name for name, file in named.items() if file.path in read and name not in splits.exact]
    missing = [
        name for name in declared_splits.missing_files(named, names) if not shown.pattern or shown.asks_for(name)
    ]
    if missing:
        more = f" and {len(missing) - _MOST_SHOWN:,} more" if len(missing) > _MOST_SHOWN else ""
        listed = one_line(", ".join(missing[:_MOST_SHOWN]), 240) + more
        what = f"{shown.name} is not whole: missing {'is' if len(missing) == 1 else 'are'} {listed}"
        raise DataError(what, hint="copy or download the rest, or name each file in data.path, with commas")
    return found


def _told_apart(
    named: Mapping[str, SourceFile], splits: NamedSplits, shown: _Shown, choice: Choice, label: str, split: Split | None
) -> FoundFiles:
    if not splits.parts:
        whole = SplitFiles(label=label if split else "", split=split, files=tuple(named.values()))
        known = {"train": whole} if not split else {label: whole, split: whole}
        return FoundFiles(chosen=_picked(known, shown, choice) if choice.splits else whole, remark=splits.remark)

    def files_of(part: Part) -> SplitFiles:
        files = tuple(named[name] for name in splits.parts[part] if name in named)
        return SplitFiles(label=part.label, split=part.split, files=files)

    order: tuple[Split | None, ...] = ("train", "validation", "test", None)
    parts = sorted(splits.parts, key=lambda part: order.index(part.split))
    if choice.splits:
        labels = Counter(part.label for part in parts)
        if twice := next((label for label in choice.splits if labels[label] > 1), ""):
            raise _several_parts(named, splits, shown, choice, f"several are named {twice}")
        known = {part.label: files_of(part) for part in parts}
        known |= {kind: files_of(only[0]) for kind in order if kind and len(only := splits.of(kind)) == 1}
        if gone := next((label for label in choice.splits if label in splits.gone and label not in known), ""):
            raise DataError(f"{shown.name}: {gone} is declared and its files are missing", hint=_FETCH_AGAIN)
        chosen = _picked(known, shown, choice)
        taken = chosen.several or (chosen,)
        others = tuple(other for part in parts if (other := files_of(part)).files not in [one.files for one in taken])
        return FoundFiles(chosen=chosen, others=others, beside=splits.beside)
    found = splits.measured() if choice.measured else splits.trained()
    kinds = {part.split for part in splits.parts}
    names_it = shown.pattern or (len(splits.parts) == 1 and {split} == kinds and not splits.gone)
    if isinstance(found, str) and names_it and len(kinds) == 1 and (kind := kinds.pop()):
        # `*/train.jsonl` names exactly the training files of several places.
        files = tuple(named[name] for names in splits.parts.values() for name in names)
        return FoundFiles(chosen=SplitFiles(label=kind, split=kind, files=files), beside=splits.beside)
    if isinstance(found, str):
        raise _several_parts(named, splits, shown, choice, found)
    others = tuple(files_of(part) for part in parts if part != found)
    remark = f"{', '.join(splits.gone)}: declared, and the files are missing" if splits.gone else ""
    return FoundFiles(chosen=files_of(found), others=others, beside=splits.beside, remark=remark)


def _picked(known: Mapping[str, SplitFiles], shown: _Shown, choice: Choice) -> SplitFiles:
    """The splits that are named, as one."""
    for label in choice.splits:
        if label not in known:
            has = one_line(", ".join(known), 200)
            hint = f"it has {has}; change {choice.split_setting}"
            raise DataError(f"{shown.name} has no split '{one_line(label, 60)}'", hint=hint)
    several = tuple(replace(known[label], label=label) for label in choice.splits)
    kinds = {one.split for one in several}
    files = tuple(dict.fromkeys(file for one in several for file in one.files))
    return SplitFiles(label=choice.split, split=kinds.pop() if len(kinds) == 1 else None, files=files, several=several)


def _several_parts(
    named: Mapping[str, SourceFile], splits: NamedSplits, shown: _Shown, choice: Choice, doubt: str
) -> DataError:
    """For files of which nobody knows which to train on, and what to write in data.path for each part of them."""
    ordered = sorted(splits.parts.items(), key=lambda item: "train" not in item[0].label.lower())
    below = Counter(str(folder) for name in named for folder in PurePosixPath(name).parents)
    ways = [(part.folder,) if part.folder and below[part.folder] == len(files) else files for part, files in ordered]
    listed = "; ".join(one_line(", ".join(way), 80) for way in ways[:_MOST_SHOWN])
    labels = Counter(part.label for part, _ in ordered)
    if only := [one_line(label, 60) for label, count in labels.items() if label and count == 1]:
        hint = f"set {choice.split_setting} to {' or '.join(only[:_MOST_SHOWN])}; or "
    else:
        hint = ""
    short = next((way for way in ways if len(way) == 1), ways[0])
    setting = "data.eval_path" if choice.measured else "data.path"
    hint += f"name one in {setting}, such as {one_line(', '.join(map(shown.written, short)), 160)}"
    hint += ", and another in data.eval_path; what data.path names with commas is read together"
    if configurations := _configurations(named):
        hint = f"set data.name to one of {one_line(', '.join(configurations), 160)}; or {hint}"
    if splits.gone and doubt.startswith(splits.gone):
        return DataError(f"{shown.name}: {one_line(doubt, 160)}; there is {listed}", hint=f"{_FETCH_AGAIN}; or {hint}")
    if len(ordered) == 1:
        return DataError(f"{shown.name} holds only {ordered[0][0].label}: {listed}", hint=hint)
    why = f" ({one_line(doubt, 160)})" if doubt else ""
    return DataError(f"{shown.name} holds several splits or configurations: {listed}{why}", hint=hint)


def _configurations(names: Iterable[str]) -> list[str]:
    """The folders that all of the files are in, where none of them is a split."""
    folders = {name.partition("/")[0] if "/" in name else "" for name in names}
    return sorted(folders) if len(folders) > 1 and not any(not one or split_in(one) for one in folders) else []


def _files_below(folder: Path) -> Iterator[Path]:
    """Files in `folder`, sorted, at any depth. Hidden ones are left out, links to folders are not followed."""
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in declared_splits.data_files(Path(place), sorted(names)):
            if not name.startswith("."):
                yield Path(place) / name


def _usable(paths: Iterable[Path], asked: str, place: Path, *, whole_paths: bool = False) -> dict[str, SourceFile]:
    """The files that can be read as text or rows, named from `place` on, and so are labels without `whole_paths`."""
    files: dict[str, SourceFile] = {}
    left_out: Counter[str] = Counter()
    for path in paths:
        name = path.relative_to(place).as_posix()
        file = candidate(path, str(path) if whole_paths else name)
        if file is None or not can_be_used(file):
            left_out[path.suffix.lower() or "without an ending"] += 1
        else:
            files[name] = file
    if files:
        return dict(sorted(files.items(), key=lambda item: str(item[1].path)))
    shown = ", ".join(f"{count} {one_line(ending, 20)}" for ending, count in left_out.most_common(6))
    found = f"found only {shown}" if shown else "nothing was found"
    raise DataError(f"no usable file in '{one_line(asked, 200)}': {found}", hint=SUPPORTED)


def _cannot_open(path: str, error: OSError | UnicodeEncodeError) -> DataError:
    shown = one_line(path, 200)
    if isinstance(error, FileNotFoundError):
        if os.path.islink(os.path.expanduser(path)):  # noqa: PTH111, PTH114 - of a user who is not here as well
            return DataError(f"'{shown}' is a link to nothing", hint="make the link anew, or give the path of the file")
        near = one_line(nearest_path(path), 200)
        hint = f"did you mean '{near}'?" if near else "check the path; a data set of the hub is written hub:owner/name"
        return DataError(f"there is no file or folder '{shown}'", hint=hint)
    return DataError(f"'{shown}' cannot be opened: {getattr(error, 'strerror', 'not a file name')}")
