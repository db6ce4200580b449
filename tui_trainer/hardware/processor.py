"""Processor: name, cores and instruction sets; load of other processes; time lost to waiting for cores and disks."""

import math
import os
import platform
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic

import psutil

from tui_trainer.hardware.cgroup import CgroupLimits

_AVX = {"sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
_AMX = {"amx_tile", "amx_int8", "amx_bf16", "amx_fp16"}
_ARM = {"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16"}
_RELEVANT_FLAGS = frozenset(_AVX | _AMX | _ARM)
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


def read_cpuinfo(root: Path = Path("/")) -> tuple[str, frozenset[str]]:
    """Return the name and the relevant instruction sets from /proc/cpuinfo, or else the name that Python reports."""
    name, flags = "", frozenset[str]()
    try:
        with (root / "proc/cpuinfo").open(errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = name or value.strip()
                elif key.strip() in ("flags", "Features"):
                    flags = frozenset(value.split()) & _RELEVANT_FLAGS
                    break
    except OSError:
        pass
    return name or platform.processor() or platform.machine(), flags


def training_threads(usable_cores: int) -> int:
    """Return the number of training threads, one per core. With four or more cores, one is left for everything else."""
    return usable_cores - 1 if usable_cores >= 4 else usable_cores


def usable_cores(limits: CgroupLimits, root: Path = Path("/")) -> int:
    """Return the cores that affinity and quota allow, without hyper-threads, which slow each other down."""
    cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    core_count, logical_count = _distinct_cores(cpus, root), psutil.cpu_count(logical=True)
    if not core_count:
        core_count = (psutil.cpu_count(logical=False) if len(cpus) == logical_count else None) or len(cpus)
    return max(1, min(core_count, int(limits.cores)) if limits.cores else core_count)


def _distinct_cores(indices: Iterable[int], root: Path) -> int | None:
    """Return the number of cores of these logical processors; None if the kernel does not report it.

    Threads of one core have the same list of siblings.
    Source: the kernel's Documentation/admin-guide/cputopology.rst."""
    folder = root / "sys/devices/system/cpu"
    try:
        return len({(folder / f"cpu{index}/topology/thread_siblings_list").read_text().strip() for index in indices})
    except OSError:
        return None


# Load of other processes: the system's load of the last minute, less what this process adds to it. The load is an
# exponential mean with a time constant of one minute. Source: proc(5), /proc/PID/task/TID/stat.

_MINUTE_SECONDS = 60.0
_LOW_LOAD, _READINGS, _READING_SECONDS = 0.25, 5, 0.004


def load_of_others() -> float | None:
    """Return the mean number of runnable tasks of other processes in the last minute; None if not reported.

    The mean still includes a run that has just ended, so it is limited to the present number of tasks."""
    if not hasattr(os, "getloadavg"):
        return None
    mean_tasks = max(os.getloadavg()[0] - load_of_this_process(), 0.0)
    return min(mean_tasks, running_tasks_of_others()) if mean_tasks > _LOW_LOAD else mean_tasks


def running_tasks_of_others(proc: Path = Path("/proc")) -> float:
    """Return the most runnable tasks of other processes in a few readings just now; infinite if not reported.

    Source: proc(5), /proc/loadavg."""
    most_tasks = 0
    for reading in range(_READINGS):
        time.sleep(_READING_SECONDS if reading else 0)
        try:
            running_tasks = int((proc / "loadavg").read_text().split()[3].partition("/")[0])
        except (OSError, ValueError, IndexError):
            return math.inf
        own_stats = _stats(proc / "self/task").values()
        own_tasks = sum(stat.rpartition(")")[2].split()[0] == "R" for stat in own_stats)
        most_tasks = max(most_tasks, running_tasks - own_tasks)
    return most_tasks


def _stats(tasks_folder: Path) -> dict[str, str]:
    """Return the line of /proc/.../stat of each thread, by thread number."""
    stat_lines: dict[str, str] = {}
    for task_folder in tasks_folder.iterdir() if tasks_folder.is_dir() else ():
        with suppress(OSError):  # it may have ended
            stat_lines[task_folder.name] = (task_folder / "stat").read_text(errors="replace")
    return stat_lines


def load_of_this_process(tasks_folder: Path = Path("/proc/self/task")) -> float:
    """Return what the threads of this process have added to the load of the last minute; 0 if not reported.

    A running thread counts as always busy. The calling thread and waiting ones count with the mean of their life."""
    if not (stat_lines := _stats(tasks_folder)):
        return 0.0
    now, this_thread = time.clock_gettime(time.CLOCK_BOOTTIME), str(threading.get_native_id())
    return sum(_thread_load(stat, now, counts_as_running=name != this_thread) for name, stat in stat_lines.items())


def _thread_load(stat_line: str, now: float, *, counts_as_running: bool) -> float:
    """Return one thread's share of the load, 0 to 1. The name in `stat_line` may contain blanks and parentheses."""
    fields = stat_line.rpartition(")")[2].split()
    tick_rate = os.sysconf("SC_CLK_TCK")
    cpu_seconds, age_seconds = (int(fields[11]) + int(fields[12])) / tick_rate, now - int(fields[19]) / tick_rate
    if age_seconds <= 0:
        return 0.0
    is_running = counts_as_running and fields[0] == "R"
    busy_share = 1.0 if is_running else min(cpu_seconds / age_seconds, 1.0)
    return busy_share * (1 - math.exp(-age_seconds / _MINUTE_SECONDS))


# Waiting for cores and for storage. Sources: the kernel's Documentation/scheduler/sched-stats.rst (/proc/PID/schedstat:
# nanoseconds on a core, and nanoseconds of waiting for one), filesystems/proc.rst (/proc/PID/io) and accounting/psi.rst
# (/proc/pressure/io).

_LEAST_NANOSECONDS = 1e7


class CoreWaits:
    """Time in which threads of this process waited for a core, between two readings."""

    def __init__(self, tasks: Path = Path("/proc/self/task")) -> None:
        self._tasks = tasks
        self._before: dict[str, tuple[int, int]] = {}

    def wait_share(self) -> float | None:
        """Return the share of runnable time in which the threads waited for a core, 0 to 1.

        None at the first reading, if the kernel does not report it, and if there was almost nothing to do."""
        times_before, self._before = self._before, self._times()
        pairs = [(old_times, self._before[name]) for name, old_times in times_before.items() if name in self._before]
        computed_nanoseconds = sum(new_times[0] - old_times[0] for old_times, new_times in pairs)
        waited_nanoseconds = sum(new_times[1] - old_times[1] for old_times, new_times in pairs)
        if computed_nanoseconds + waited_nanoseconds < _LEAST_NANOSECONDS:
            return None
        return round(waited_nanoseconds / (computed_nanoseconds + waited_nanoseconds), 4)

    def _times(self) -> dict[str, tuple[int, int]]:
        times = {}
        for task_folder in self._tasks.iterdir() if self._tasks.is_dir() else ():
            # A thread may have ended, and some kernels do not count.
            with suppress(OSError, ValueError, IndexError):
                fields = (task_folder / "schedstat").read_text().split()
                times[task_folder.name] = (int(fields[0]), int(fields[1]))
        return times


class DiskReads:
    """Bytes that this process read from storage, and time that any process waited for storage."""

    def __init__(self, now: Callable[[], float] = monotonic, root: Path = Path("/proc")) -> None:
        self._now, self._root = now, root
        self._bytes_before: int | None = None
        self._stall_before: tuple[float, float] | None = None

    def bytes(self) -> int | None:
        """Return the bytes since the previous reading; None at the first, or if not reported."""
        bytes_before, self._bytes_before = self._bytes_before, self._read_bytes()
        return None if bytes_before is None or self._bytes_before is None else max(self._bytes_before - bytes_before, 0)

    def stall_share(self) -> float | None:
        """Return the share of time since the previous reading in which a process waited for storage, 0 to 1."""
        stalled = self._stalled_seconds()
        stall_before, self._stall_before = self._stall_before, None if stalled is None else (stalled, self._now())
        if stall_before is None or self._stall_before is None or self._stall_before[1] <= stall_before[1]:
            return None
        return round(min((self._stall_before[0] - stall_before[0]) / (self._stall_before[1] - stall_before[1]), 1.0), 4)

    def _read_bytes(self) -> int | None:
        with suppress(OSError, ValueError):
            for line in (self._root / "self/io").read_text().splitlines():
                if line.startswith("read_bytes:"):
                    return int(line.split()[1])
        return None

    def _stalled_seconds(self) -> float | None:
        with suppress(OSError, ValueError):
            first_lines = (self._root / "pressure/io").read_text().splitlines()[:1]
            return int(first_lines[0].rpartition("total=")[2]) / 1e6 if first_lines else None
        return None
