"""Paths as people write them: `~` is the home folder, and stays as it is where there is none.

They are kept in configs, plans and journals, all of which are UTF-8: a path that is not is refused.
"""

import os
from pathlib import Path


def is_utf8(text: str) -> bool:
    """Whether a path can be written as UTF-8: of one that is not, Python keeps the bytes as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_bytes(path: str) -> str:
    r"""Such a path as it can be shown: `caf\xe9.txt`."""
    return os.fsencode(path).decode(errors="backslashreplace")


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
