"""How fast storage is: what a disk gives of a file that does not lie in memory, and what it takes."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from time import perf_counter

from tui_trainer.units import MIB

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
