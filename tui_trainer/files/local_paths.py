"""Paths as people write them: `~` is the home folder, and stays as it is where there is none.

They are kept in configs, plans and journals, all of which are UTF-8: a path that is not is refused.
"""

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
    """Whether a path can be written as UTF-8: of one that is not, Python keeps the bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_bytes(path: str) -> str:
    r"""Such a path as it can be shown: `caf\xe9.txt`."""
    try:
        return os.fsencode(path).decode(errors="backslashreplace")
    except UnicodeEncodeError:  # a half of a character that no name of a file has
        return path.encode(errors="backslashreplace").decode()


def at_home(path: str) -> Path:
    """`~` and `~name` looked up; a name that nobody has stays as it is written."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def from_the_root(path: str) -> Path:
    """The same as a whole path; as it is where the folder that it begins in was deleted."""
    found = at_home(path)
    try:
        return found.absolute()
    except FileNotFoundError:
        return found


def is_here(path: str) -> bool:
    """Whether a file or folder of this name is on this machine, as far as can be seen."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):
        return False


def short_name(path: str) -> str:
    """Return the last part of a path or of a name on the hub, without its ending: `reviews` of `data/reviews.csv.gz`.

    The folder `model` of a run has the name of the run.
    """
    names = re.split(r"[/:]", path.rstrip("/").removesuffix("/model"))
    return re.sub(r"(?<=\w)(\.[A-Za-z]\w{0,7})+$", "", names[-1])


def nearest_path(path: str, *, folders_only: bool = False) -> str:
    """`path` with each part that is not there replaced by the nearest name in the same folder.

    Empty where nothing is near, and where a folder cannot be read.
    """
    parts = Path(path).parts
    place = Path()
    if len(parts) > _MOST_PARTS:
        return ""
    try:
        for number, part in enumerate(parts, start=1):
            is_last = number == len(parts)
            # `~` stands for a folder, and is shown as it was written.
            if not (place / part).expanduser().exists():
                part = _nearest_name(place.expanduser(), part, folders_only=folders_only or not is_last)
            if not part:
                return ""
            place /= part
    except (OSError, ValueError, RuntimeError):
        return ""
    return f"./{place}" if path.startswith("./") else str(place)


def _nearest_name(folder: Path, name: str, *, folders_only: bool) -> str:
    names = [
        found.name
        for found in islice(folder.iterdir(), _MOST_NAMES)
        if found.name.startswith(".") == name.startswith(".") and not (folders_only and not found.is_dir())
    ]
    return next(iter(get_close_matches(name[:_LONGEST_NAME], sorted(names), n=1)), "")
