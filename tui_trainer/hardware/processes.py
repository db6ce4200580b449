"""Who uses this machine and its cards: each process with its user, its memory and its command, and how to end one.

Looks at every process that the kernel shows. What a container hides is not there; how much is in use by nobody who is
shown is said in `notes`.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic, thread_time
from typing import Any

import psutil

from tui_trainer.hardware import nvml as nvml_room
from tui_trainer.hardware.gauges import UNREADABLE
from tui_trainer.hardware.nvml import CardUsers, Nvml
from tui_trainer.units import GIB, format_bytes

# What the driver takes of a card for itself and each process, which it counts as nobody's.
_DRIVER_BYTES = 1 * GIB
# Cores: less is what processes took that ended meanwhile.
_UNSEEN_CORES = 1.0
_START_TOLERANCE_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessUse:
    """One process. `cores` that it kept busy since the look before, None at the first; `memory_bytes` are resident.
    `card_bytes` by card, None where the driver does not say. `user` and `command` are as they were given."""

    pid: int
    parent: int | None = None
    user: str | None = None
    is_own: bool = False
    """Of the user of this program."""
    command: str = ""
    started_at: float | None = None
    """Seconds since 1970; None for a process that is on a card, and not among those that the kernel shows."""
    cores: float | None = None
    memory_bytes: int | None = None
    card_bytes: Mapping[int, int | None] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Another process of the same number has another one."""
        return f"{self.pid} {self.started_at}"

    @property
    def bytes_on_cards(self) -> int:
        return sum(size or 0 for size in self.card_bytes.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessLook:
    """`cpu_seconds`: what this look took of a core."""

    processes: tuple[ProcessUse, ...]
    notes: tuple[str, ...]
    cpu_seconds: float
    has_cards: bool


class ProcessReader:
    """Looks again and again, from one thread: shares are of the time between two looks."""

    def __init__(self, nvml: Nvml | None = None, now: Callable[[], float] = monotonic) -> None:
        self._nvml, self._now = nvml, now
        self._before: dict[tuple[int, float], float] = {}
        """Seconds on a core of each process, by number and start."""
        self._machine_before: float | None = None
        self._looked_at = 0.0
        self._users: dict[int, str] = {}

    def look(self) -> ProcessLook:
        began = thread_time()
        nvml = self._nvml or nvml_room.session()
        cards: tuple[CardUsers, ...] = ()
        if nvml:
            with suppress(*UNREADABLE):
                cards = nvml.users()
        on_cards: dict[int, dict[int, int | None]] = {}
        for card in cards:
            for pid, size in (card.memory_by_pid or {}).items():
                on_cards.setdefault(pid, {})[card.index] = size
        now = self._now()
        seconds, self._looked_at = now - self._looked_at, now
        found, times = [], dict[tuple[int, float], float]()
        for process in psutil.process_iter():
            with suppress(*UNREADABLE):
                found.append(self._one(process, seconds, times, on_cards.pop(process.pid, {})))
        notes = [*self._unseen_cores(times, seconds), *map(_unseen_memory, cards)]
        self._before = times
        # Kernel threads and what has ended have no memory.
        processes = [one for one in found if one.memory_bytes or one.card_bytes]
        processes += [ProcessUse(pid=pid, card_bytes=sizes) for pid, sizes in on_cards.items()]
        return ProcessLook(
            processes=tuple(processes),
            notes=tuple(filter(None, notes)),
            cpu_seconds=thread_time() - began,
            has_cards=bool(cards),
        )

    def _one(
        self,
        process: psutil.Process,
        seconds: float,
        times: dict[tuple[int, float], float],
        card_bytes: dict[int, int | None],
    ) -> ProcessUse:
        with process.oneshot():
            started, spent = process.create_time(), process.cpu_times()
            user_id = process.uids().effective if hasattr(process, "uids") else -1
            memory_bytes = process.memory_info().rss
            parent = process.ppid()
        key, busy = (process.pid, started), spent.user + spent.system
        times[key] = busy
        before = self._before.get(key)
        if user_id not in self._users:
            # Names of users may be asked of another machine.
            self._users[user_id] = process.username()
        return ProcessUse(
            pid=process.pid,
            parent=parent,
            user=self._users[user_id],
            is_own=not hasattr(os, "geteuid") or user_id == os.geteuid(),
            command=_command(process) if memory_bytes else "",
            started_at=started,
            cores=None if before is None or seconds <= 0 else max(busy - before, 0.0) / seconds,
            memory_bytes=memory_bytes,
            card_bytes=card_bytes,
        )

    def _unseen_cores(self, times: Mapping[tuple[int, float], float], seconds: float) -> list[str]:
        """What the whole machine was busy with beside all processes that were seen before and now."""
        whole = psutil.cpu_times()
        busy = whole.user + whole.system + getattr(whole, "nice", 0.0)
        before, self._machine_before = self._machine_before, busy
        if before is None or seconds <= 0:
            return []
        seen = sum(spent - self._before[key] for key, spent in times.items() if key in self._before)
        cores = (busy - before - seen) / seconds
        if cores < _UNSEEN_CORES:
            return []
        return [
            f"{cores:.1f} cores are used by processes that are not listed: outside this container, or already ended"
        ]


def _command(process: psutil.Process) -> str:
    """The command line where it may be read, else the name. It is shown, and never written to a report: it may hold
    secrets."""
    with suppress(*UNREADABLE):
        if words := process.cmdline():
            return " ".join(words).strip()
    with suppress(*UNREADABLE):
        return process.name()
    return ""


def _unseen_memory(card: CardUsers) -> str:
    if card.memory_by_pid is None:
        return f"GPU {card.index}: the driver does not report its processes"
    listed = sum(size or 0 for size in card.memory_by_pid.values())
    unseen = (card.used_bytes or 0) - listed
    if unseen < _DRIVER_BYTES or None in card.memory_by_pid.values():
        return ""
    return f"GPU {card.index}: {format_bytes(unseen)} are used by processes that this container does not show"


def descendants(processes: Mapping[int, ProcessUse], pid: int) -> set[int]:
    """The process itself, what it has begun, and what those have."""
    found = {pid}
    while more := {one.pid for one in processes.values() if one.parent in found} - found:
        found |= more
    return found


def lives(pid: int, started_at: float | None) -> bool:
    """Whether it is this very process, and not only the exit status that nobody has asked for."""
    with suppress(*UNREADABLE):
        return _the_same(pid, started_at).status() != psutil.STATUS_ZOMBIE
    return False


def end_process(pid: int, started_at: float | None, *, kill: bool = False) -> str:
    """Ask a process to end (SIGTERM), or `kill` it (SIGKILL). Why that was not done; empty: it was."""
    try:
        process: Any = _the_same(pid, started_at)
        (process.kill if kill else process.terminate)()
    except psutil.NoSuchProcess:
        return "it has already ended"
    except (psutil.Error, OSError) as error:
        return f"it cannot be ended: {getattr(error, 'msg', '') or error}"
    return ""


def _the_same(pid: int, started_at: float | None) -> psutil.Process:
    """Raises NoSuchProcess where the number belongs to another process by now."""
    process = psutil.Process(pid)
    if started_at is None or abs(process.create_time() - started_at) > _START_TOLERANCE_SECONDS:
        raise psutil.NoSuchProcess(pid)
    return process
