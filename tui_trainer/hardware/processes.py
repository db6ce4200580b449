"""Processes that use the CPU, the memory and the GPUs of this machine, and ending one of them.

All processes that the kernel shows are read. A container hides others: `notes` give the cores and memory they use."""

import os
import resource
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, thread_time
from typing import Any

import psutil

from tui_trainer.hardware import nvml as nvml_room
from tui_trainer.hardware.gauges import UNREADABLE
from tui_trainer.hardware.nvml import CardUsers, Nvml
from tui_trainer.units import GIB, format_bytes

# GPU memory that the driver uses without attributing it to a process.
_DRIVER_BYTES = 1 * GIB
# Fewer cores than this may be the work of processes that have ended since the previous reading.
_UNSEEN_CORES = 1.0
_START_TOLERANCE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUse:
    """One process. `cores` is the mean count of cores that it kept busy since the previous reading, None at the first.
    `memory_bytes` is resident memory. `card_bytes` has bytes by GPU, None if not reported. `user` and `command` are not
    made safe for a terminal."""

    pid: int
    parent: int | None = None
    user: str | None = None
    is_own: bool = False
    """Whether it belongs to the user of this program."""
    command: str = ""
    started_at: float | None = None
    """Start time in seconds since 1970; None for a process on a GPU that the kernel does not show."""
    cores: float | None = None
    memory_bytes: int | None = None
    card_bytes: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Identifier that a later process with the same number does not have."""
        return f"{self.pid} {self.started_at}"

    @property
    def bytes_on_cards(self) -> int:
        return sum(bytes_on_card or 0 for bytes_on_card in self.card_bytes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessSnapshot:
    """All processes at one moment. `cpu_seconds` is the CPU time of this reading itself."""

    processes: tuple[ProcessUse, ...]
    notes: tuple[str, ...]
    cpu_seconds: float
    has_cards: bool


class ProcessReader:
    """Repeated reading of all processes in one thread. Shares are those of the time between two readings."""

    def __init__(self, nvml: Nvml | None = None, now: Callable[[], float] = monotonic) -> None:
        self._nvml, self._now = nvml, now
        self._before: dict[tuple[int, float], float] = {}
        """CPU seconds of each process, by number and start time."""
        self._machine_before: float | None = None
        self._looked_at = 0.0
        self._users: dict[int, str] = {}

    def look(self) -> ProcessSnapshot:
        thread_seconds_before = thread_time()
        nvml = self._nvml or nvml_room.session()
        cards: tuple[CardUsers, ...] = ()
        if nvml:
            with suppress(*UNREADABLE):
                cards = nvml.users()
        gpu_bytes: dict[int, dict[int, int | None]] = {}
        for card in cards:
            for pid, memory_bytes in (card.memory_by_pid or {}).items():
                gpu_bytes.setdefault(pid, {})[card.index] = memory_bytes
        now = self._now()
        elapsed, self._looked_at = now - self._looked_at, now
        processes, cpu_seconds_by_process = [], dict[tuple[int, float], float]()
        for process in psutil.process_iter():
            with suppress(*UNREADABLE):
                processes.append(self._read(process, elapsed, cpu_seconds_by_process, gpu_bytes.pop(process.pid, {})))
        notes = [*self._unseen_cores(cpu_seconds_by_process, elapsed), *map(_unseen_memory, cards)]
        self._before = cpu_seconds_by_process
        # Kernel threads and ended processes have no memory.
        processes = [use for use in processes if use.memory_bytes or use.card_bytes]
        processes += [ProcessUse(pid=pid, card_bytes=card_bytes) for pid, card_bytes in gpu_bytes.items()]
        return ProcessSnapshot(
            processes=tuple(processes),
            notes=tuple(filter(None, notes)),
            cpu_seconds=thread_time() - thread_seconds_before,
            has_cards=bool(cards),
        )

    def _read(
        self,
        process: psutil.Process,
        seconds: float,
        times: dict[tuple[int, float], float],
        card_bytes: dict[int, int | None],
    ) -> ProcessUse:
        with process.oneshot():
            started_at, cpu_times = process.create_time(), process.cpu_times()
            user_id = process.uids().effective if hasattr(process, "uids") else -1
            memory_bytes = process.memory_info().rss
            parent_pid = process.ppid()
        process_key, cpu_seconds = (process.pid, started_at), cpu_times.user + cpu_times.system
        times[process_key] = cpu_seconds
        seconds_before = self._before.get(process_key)
        if user_id not in self._users:
            # The system may ask another machine for the name of a user.
            self._users[user_id] = process.username()
        return ProcessUse(
            pid=process.pid,
            parent=parent_pid,
            user=self._users[user_id],
            is_own=not hasattr(os, "geteuid") or user_id == os.geteuid(),
            command=_command(process) if memory_bytes else "",
            started_at=started_at,
            cores=None if seconds_before is None or seconds <= 0 else max(cpu_seconds - seconds_before, 0.0) / seconds,
            memory_bytes=memory_bytes,
            card_bytes=card_bytes,
        )

    def _unseen_cores(self, times: Mapping[tuple[int, float], float], seconds: float) -> list[str]:
        """Return a note on cores of the machine that were busy, but not with a process seen in both readings."""
        machine_times = psutil.cpu_times()
        busy_seconds = machine_times.user + machine_times.system + getattr(machine_times, "nice", 0.0)
        busy_seconds_before, self._machine_before = self._machine_before, busy_seconds
        if busy_seconds_before is None or seconds <= 0:
            return []
        seen_seconds = sum(cpu_seconds - self._before[key] for key, cpu_seconds in times.items() if key in self._before)
        cores = (busy_seconds - busy_seconds_before - seen_seconds) / seconds
        if cores < _UNSEEN_CORES:
            return []
        users = "processes that are not listed: outside this container, or already ended"
        return [f"{cores:.1f} cores are used by {users}"]


def _command(process: psutil.Process) -> str:
    """Return the command line, or else the name. It may contain secrets, so it is shown but never saved."""
    with suppress(*UNREADABLE):
        if words := process.cmdline():
            return " ".join(words).strip()
    with suppress(*UNREADABLE):
        return process.name()
    return ""


def _unseen_memory(card: CardUsers) -> str:
    """Return a note on GPU memory that no listed process uses; empty if there is little."""
    if card.memory_by_pid is None:
        return f"GPU {card.index}: the driver does not report its processes"
    listed_bytes = sum(process_bytes or 0 for process_bytes in card.memory_by_pid.values())
    unlisted_bytes = (card.used_bytes or 0) - listed_bytes
    if unlisted_bytes < _DRIVER_BYTES or None in card.memory_by_pid.values():
        return ""
    return f"GPU {card.index}: {format_bytes(unlisted_bytes)} are used by processes that this container does not show"


def descendants(processes: Mapping[int, ProcessUse], pid: int) -> set[int]:
    """Return the numbers of a process and of all its descendants."""
    pids = {pid}
    while child_pids := {process.pid for process in processes.values() if process.parent in pids} - pids:
        pids |= child_pids
    return pids


def own_peak_bytes() -> int:
    """Return the peak of this process's resident bytes since it was started or the peak was reset."""
    # The peak of `getrusage` begins with that of the process that started this one, which may be larger: for a detached
    # run that of the screens.
    with suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * int(next(line for line in lines if line.startswith("VmHWM:")).split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def is_running(pid: int, started_at: float | None) -> bool:
    """Return whether exactly this process is running. A zombie, of which only the exit status is left, is not."""
    with suppress(*UNREADABLE):
        return _process_started_at(pid, started_at).status() != psutil.STATUS_ZOMBIE
    return False


def end_process(pid: int, started_at: float | None, *, kill: bool = False) -> str:
    """Ask a process to end (SIGTERM) or `kill` it (SIGKILL). Return why that failed; empty if it did not."""
    try:
        process: Any = _process_started_at(pid, started_at)
        (process.kill if kill else process.terminate)()
    except psutil.NoSuchProcess:
        return "the process has already ended"
    except (psutil.Error, OSError) as error:
        return f"the process cannot be ended: {getattr(error, 'msg', '') or error}"
    return ""


def _process_started_at(pid: int, started_at: float | None) -> psutil.Process:
    """Return the process. Raises NoSuchProcess if another process has its number by now."""
    process = psutil.Process(pid)
    if started_at is None or abs(process.create_time() - started_at) > _START_TOLERANCE_SECONDS:
        raise psutil.NoSuchProcess(pid)
    return process
