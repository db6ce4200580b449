"""Which files of a repository with data are data, which of them a part of its path names, and how to write each part.

Works on names, so that it is the same before a download and after it. What a README or a loading script says of splits
is not read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from tui_trainer.data.sources.dataset_folder import ALWAYS_STATE, LATER_WORK, STATE_FILE
from tui_trainer.data.sources.file_formats import form_of
from tui_trainer.data.sources.named_splits import Part, is_about_the_data, parts_of, tell_apart
from tui_trainer.errors import DataError
from tui_trainer.safe_text import one_line

GLOB_SIGNS = frozenset("*?[")
_MOST_SHOWN = 6
_NO_ROWS = frozenset({"text", "unknown", "unsupported"})


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


def separate_parts(names: Sequence[str], saved: AbstractSet[str] = frozenset()) -> tuple[tuple[str, ...], ...]:
    """What to write for each split, configuration or form, where `names` hold several; empty where they are one.

    `names` are all data below one folder, `saved` as `tell_apart` has it. A part is one folder or glob, or else all its
    files. What is made for training comes first.
    """
    tables = [name for name in names if form_of(PurePosixPath(name)) not in _NO_ROWS]
    parts = tell_apart(names, saved).parts or parts_of(tables)
    forms, labels = {part.form for part in parts}, {part.label for part in parts}
    if len(parts) < 2 or (len(forms) == 1 and labels == {""}):
        return ()
    training_first = sorted(parts, key=lambda part: "train" not in part.label.lower())
    return tuple(_written(names, part, list(parts[part])) for part in training_first)


def several_parts(
    shown: str, ways: Sequence[tuple[str, ...]], written: Callable[[tuple[str, ...]], str], doubt: str = ""
) -> DataError:
    """For files of which nobody knows which to train on. `written`: how each of the `ways` stands in data.path."""
    listed = "; ".join(one_line(", ".join(way), 80) for way in ways[:_MOST_SHOWN])
    short = next((way for way in ways if len(way) == 1), ways[0])
    hint = f"name one in data.path, such as {one_line(written(short), 160)}, and another in data.eval_path; "
    hint += "what data.path names with commas is read together"
    why = f" ({one_line(doubt, 160)})" if doubt else ""
    return DataError(f"{shown} holds several splits or configurations: {listed}{why}", hint=hint)


def _describes(name: str) -> bool:
    last = name.rpartition("/")[2]
    return last in ALWAYS_STATE or last == STATE_FILE or bool(LATER_WORK.fullmatch(last))


def _is_text(name: str) -> bool:
    path = PurePosixPath(name.lower().removesuffix(".gz"))
    return path.suffix == ".txt" and not is_about_the_data(name)


def _matches(steps: list[str], pattern: list[str]) -> bool:
    """As `glob.glob` takes a pattern: `*` stays in its folder, `**` is any number of folders."""
    if not steps or not pattern:
        return not steps and not pattern
    if pattern[0] == "**":
        return _matches(steps, pattern[1:] or ["*"]) or _matches(steps[1:], pattern)
    return fnmatchcase(steps[0], pattern[0]) and _matches(steps[1:], pattern[1:])


def _written(names: Sequence[str], part: Part, files: list[str]) -> tuple[str, ...]:
    """The shortest way to name exactly these files, and none of other folders; all of them where there is none."""
    if len(files) == 1:
        return (files[0],)
    path = PurePosixPath(files[0])
    ending = "".join(path.suffixes[-2:] if path.suffix == ".gz" else path.suffixes[-1:])
    start = os.path.commonprefix(files).rstrip("0123456789")  # noqa: RUF071  # the start of names, not a folder
    shared = os.path.commonpath([name.rpartition("/")[0] for name in files])
    ways = (part.folder, f"{start}*{ending}", f"{shared}/**/*{ending}" if shared else f"**/*{ending}")
    found = next((way for way in ways if way and chosen_names(names, way) == files), "")
    return (found,) if found else tuple(files)
