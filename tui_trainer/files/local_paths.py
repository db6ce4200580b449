"""Paths as users write them, with `~` for the home folder.

Configs, plans and journals are UTF-8, so a path that is not valid UTF-8 is refused."""

import os
import re
from difflib import get_close_matches
from itertools import islice
from pathlib import Path

# Comparing names takes about 20 microseconds each.
_MOST_NAMES = 5000
_MOST_PARTS = 64
_LONGEST_NAME = 255


def is_utf8(text: str) -> bool:
    """Return whether a path is valid UTF-8. Python represents invalid bytes of a path as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable_path(path: str) -> str:
    r"""Return a path that is not valid UTF-8 in a printable form: `caf\xe9.txt`."""
    try:
        return os.fsencode(path).decode(errors="backslashreplace")
    except UnicodeEncodeError:  # a surrogate that cannot come from a file name
        return path.encode(errors="backslashreplace").decode()


def expand_home(path: str) -> Path:
    """Return the path with `~` or `~name` expanded; unchanged if there is no such home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def absolute_path(path: str) -> Path:
    """Return the absolute path with `~` expanded. If the current folder was deleted, the path stays relative."""
    expanded = expand_home(path)
    try:
        return expanded.absolute()
    except FileNotFoundError:
        return expanded


def path_exists(path: str) -> bool:
    """Return whether a file or folder exists and can be seen by this user."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def short_name(path: str) -> str:
    """Return a short name for a path or a name on the hub: its last component without ending, `reviews` for
    `data/reviews.csv.gz`. For the folder `model` of a run, it is the name of the run."""
    names = re.split(r"[/:]", path.rstrip("/").removesuffix("/model"))
    return re.sub(r"(?<=\w)(\.[A-Za-z]\w{0,7})+$", "", names[-1])


def nearest_path(path: str, *, folders_only: bool = False) -> str:
    """Return `path` with each component that does not exist replaced by the most similar name in its folder.

    The result is empty if no name is similar, or if a folder cannot be read."""
    parts = Path(path).parts
    nearest = Path()
    if len(parts) > _MOST_PARTS:
        return ""
    try:
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            # The result shows `~` as the user wrote it.
            if not (nearest / part).expanduser().exists():
                part = _nearest_name(nearest.expanduser(), part, folders_only=folders_only or not is_last)
            if not part:
                return ""
            nearest /= part
    except (OSError, ValueError, RuntimeError):
        return ""
    return f"./{nearest}" if path.startswith("./") else str(nearest)


def _nearest_name(folder: Path, name: str, *, folders_only: bool) -> str:
    names = [
        entry.name
        for entry in islice(folder.iterdir(), _MOST_NAMES)
        if entry.name.startswith(".") == name.startswith(".") and not (folders_only and not entry.is_dir())
    ]
    return next(iter(get_close_matches(name[:_LONGEST_NAME], sorted(names), n=1)), "")
