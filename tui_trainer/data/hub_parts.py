"""Which files of a repository with data are data, which of them a part of its path names, and which belong together.

Works on names, so that it is the same before a download and after it. Splits are told by the names of files and
folders as the library `datasets` tells them; what a README or a loading script says of them is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from tui_trainer.data.dataset_folder import ALWAYS_STATE, STATE_FILE
from tui_trainer.data.forms import form_of

GLOB_SIGNS = frozenset("*?[")
_NO_ROWS = frozenset({"text", "unknown", "unsupported"})
_ABOUT_IT = frozenset({"license", "licence", "readme", "requirements", "citation", "notice"})
# Source: KEYWORDS_IN_PATH_NAME_BASE_PATTERNS and SPLIT_PATTERN_SHARDED in data_files.py of the library `datasets`; it
# does not know `trainset` and `testdata`, and reads them as one.
_SPLIT_WORD = re.compile(
    r"(?<![a-z])(train|training|validation|valid|dev|val|test|testing|eval|evaluation)(?:set|data)?(?![a-z])",
    re.IGNORECASE,
)
_SHARD = re.compile(r"(.+)-\d{5}-of-\d{5}\b.*")

Part = tuple[str, str, str]
"""The folder, the split (empty: none is named) and the form of files that belong together."""


def data_names(names: Iterable[str]) -> list[str]:
    """The files of rows among all files of a repository; where there are none, the .txt files. Sorted."""
    shown = [name for name in names if not any(step.startswith(".") for step in name.split("/"))]
    rows = [name for name in shown if form_of(PurePosixPath(name)) not in _NO_ROWS and not _describes(name)]
    return sorted(rows or [name for name in shown if _is_text(name)])


def chosen_names(names: Sequence[str], inside: str) -> list[str]:
    """The data of what `inside` names: all, a folder, a glob, or one file, which may be of any form. Sorted."""
    if inside in names:
        return [inside]
    if GLOB_SIGNS & {*inside}:
        return data_names(name for name in names if _matches(name.split("/"), inside.split("/")))
    return data_names(name for name in names if not inside or name.startswith(f"{inside}/"))


def separate_parts(names: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """What to write for each split, configuration or form, where `names` hold several; empty where they are one.

    `names` are all data below one folder. A part is one folder or glob, or else all its files. What is made for
    training comes first.
    """
    parts: dict[Part, list[str]] = {}
    for name in names:
        parts.setdefault(_part_of(name), []).append(name)
    forms, splits = {form for _, _, form in parts}, {split for _, split, _ in parts}
    if len(parts) == 1 or (len(forms) == 1 and splits == {""}):
        return ()
    training_first = sorted(parts, key=lambda part: "train" not in part[1].lower())
    return tuple(_written(names, part, parts[part]) for part in training_first)


def _describes(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last in ALWAYS_STATE or last == STATE_FILE or (last.startswith("cache-") and last.endswith(".arrow"))


def _is_text(name: str) -> bool:
    path = PurePosixPath(name.lower().removesuffix(".gz"))
    return path.suffix == ".txt" and path.stem not in _ABOUT_IT


def _matches(steps: list[str], pattern: list[str]) -> bool:
    """As `glob.glob` takes a pattern: `*` stays in its folder, `**` is any number of folders."""
    if not steps or not pattern:
        return not steps and not pattern
    if pattern[0] == "**":
        return _matches(steps, pattern[1:] or ["*"]) or _matches(steps[1:], pattern)
    return fnmatchcase(steps[0], pattern[0]) and _matches(steps[1:], pattern[1:])


def _part_of(name: str) -> Part:
    path = PurePosixPath(name)
    form = form_of(path)
    folder_name = name.rpartition("/")[0]
    shard, word = _SHARD.fullmatch(path.name), _SPLIT_WORD.search(path.name)
    for folder in path.parents:
        # A folder of several splits, such as train_test_split, may have a name like that of one.
        if (said := _SPLIT_WORD.search(folder.name)) and not (word and word[1].lower() != said[1].lower()):
            return str(folder), folder.name, form
    if shard:
        return folder_name, shard[1], form
    # Files that name no split are read together, from whatever folders.
    return (folder_name, word[1].lower(), form) if word else ("", "", form)


def _written(names: Sequence[str], part: Part, files: list[str]) -> tuple[str, ...]:
    """The shortest way to name exactly these files, and none of other folders; all of them where there is none."""
    if len(files) == 1:
        return (files[0],)
    folder = part[0]
    path = PurePosixPath(files[0])
    ending = "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:])
    start = os.path.commonprefix(files).rstrip("0123456789")  # noqa: RUF071  # the start of names, not a folder
    shared = os.path.commonpath([name.rpartition("/")[0] for name in files])
    ways = (folder, f"{start}*{ending}", f"{shared}/**/*{ending}" if shared else f"**/*{ending}")
    found = next((way for way in ways if way and chosen_names(names, way) == files), "")
    return (found,) if found else tuple(files)
