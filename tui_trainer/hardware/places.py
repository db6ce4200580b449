"""The folders that fill up or have a quota: where they are or will be, and how much room there is."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psutil

from tui_trainer.hardware.deadline import within
from tui_trainer.hardware.facts import Place
from tui_trainer.hub_layout import cache_folder, user_cache_folder
from tui_trainer.local_paths import from_the_root

# A file server that is gone answers no question about its folders, for minutes.
_DEADLINE_SECONDS = 2.0


def read_places() -> tuple[Place, ...]:
    """The four places, each listed even where several share a file system."""
    folders = {
        "runs": from_the_root("runs"),
        "prepared data": prepared_data_folder(),
        "model cache": cache_folder(),
        "temporary": Path(tempfile.gettempdir()),
    }
    return tuple(read_place(label, folder) for label, folder in folders.items())


def read_place(label: str, folder: Path) -> Place:
    """One place; its figures are None where the file system does not answer."""
    room = within(_DEADLINE_SECONDS, lambda: _room(folder)) or (None, None, None)
    return Place(label=label, path=str(folder), free_bytes=room[0], total_bytes=room[1], writable=room[2])


def prepared_data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where prepared data is kept: `$TUI_TRAINER_HOME/cache`, else the user's cache folder (XDG)."""
    if home := environment.get("TUI_TRAINER_HOME"):
        return from_the_root(home) / "cache"
    return user_cache_folder(environment) / "tui-trainer"


def nearest_existing(folder: Path) -> Path:
    """The folder, or the one above it that is there already."""
    folder = folder.absolute()
    while not is_there(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def is_there(path: Path) -> bool:
    """Whether the path is there to be seen: what is in a closed folder is not."""
    try:
        return path.exists()
    except OSError:
        return False


def _room(folder: Path) -> tuple[int, int, bool] | None:
    try:
        existing = nearest_existing(folder)
        usage = psutil.disk_usage(str(existing))
        return usage.free, usage.total, os.access(existing, os.W_OK | os.X_OK)
    except OSError:
        return None
