"""Current load of the machine, for the screens and for runs. None means "not reported" and never zero."""

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

# Interval of reading for the screens, while gauges are visible and while they are not. A run reads every
# GAUGES_EVERY_SECONDS (`runs/state.py`).
VISIBLE_PERIOD_SECONDS = 1.0
HIDDEN_PERIOD_SECONDS = 5.0
STALE_SECONDS = 3.0
_BUSY = ("user", "system", "nice", "irq", "softirq", "steal")
# Errors of a counter that does not exist, may not be read by this user, or has an unexpected format.
UNREADABLE = (psutil.Error, OSError, RuntimeError, LookupError, ValueError, TypeError)


class DiskRate(NamedTuple):
    """Bytes per second that were read from and written to one disk since the previous reading."""

    name: str
    read: float
    write: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Gauges:
    """One reading of the machine. `cpu_share` is the mean of the cores this process may use since the previous reading,
    and `core_shares` has the share of each of them."""

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
    """Seconds of work, and seconds that were available for work, both since some moment in the past."""

    busy_seconds: float
    room_seconds: float


def cpu_times(
    limits: CgroupLimits, now: Callable[[], float] = monotonic, cores: Sequence[CpuTimes] | None = None
) -> CpuTimes:
    """Return the CPU times of the container if it has a quota, otherwise of the cores that this process may use."""
    if limits.cores and limits.cpu_used_seconds is not None:
        return CpuTimes(limits.cpu_used_seconds, now() * limits.cores)
    cores = core_times() if cores is None else cores
    return CpuTimes(sum(core.busy_seconds for core in cores), sum(core.room_seconds for core in cores))


def core_times() -> list[CpuTimes]:
    """Return the times of each core that this process may use."""
    all_cores = psutil.cpu_times(percpu=True)
    allowed_indices = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(len(all_cores))
    usable_cores = [all_cores[index] for index in sorted(allowed_indices) if index < len(all_cores)] or all_cores
    # Guest time is part of user time. iowait is idle time.
    busy_seconds = [sum(getattr(core, name, 0.0) for name in _BUSY) for core in usable_cores]
    return [
        CpuTimes(core_seconds, core_seconds + core.idle + getattr(core, "iowait", 0.0))
        for core_seconds, core in zip(busy_seconds, usable_cores, strict=True)
    ]


@cache
def _disks(block_devices: Path) -> tuple[Path, ...]:
    """Return the physical disks, without partitions and logical volumes. Cached, because the search is slow."""
    return tuple(device.parent for device in sorted(block_devices.glob("*/device")))


def disk_bytes(block_devices: Path = Path("/sys/block")) -> dict[str, tuple[int, int]]:
    """Return the bytes read from and written to each disk. Source: Documentation/block/stat.rst of the kernel."""
    fields_by_disk = {disk.name: (disk / "stat").read_text().split() for disk in _disks(block_devices)}
    return {name: (512 * int(fields[2]), 512 * int(fields[6])) for name, fields in fields_by_disk.items()}


def cpu_share(before: CpuTimes | None, after: CpuTimes) -> float | None:
    """Return the busy share of CPU time between two readings, 0 to 1; None for the first and within one clock tick."""
    if before is None or after.room_seconds <= before.room_seconds:
        return None
    share = (after.busy_seconds - before.busy_seconds) / (after.room_seconds - before.room_seconds)
    return min(max(share, 0.0), 1.0)


def read_gauges(folder: Path, share: float | None, limits: CgroupLimits) -> Gauges:
    """Return the gauges of this machine: the CPU (`share` of its time, None if unknown), the memory of the machine or
    container, and the disk of `folder`. The gauges of GPUs are left empty."""
    used = total = disk_used = disk_size = None
    with suppress(*UNREADABLE):
        memory = psutil.virtual_memory()
        used, total = memory.total - memory.available, memory.total
        if limits.memory_bytes is not None and limits.memory_bytes < total:
            total = limits.memory_bytes
            used = min(used, total) if limits.memory_used_bytes is None else limits.memory_used_bytes
    with suppress(*UNREADABLE):
        disk = psutil.disk_usage(str(nearest_existing(folder)))
        # As in df, the blocks reserved for root count as neither used nor free.
        disk_used, disk_size = disk.used, disk.used + disk.free
    gauges = Gauges(cpu_share=share, memory_used_bytes=used, memory_bytes=total)
    return replace(gauges, disk_used_bytes=disk_used, disk_bytes=disk_size)


class GaugeSampler:
    """Daemon threads that read the machine and its GPUs, one thread each, so that a driver that hangs blocks nothing.

    If a disk hangs, `stale` is true until it responds. GPUs that do not respond keep their rows without values.
    `folder` is a folder on the disk to read."""

    def __init__(
        self,
        folder: Path = Path("runs"),
        *,
        period_seconds: float = VISIBLE_PERIOD_SECONDS,
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
        """Newest reading of the GPUs, and the time until which it is current."""
        self._stop, self._wake = Event(), Condition()
        self._threads: dict[str, Thread] = {}

    @property
    def latest(self) -> Gauges | None:
        """Newest reading, however old; None before the first."""
        return self._newest[0] if self._newest else None

    @property
    def stale(self) -> bool:
        """Whether there is no reading, or it is too old to be shown as current."""
        return self._newest is None or self._now() > self._newest[1]

    def start(self) -> None:
        """Start the threads. Does nothing if they are running."""
        self._stop.clear()
        for name, read in (("tui-trainer-gauges", self.read_now), ("tui-trainer-cards", self.read_gpus_now)):
            if name not in self._threads or not self._threads[name].is_alive():
                self._threads[name] = Thread(target=self._work, args=(read,), name=name, daemon=True)
                self._threads[name].start()

    def stop(self) -> None:
        """Stop after the current reading, without waiting for it."""
        self._stop.set()
        with self._wake:
            self._wake.notify_all()

    def set_period(self, period_seconds: float) -> None:
        """Set the interval of reading, in seconds. If it changes, the next reading starts at once."""
        if period_seconds != self._period_seconds:
            with self._wake:
                self._period_seconds = period_seconds
                self._wake.notify_all()

    def read_now(self) -> Gauges:
        """Read the machine once, in this thread. The GPUs are those of their last reading."""
        limits, cores, times_now, busy_share = CgroupLimits(), list[CpuTimes](), None, None
        with suppress(*UNREADABLE):
            limits, cores = read_limits(), core_times()
            times_now = cpu_times(limits, self._now, cores)
            busy_share = cpu_share(self._before, times_now)
        cores_before, self._cores_before = self._cores_before, cores
        gauges = replace(
            read_gauges(self.folder, busy_share, limits), gpus=self._gpus(), disk_rates=self._disk_rates(),
            core_shares=tuple(cpu_share(*before_and_now) for before_and_now in zip(cores_before, cores, strict=False)),
        )  # fmt: skip
        self._before, self._newest = times_now, (gauges, self._good_until)
        return gauges

    def _disk_rates(self) -> tuple[DiskRate, ...]:
        (time_before, counts_before), now, counts_now = self._disks_before, self._now(), dict[str, tuple[int, int]]()
        with suppress(*UNREADABLE):
            counts_now = disk_bytes()
        self._disks_before, elapsed = (now, counts_now), max(now - time_before, 1e-3)
        return tuple(
            DiskRate(name, *(max(new - old, 0) / elapsed for new, old in zip(counts, counts_before[name], strict=True)))
            for name, counts in counts_now.items()
            if name in counts_before
        )

    def read_gpus_now(self) -> None:
        """Read the GPUs once, for as long as the driver takes. A driver that was loaded later is found."""
        nvml, gpus = self._nvml or nvml_room.session(), tuple[Gpu, ...]()
        with suppress(*UNREADABLE):
            gpus = nvml.live() if nvml else ()
        self._cards = (gpus, self._good_until)

    def _gpus(self) -> tuple[Gpu, ...]:
        gpus, good_until = self._cards
        if self._now() <= good_until:
            return gpus
        return tuple(Gpu(index=gpu.index, name=gpu.name, memory_bytes=gpu.memory_bytes) for gpu in gpus)

    @property
    def _good_until(self) -> float:
        return self._now() + max(STALE_SECONDS, 2 * self._period_seconds)

    def _work(self, look: Callable[[], object]) -> None:
        while not self._stop.is_set():
            look()
            with self._wake:
                if not self._stop.is_set():
                    self._wake.wait(self._period_seconds)
