"""What a process waits for on its machine: cores that others have, and storage.

Sources: the kernel's Documentation/scheduler/sched-stats.rst (/proc/PID/schedstat: nanoseconds on a core, nanoseconds
runnable and waiting for one), filesystems/proc.rst (/proc/PID/io) and accounting/psi.rst (/proc/pressure/io).
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic

_LEAST_NANOSECONDS = 1e7


class CoreWaits:
    """Of all threads of this process, between two looks."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._before: dict[str, tuple[int, int]] = {}

    def share(self) -> float | None:
        """Of the time in which its threads could have computed, the share in which they waited for a core. None at the
        first look, where the kernel does not count it, and where they had next to nothing to do.
        """
        before, self._before = self._before, self._times()
        both = [(old, self._before[name]) for name, old in before.items() if name in self._before]
        computed = sum(new[0] - old[0] for old, new in both)
        waited = sum(new[1] - old[1] for old, new in both)
        if computed + waited < _LEAST_NANOSECONDS:
            return None
        return round(waited / (computed + waited), 4)

    def _times(self) -> dict[str, tuple[int, int]]:
        found = {}
        for task in self._tasks.iterdir() if self._tasks.is_dir() else ():
            # A thread may have ended since, and some kernels do not count.
            with suppress(OSError, ValueError, IndexError):
                words = (task / "schedstat").read_text().split()
                found[task.name] = (int(words[0]), int(words[1]))
        return found


class DiskReads:
    """What this process read from storage, and how long anything on the machine waited for storage."""

    def __init__(self, now: Callable[[], float] = monotonic, root: Path = Path("/proc")) -> None:
        self._now, self._root = now, root
        self._bytes_before: int | None = None
        self._stall_before: tuple[float, float] | None = None

    def bytes(self) -> int | None:
        """Since the look before; None at the first and where it is not counted."""
        before, self._bytes_before = self._bytes_before, self._read_bytes()
        return None if before is None or self._bytes_before is None else max(self._bytes_before - before, 0)

    def stall_share(self) -> float | None:
        """0 to 1 of the time since the look before."""
        stalled = self._stalled_seconds()
        before, self._stall_before = self._stall_before, None if stalled is None else (stalled, self._now())
        if before is None or self._stall_before is None or self._stall_before[1] <= before[1]:
            return None
        return round(min((self._stall_before[0] - before[0]) / (self._stall_before[1] - before[1]), 1.0), 4)

    def _read_bytes(self) -> int | None:
        with suppress(OSError, ValueError):
            for line in (self._root / "self/io").read_text().splitlines():
                if line.startswith("read_bytes:"):
                    return int(line.split()[1])
        return None

    def _stalled_seconds(self) -> float | None:
        with suppress(OSError, ValueError):
            first = (self._root / "pressure/io").read_text().splitlines()[:1]
            return int(first[0].rpartition("total=")[2]) / 1e6 if first else None
        return None
