"""How fast storage is: what a disk gives of a file that does not lie in memory, and what it takes."""

import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from time import perf_counter
from typing import TypeVar

import psutil

from tui_trainer.files.hub_layout import cache_folder, user_cache_folder
from tui_trainer.files.local_paths import from_the_root
from tui_trainer.hardware.facts import Place
from tui_trainer.units import MIB

# A question that may never be answered: a driver that hangs, a file server that is gone.

T = TypeVar("T")


def within(seconds: float, ask: Callable[[], T]) -> T | None:
    """What `ask` returns, or None when it takes longer; then its daemon thread is left behind and stops nobody."""
    answers: list[T] = []
    thread = Thread(target=lambda: answers.append(ask()), name="tui-trainer-asks", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


# The folders that fill up or have a quota: where they are or will be, and how much room there is.

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


_BLOCK_BYTES = MIB
# A smaller file tells of the time to find it, and not of the rate.
_LEAST_BYTES = 4 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRate:
    """Of a file, as it was read just now."""

    path: str
    bytes_per_second: float


def read_rate(path: Path, *, most_bytes: int = 64 * MIB, seconds: float = 0.25) -> ReadRate | None:
    """Reads from the middle of a file for so long at most; None for one that is too small or cannot be read.

    What of it lies in memory is given back to the system before, where nobody changes it.
    """
    with suppress(OSError), path.open("rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LEAST_BYTES:
            return None
        place = (size // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        os.posix_fadvise(file.fileno(), place, 0, os.POSIX_FADV_DONTNEED)
        file.seek(place)
        count, started, block = 0, perf_counter(), bytearray(_BLOCK_BYTES)
        while count < most_bytes and perf_counter() - started < seconds and (got := file.readinto(block)):
            count += got
        return ReadRate(path=str(path), bytes_per_second=count / max(perf_counter() - started, 1e-9))
    return None


def write_rate(folder: Path, *, most_bytes: int = 256 * MIB, seconds: float = 2.0) -> float | None:
    """Bytes a second that are safe on the disk of a folder, by a file that is gone afterwards; None where none can be
    written."""
    block = os.urandom(_BLOCK_BYTES)  # what is all zeros some file systems do not write
    with suppress(OSError), TemporaryFile(dir=folder) as file:
        count, started = 0, perf_counter()
        while count < most_bytes and perf_counter() - started < seconds:
            file.write(block)
            count += len(block)
        file.flush()
        os.fsync(file.fileno())
        return count / (perf_counter() - started)
    return None
