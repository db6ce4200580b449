"""What the machine is doing right now, for the screen. `None` is "not reported", never zero."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Condition, Event, Thread
from time import monotonic
from typing import NamedTuple

import psutil

from tui_trainer.hardware import nvml as nvml_room
from tui_trainer.hardware.cgroup import CgroupLimits, read_limits
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.hardware.storage import nearest_existing

# How often the machine is read for the screens, while gauges are shown and while they are not. A run reads it every
# GAUGES_EVERY_SECONDS (`runs/state.py`).
SEEN_SECONDS = 1.0
UNSEEN_SECONDS = 5.0
STALE_SECONDS = 3.0
# How a counter fails that is not there, is closed to this user, or has other words than expected: it is not reported.
_BUSY = ("user", "system", "nice", "irq", "softirq", "steal")
UNREADABLE = (psutil.Error, OSError, RuntimeError, LookupError, ValueError, TypeError)


class DiskRate(NamedTuple):
    """Bytes per second that one disk has read and written since the previous reading."""

    name: str
    read: float
    write: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauges:
    """One look at the machine. `cpu_share` is over the cores this process may use, since the look before, and
    `core_shares` are those of each of these cores."""

    cpu_share: float | None = None
    core_shares: tuple[float | None, ...] = ()
    disk_rates: tuple[DiskRate, ...] = ()
    memory_used_bytes: int | None = None
    memory_bytes: int | None = None
    disk_used_bytes: int | None = None
    disk_bytes: int | None = None
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Seconds of work and seconds that there were to work in, both since some moment in the past."""

    busy_seconds: float
    room_seconds: float


def cpu_times(
    limits: CgroupLimits, now: Callable[[], float] = monotonic, cores: Sequence[CpuTimes] | None = None
) -> CpuTimes:
    """Of the container where it has a quota, else of the cores that this process may use."""
    if limits.cores and limits.cpu_used_seconds is not None:
        return CpuTimes(limits.cpu_used_seconds, now() * limits.cores)
    cores = core_times() if cores is None else cores
    return CpuTimes(sum(core.busy_seconds for core in cores), sum(core.room_seconds for core in cores))


def core_times() -> list[CpuTimes]:
    """Return the times of each core that this process may use."""
    cores = psutil.cpu_times(percpu=True)
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(cores))
    used = [cores[index] for index in sorted(allowed) if index < len(cores)] or cores
    # Guest time is part of user time, and iowait is idling.
    busy = [sum(getattr(core, name, 0.0) for name in _BUSY) for core in used]
    return [CpuTimes(b, b + core.idle + getattr(core, "iowait", 0.0)) for b, core in zip(busy, used, strict=True)]


@cache
def _disks(block_devices: Path) -> tuple[Path, ...]:
    """Return the disks that are devices, without their parts and what lies on them. To look for them takes long."""
    return tuple(device.parent for device in sorted(block_devices.glob("*/device")))


def disk_bytes(block_devices: Path = Path("/sys/block")) -> dict[str, tuple[int, int]]:
    """Return the bytes read from and written to each disk so far. Source: the kernel's Documentation/block/stat.rst."""
    counts = {disk.name: (disk / "stat").read_text().split() for disk in _disks(block_devices)}
    return {name: (512 * int(count[2]), 512 * int(count[6])) for name, count in counts.items()}


def cpu_share(before: CpuTimes | None, after: CpuTimes) -> float | None:
    """0 to 1 between two looks; None for the first look and for two in the same tick of the clock."""
    if before is None or after.room_seconds <= before.room_seconds:
        return None
    share = (after.busy_seconds - before.busy_seconds) / (after.room_seconds - before.room_seconds)
    return min(max(share, 0.0), 1.0)


def read_gauges(folder: Path, share: float | None, limits: CgroupLimits) -> Gauges:
    """One look: the machine's or the container's memory, and the disk that `folder` is on. Cards are read apart."""
    used = total = disk_used = disk_total = None
    with suppress(*UNREADABLE):
        memory = psutil.virtual_memory()
        used, total = memory.total - memory.available, memory.total
        if limits.memory_bytes is not None and limits.memory_bytes < total:
            total = limits.memory_bytes
            used = min(used, total) if limits.memory_used_bytes is None else limits.memory_used_bytes
    with suppress(*UNREADABLE):
        disk = psutil.disk_usage(str(nearest_existing(folder)))
        # As df: the reserve that only root may use belongs to neither.
        disk_used, disk_total = disk.used, disk.used + disk.free
    return Gauges(
        cpu_share=share, memory_used_bytes=used, memory_bytes=total, disk_used_bytes=disk_used, disk_bytes=disk_total
    )


class GaugeSampler:
    """Looks at the machine in one daemon thread and at its cards in another: a driver that hangs stops nobody.

    There is never a second thread of a kind. A disk that hangs makes `stale` true until it comes back; cards that do
    not answer keep their rows, without figures. `folder` is where the disk is looked at.
    """

    def __init__(
        self,
        folder: Path = Path("runs"),
        *,
        period_seconds: float = SEEN_SECONDS,
        nvml: Nvml | None = None,
        now: Callable[[], float] = monotonic,
    ) -> None:
        self.folder, self._period_seconds, self._now = folder, period_seconds, now
        self._nvml = nvml
        self._before: CpuTimes | None = None
        self._cores_before: list[CpuTimes] = []
        self._disks_before: tuple[float, dict[str, tuple[int, int]]] = now(), {}
        self._newest: tuple[Gauges, float] | None = None
        self._cards: tuple[tuple[Gpu, ...], float] = ((), 0.0)
        """As `_newest`: what was seen, and until when that is the present."""
        self._stop, self._wake = Event(), Condition()
        self._threads: dict[str, Thread] = {}

    @property
    def latest(self) -> Gauges | None:
        """The newest look, however old; None before the first."""
        return self._newest[0] if self._newest else None

    @property
    def stale(self) -> bool:
        """True when the newest look is too old to be shown as the present, or there is none."""
        return self._newest is None or self._now() > self._newest[1]

    def start(self) -> None:
        """Begin to look. Does nothing while the threads are at work."""
        self._stop.clear()
        for name, look in (("tui-trainer-gauges", self.look), ("tui-trainer-cards", self.look_at_cards)):
            if name not in self._threads or not self._threads[name].is_alive():
                self._threads[name] = Thread(target=self._work, args=(look,), name=name, daemon=True)
                self._threads[name].start()

    def stop(self) -> None:
        """End after the look under way, without waiting for it."""
        self._stop.set()
        with self._wake:
            self._wake.notify_all()

    def look_every(self, period_seconds: float) -> None:
        """From now on; the next look comes at once where that is another period than before."""
        if period_seconds != self._period_seconds:
            with self._wake:
                self._period_seconds = period_seconds
                self._wake.notify_all()

    def look(self) -> Gauges:
        """Look once at the machine, here and now; of the cards what was seen last."""
        limits, cores, after, share = CgroupLimits(), list[CpuTimes](), None, None
        with suppress(*UNREADABLE):
            limits, cores = read_limits(), core_times()
            after = cpu_times(limits, self._now, cores)
            share = cpu_share(self._before, after)
        before, self._cores_before = self._cores_before, cores
        gauges = replace(
            read_gauges(self.folder, share, limits), gpus=self._gpus(), disk_rates=self._disk_rates(),
            core_shares=tuple(cpu_share(*times) for times in zip(before, cores, strict=False)),
        )  # fmt: skip
        self._before, self._newest = after, (gauges, self._good_until)
        return gauges

    def _disk_rates(self) -> tuple[DiskRate, ...]:
        (then, before), at, disks = self._disks_before, self._now(), dict[str, tuple[int, int]]()
        with suppress(*UNREADABLE):
            disks = disk_bytes()
        self._disks_before, seconds = (at, disks), max(at - then, 1e-3)
        return tuple(
            DiskRate(name, *(max(now - old, 0) / seconds for now, old in zip(count, before[name], strict=True)))
            for name, count in disks.items()
            if name in before
        )

    def look_at_cards(self) -> None:
        """Look once at the cards, for as long as the driver takes. A driver that was loaded since is found."""
        nvml, gauges = self._nvml or nvml_room.session(), tuple[Gpu, ...]()
        with suppress(*UNREADABLE):
            gauges = nvml.live() if nvml else ()
        self._cards = (gauges, self._good_until)

    def _gpus(self) -> tuple[Gpu, ...]:
        gauges, good_until = self._cards
        if self._now() <= good_until:
            return gauges
        return tuple(Gpu(index=one.index, name=one.name, memory_bytes=one.memory_bytes) for one in gauges)

    @property
    def _good_until(self) -> float:
        return self._now() + max(STALE_SECONDS, 2 * self._period_seconds)

    def _work(self, look: Callable[[], object]) -> None:
        while not self._stop.is_set():
            look()
            with self._wake:
                if not self._stop.is_set():
                    self._wake.wait(self._period_seconds)
