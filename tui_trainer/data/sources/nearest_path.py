"""The existing path that somebody may have meant by one that is not there."""

from difflib import get_close_matches
from itertools import islice
from pathlib import Path

# Comparing names takes about 20 microseconds each.
_MOST_NAMES = 5000
_MOST_PARTS = 64
_LONGEST_NAME = 255


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
