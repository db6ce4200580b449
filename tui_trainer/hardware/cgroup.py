"""The limits of the control group that this process is in: containers, Slurm jobs, systemd slices.

Reads version 1 for the controllers that it has here and version 2 for the others (systems with both are common), from
the own group up to the root; the tightest limit counts. None is "no limit".
Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import psutil

# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, kw_only=True, slots=True)
class CgroupLimits:
    """`memory_used_bytes` leaves out file pages that the kernel drops on demand; it and `cpu_used_seconds` (since the
    group was made) are those of the group that sets the limit, None without one."""

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    cores: float | None = None
    cpu_used_seconds: float | None = None

    @property
    def memory_left_bytes(self) -> int | None:
        return None if self.memory_bytes is None else max(self.memory_bytes - (self.memory_used_bytes or 0), 0)


def read_limits(root: Path = Path("/")) -> CgroupLimits:
    """The limits now. `root` is where /proc and /sys are."""
    mount, groups = root / "sys/fs/cgroup", _own_groups(root)
    # Beside version 1, version 2 has a folder of its own.
    whole = _upwards(mount, groups.get("", "/")) + _upwards(mount / "unified", groups.get("", "/"))
    by_memory, by_cpu = (_v1_folders(mount, groups, name) for name in ("memory", "cpu"))
    memory = _memory(by_memory, *_V1_MEMORY) if by_memory else _memory(whole, *_V2_MEMORY)
    if by_cpu:
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        cores, group = _tightest(by_cpu, lambda at: _cores(*(_text(at / name) for name in files)))
    else:
        cores, group = _tightest(whole, lambda at: _cores(*_text(at / "cpu.max").split()[:2]))
    used = _number(group / "cpuacct.usage") if by_cpu else _field(group / "cpu.stat", "usage_usec")
    seconds = None if cores is None or used is None else used / (1e9 if by_cpu else 1e6)
    return CgroupLimits(memory_bytes=memory[0], memory_used_bytes=memory[1], cores=cores, cpu_used_seconds=seconds)


_V2_MEMORY = ("memory.max", "memory.current", "inactive_file")
_V1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
T = TypeVar("T", int, float)


def _own_groups(root: Path) -> dict[str, str]:
    """Path of the own group by the controllers of its hierarchy, as in `cpu,cpuacct`; version 2 names none."""
    groups: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        groups[controllers] = path
    return groups


def _v1_folders(mount: Path, groups: dict[str, str], controller: str) -> list[Path]:
    """The folders of a controller that version 1 has; empty where it has not."""
    for controllers, path in groups.items():
        if controller in controllers.split(","):
            # Mounted under the names of all its controllers, in most places under each of them too.
            return _upwards(mount / controllers, path) + _upwards(mount / controller, path)
    return []


def _upwards(mount: Path, group: str) -> list[Path]:
    """The folders of the group and of those above it; not all can be seen from inside a container."""
    path = PurePosixPath("/", group)
    return [mount.joinpath(*part.parts[1:]) for part in (path, *path.parents)]


def _tightest(folders: list[Path], limit_in: Callable[[Path], T | None]) -> tuple[T | None, Path]:
    """The lowest limit, and the folder that has it."""
    found = [(limit, folder) for folder in folders if (limit := limit_in(folder)) is not None]
    return min(found, key=lambda pair: pair[0]) if found else (None, Path())


def _memory(folders: list[Path], limit: str, usage: str, reclaimable: str) -> tuple[int | None, int | None]:
    def limit_in(folder: Path) -> int | None:
        found = _number(folder / limit)
        return None if found is None or found >= _NO_LIMIT_BYTES else found

    least, folder = _tightest(folders, limit_in)
    used = None if least is None else _number(folder / usage)
    return least, None if used is None else max(used - int(_field(folder / "memory.stat", reclaimable) or 0), 0)


def _cores(quota: str = "", period: str = "") -> float | None:
    try:
        return int(quota) / int(period) if int(quota) > 0 else None
    except (ValueError, ZeroDivisionError):
        return None


def _field(path: Path, name: str) -> float | None:
    for line in _text(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return float(value)
    return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


# How much memory the machine, or the container, still has before the kernel ends a process.


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLeft:
    """`left_bytes` of `total_bytes`, which are those of `where`; with the machine's free swap, where it counts."""

    left_bytes: int
    total_bytes: int
    where: str
    swap_used_bytes: int = 0
    process_bytes: int = 0


def memory_left(root: Path = Path("/")) -> MemoryLeft:
    """Now, in less than a millisecond. Raises OSError or psutil.Error where the system does not tell.

    `root` is where /proc and /sys are. A limit of a control group counts where less is left of it.
    """
    memory, limits, swap = psutil.virtual_memory(), read_limits(root), _swap(root)
    own = psutil.Process().memory_info().rss
    left, total, where = memory.available + swap.get("SwapFree", 0), memory.total, "the machine"
    if limits.memory_bytes is not None and (of_group := limits.memory_left_bytes or 0) < left:
        left, total, where = of_group, limits.memory_bytes, "the container"
    used = swap.get("SwapTotal", 0) - swap.get("SwapFree", 0)
    return MemoryLeft(left_bytes=left, total_bytes=total, where=where, swap_used_bytes=used, process_bytes=own)


def _swap(root: Path) -> dict[str, int]:
    """Bytes by the names of /proc/meminfo; psutil warns where one of its counters is not there."""
    found = {}
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, _, value = line.partition(":")
        number = value.split()[:1]
        if name in ("SwapTotal", "SwapFree") and number and number[0].isdigit():
            found[name] = int(number[0]) * 1024
    return found
