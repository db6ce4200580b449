"""Folders that may fill up, their free space, and the speed of their disks."""

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
from tui_trainer.files.local_paths import absolute_path
from tui_trainer.hardware.facts import Place
from tui_trainer.units import MIB

T = TypeVar("T")


def call_with_deadline(seconds: float, ask: Callable[[], T]) -> T | None:
    """Return the result of `ask`, or None after `seconds`; its daemon thread then continues without effect."""
    answers: list[T] = []
    thread = Thread(target=lambda: answers.append(ask()), name="tui-trainer-asks", daemon=True)
    thread.start()
    thread.join(seconds)
    return answers[0] if answers else None


# A file server that is gone may block for minutes.
_DEADLINE_SECONDS = 2.0


def read_places() -> tuple[Place, ...]:
    """Return the four folders that the program fills, even if several are on the same disk."""
    folder_by_label = {
        "runs": absolute_path("runs"),
        "prepared data": prepared_data_folder(),
        "model cache": cache_folder(),
        "temporary": Path(tempfile.gettempdir()),
    }
    return tuple(read_place(label, folder) for label, folder in folder_by_label.items())


def read_place(label: str, folder: Path) -> Place:
    """Return a folder with its free space, which is None if the file system does not respond."""
    space = call_with_deadline(_DEADLINE_SECONDS, lambda: _room(folder)) or (None, None, None)
    return Place(label=label, path=str(folder), free_bytes=space[0], total_bytes=space[1], writable=space[2])


def prepared_data_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of prepared data: `$TUI_TRAINER_HOME/cache`, or else in the cache folder of the user (XDG)."""
    if home := environment.get("TUI_TRAINER_HOME"):
        return absolute_path(home) / "cache"
    return user_cache_folder(environment) / "tui-trainer"


def nearest_existing(folder: Path) -> Path:
    """Return the folder, or the nearest parent that exists."""
    folder = folder.absolute()
    while not is_there(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def is_there(path: Path) -> bool:
    """Return whether the path exists and may be seen by this user."""
    try:
        return path.exists()
    except OSError:
        return False


def _room(folder: Path) -> tuple[int, int, bool] | None:
    try:
        existing_folder = nearest_existing(folder)
        usage = psutil.disk_usage(str(existing_folder))
        return usage.free, usage.total, os.access(existing_folder, os.W_OK | os.X_OK)
    except OSError:
        return None


_BLOCK_BYTES = MIB
# With a smaller file the time to open it would dominate.
_LEAST_BYTES = 4 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadRate:
    """Speed at which a file was read."""

    path: str
    bytes_per_second: float


def read_rate(path: Path, *, most_bytes: int = 64 * MIB, seconds: float = 0.25) -> ReadRate | None:
    """Read from the middle of a file and return the speed; None if it is too small or cannot be read.

    Pages of the file in memory are dropped first, unless they were changed."""
    with suppress(OSError), path.open("rb", buffering=0) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        if file_bytes < _LEAST_BYTES:
            return None
        middle_offset = (file_bytes // 2) // _BLOCK_BYTES * _BLOCK_BYTES
        os.posix_fadvise(file.fileno(), middle_offset, 0, os.POSIX_FADV_DONTNEED)
        file.seek(middle_offset)
        total, started_at, block = 0, perf_counter(), bytearray(_BLOCK_BYTES)
        while total < most_bytes and perf_counter() - started_at < seconds and (read_bytes := file.readinto(block)):
            total += read_bytes
        return ReadRate(path=str(path), bytes_per_second=total / max(perf_counter() - started_at, 1e-9))
    return None


def write_rate(folder: Path, *, most_bytes: int = 256 * MIB, seconds: float = 2.0) -> float | None:
    """Return the bytes per second that reach the disk of a folder, measured with a temporary file; None on failure."""
    block = os.urandom(_BLOCK_BYTES)  # some file systems do not write zeros
    with suppress(OSError), TemporaryFile(dir=folder) as file:
        bytes_written, started_at = 0, perf_counter()
        while bytes_written < most_bytes and perf_counter() - started_at < seconds:
            file.write(block)
            bytes_written += len(block)
        file.flush()
        os.fsync(file.fileno())
        return bytes_written / (perf_counter() - started_at)
    return None
