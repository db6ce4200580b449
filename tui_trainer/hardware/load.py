"""How busy others keep this machine: the load of the last minute without what this process adds to it.

Source: proc(5), /proc/PID/task/TID/stat; the load is a mean that forgets with a time constant of one minute.
"""

import math
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

_MINUTE_SECONDS = 60.0


def load_of_others(own: float | None = None) -> float | None:
    """Runnable tasks of other processes, as the mean of the last minute; None where the system reports no load.

    `own`: what this process has added to it, where that is known better than `own_load` measures it.
    """
    if not hasattr(os, "getloadavg"):
        return None
    return max(os.getloadavg()[0] - (own_load() if own is None else own), 0.0)


def load_of_threads(threads: int, seconds: float) -> float:
    """What so many threads have added to the load that were busy for the last seconds."""
    return threads * (1 - math.exp(-seconds / _MINUTE_SECONDS))


def own_load(tasks: Path = Path("/proc/self/task")) -> float:
    """What the threads of this process have added to the load of the last minute; 0 where the system tells nothing.

    One that runs now counts as if it always had. Of the others, which may be between two products or waiting for this
    very thread, the mean of their life counts.
    """
    stats: dict[str, str] = {}
    for task in tasks.iterdir() if tasks.is_dir() else ():
        # A thread may have ended since.
        with suppress(OSError):
            stats[task.name] = (task / "stat").read_text(errors="replace")
    if not stats:
        return 0.0
    asking = str(threading.get_native_id())
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return sum(_share(stat, now, counts_as_running=name != asking) for name, stat in stats.items())


def _share(stat: str, now: float, *, counts_as_running: bool) -> float:
    """0 to 1: of one thread. Its name stands in parentheses and may hold anything; fields are counted behind it."""
    fields = stat.rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    cpu_seconds, age_seconds = (int(fields[11]) + int(fields[12])) / ticks, now - int(fields[19]) / ticks
    if age_seconds <= 0:
        return 0.0
    running = counts_as_running and fields[0] == "R"
    busy_share = 1.0 if running else min(cpu_seconds / age_seconds, 1.0)
    return busy_share * load_of_threads(1, age_seconds)
