"""Data sets of the Hugging Face Hub that are on this machine already. Nothing is fetched and nobody is asked.

Beside the snapshots lies the list of all files of a commit, written before the first one is fetched: a download that
was cut short, or that took a part, is not mistaken for the whole.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from tui_trainer.data.sources.hub_parts import GLOB_SIGNS, chosen_names, separate_parts, several_parts
from tui_trainer.data.sources.hub_path import HubPath, parse_hub_path
from tui_trainer.data.sources.named_splits import tell_apart
from tui_trainer.errors import DataError
from tui_trainer.hub_layout import repository_folder, snapshot_folder
from tui_trainer.safe_text import one_line

_MOST_SHOWN = 6


def find_in_cache(path: str) -> dict[str, Path]:
    """The files that `path` (`hub:...`) is: how the data set names each, and where it lies.

    Raises DataError for what is not, or not wholly, on this machine, and for several configurations.
    """
    wanted = parse_hub_path(path)
    folder, names = _files(wanted)
    if not tell_apart(names).parts and (ways := _ways(wanted, names)):
        raise several_parts(one_line(str(wanted), 120), ways, partial(as_written, wanted))
    return {name: folder / name for name in names}


def ways_to_name(wanted: HubPath) -> tuple[tuple[str, ...], bool]:
    """What to write in data.path for each part of a data set that is on this machine, one where it is of one piece; and
    whether the whole of it may be written, because its splits are known.
    """
    names = _files(wanted)[1]
    ways = tuple(as_written(wanted, way) for way in _ways(wanted, names))
    splits = tell_apart(names)
    return ways or (str(wanted),), not ways or not isinstance(splits.trained(), str)


def as_written(wanted: HubPath, way: tuple[str, ...]) -> str:
    """As data.path takes several: a comma within one is escaped."""
    return ", ".join(str(wanted.part(inside)).replace(",", "\\,") for inside in way)


def _ways(wanted: HubPath, names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Files that name no split belong together where a glob names them."""
    is_glob = bool(GLOB_SIGNS & {*wanted.inside})
    return () if is_glob and not tell_apart(names).parts else separate_parts(names)


def keep_list(repository: Path, commit: str, names: Iterable[str]) -> None:
    """Write down which files the commit has, in the cache's folder of the data set."""
    path = _list_path(repository, commit)
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(f".{os.getpid()}")
    unfinished.write_text(json.dumps(sorted(names)), encoding="utf-8")
    unfinished.replace(path)


def no_such_part(wanted: HubPath, names: Iterable[str]) -> DataError:
    """For a folder or file that the data set does not have; `names` are those that it has."""
    found = chosen_names([*names], "")
    ways = separate_parts(found) or tuple((name,) for name in found)
    shown = "; ".join(one_line(", ".join(way), 80) for way in ways[:_MOST_SHOWN])
    what = f"{wanted.name} has no data in '{one_line(wanted.inside, 120)}'"
    return DataError(what, hint=f"it has {shown}" if shown else "it has no file that can be read")


def _files(wanted: HubPath) -> tuple[Path, tuple[str, ...]]:
    repository = repository_folder("datasets", wanted.name)
    folder = snapshot_folder(repository, wanted.revision)
    if folder is None:
        at = "" if f"@{wanted.revision}" not in str(wanted) else f" at {one_line(wanted.revision, 80)}"
        raise DataError(f"the data set {wanted.name}{at} is not on this machine", hint=_remedies(wanted))
    here = _names_in(folder)
    listed = _listed(repository, folder.name)
    names = chosen_names(here if listed is None else listed, wanted.inside)
    missing = len({*names} - {*here})
    if missing:
        what = f"{missing:,} of the {len(names):,} files of {one_line(str(wanted), 120)} are not on this machine"
        raise DataError(what, hint=_remedies(wanted))
    if not names and wanted.inside and listed is None:
        what = f"{one_line(str(wanted), 120)} is not on this machine, though other files of the data set are"
        raise DataError(what, hint=_remedies(wanted))
    if not names:
        raise no_such_part(wanted, listed or here)
    return folder, tuple(names)


def _remedies(wanted: HubPath) -> str:
    short = wanted.name.rpartition("/")[2]
    command = f"tui-trainer download --data {shlex.quote(one_line(str(wanted), 160))}"
    return f"run `{command}`, or copy its files into ./{short} and give that path"


def _names_in(folder: Path) -> list[str]:
    """Every file, at any depth, named from `folder` on. A link whose file is gone is none."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return [path.relative_to(folder).as_posix() for path in found if os.path.exists(path)]  # noqa: PTH110  # Path raises in a closed folder


def _list_path(repository: Path, commit: str) -> Path:
    return repository / "tui-trainer" / f"{commit}.json"


def _listed(repository: Path, commit: str) -> list[str] | None:
    """What `keep_list` wrote; None for a snapshot that another program fetched."""
    try:
        names = json.loads(_list_path(repository, commit).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None
