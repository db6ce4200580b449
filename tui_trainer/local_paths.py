"""Paths as people write them: `~` is the home folder, and stays as it is where there is none."""

from pathlib import Path


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
