"""Limits of the control groups of this process: of containers, Slurm jobs and systemd slices.

Controllers that exist in version 1 are read there, others in version 2, since many systems have both. The group of this
process and all groups above it are read, and the tightest limit counts. None means "no limit".
Source: the kernel's Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeVar

import psutil

# Version 1 writes "no limit" as the largest number of whole pages.
_NO_LIMIT_BYTES = 1 << 60


@dataclass(frozen=True, kw_only=True, slots=True)
class CgroupLimits:
    """Tightest limits of memory and cores, and the use of the groups that set them; None without a limit. Memory does
    not count file pages that the kernel can drop. `cpu_used_seconds` counts from the creation of the group."""

    memory_bytes: int | None = None
    memory_used_bytes: int | None = None
    cores: float | None = None
    cpu_used_seconds: float | None = None

    @property
    def memory_left_bytes(self) -> int | None:
        return None if self.memory_bytes is None else max(self.memory_bytes - (self.memory_used_bytes or 0), 0)


def read_limits(root: Path = Path("/")) -> CgroupLimits:
    """Read the current limits. `root` is the folder that contains /proc and /sys."""
    cgroup_root, groups = root / "sys/fs/cgroup", _process_groups(root)
    # On systems with both versions, version 2 is mounted below the folder of version 1.
    v2_folders = _upwards(cgroup_root, groups.get("", "/")) + _upwards(cgroup_root / "unified", groups.get("", "/"))
    v1_memory_folders, v1_cpu_folders = (_v1_folders(cgroup_root, groups, name) for name in ("memory", "cpu"))
    memory = _memory(v1_memory_folders, *_V1_MEMORY) if v1_memory_folders else _memory(v2_folders, *_V2_MEMORY)
    if v1_cpu_folders:
        quota_files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        cores, group = _tightest(v1_cpu_folders, lambda folder: _cores(*(_text(folder / name) for name in quota_files)))
    else:
        cores, group = _tightest(v2_folders, lambda folder: _cores(*_text(folder / "cpu.max").split()[:2]))
    cpu_time = _number(group / "cpuacct.usage") if v1_cpu_folders else _field(group / "cpu.stat", "usage_usec")
    used_seconds = None if cores is None or cpu_time is None else cpu_time / (1e9 if v1_cpu_folders else 1e6)
    return CgroupLimits(memory_bytes=memory[0], memory_used_bytes=memory[1], cores=cores, cpu_used_seconds=used_seconds)


_V2_MEMORY = ("memory.max", "memory.current", "inactive_file")
_V1_MEMORY = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
T = TypeVar("T", int, float)


def _process_groups(root: Path) -> dict[str, str]:
    """Return the path of this process's group by the controllers of its hierarchy (`cpu,cpuacct`; '' in version 2)."""
    paths: dict[str, str] = {}
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, controllers_and_path = line.partition(":")
        controllers, _, path = controllers_and_path.partition(":")
        paths[controllers] = path
    return paths


def _v1_folders(mount: Path, groups: dict[str, str], controller: str) -> list[Path]:
    """Return the folders of a controller in version 1; empty if version 1 does not have it."""
    for hierarchy, group_path in groups.items():
        if controller in hierarchy.split(","):
            # It is mounted as `cpu,cpuacct`, and on most systems also as `cpu` and `cpuacct`.
            return _upwards(mount / hierarchy, group_path) + _upwards(mount / controller, group_path)
    return []


def _upwards(mount: Path, group: str) -> list[Path]:
    """Return the folders of a group and of those above it. Inside a container some of them do not exist."""
    path = PurePosixPath("/", group)
    return [mount.joinpath(*ancestor.parts[1:]) for ancestor in (path, *path.parents)]


def _tightest(folders: list[Path], limit_in: Callable[[Path], T | None]) -> tuple[T | None, Path]:
    """Return the lowest limit and the folder that has it."""
    limits_and_folders = [(limit, folder) for folder in folders if (limit := limit_in(folder)) is not None]
    return min(limits_and_folders, key=lambda pair: pair[0]) if limits_and_folders else (None, Path())


def _memory(folders: list[Path], limit_file: str, usage_file: str, cache_field: str) -> tuple[int | None, int | None]:
    def limit_in(folder: Path) -> int | None:
        limit_bytes = _number(folder / limit_file)
        return None if limit_bytes is None or limit_bytes >= _NO_LIMIT_BYTES else limit_bytes

    limit_bytes, folder = _tightest(folders, limit_in)
    if limit_bytes is None or (used_bytes := _number(folder / usage_file)) is None:
        return limit_bytes, None
    return limit_bytes, max(used_bytes - int(_field(folder / "memory.stat", cache_field) or 0), 0)


def _cores(quota_microseconds: str = "", period_microseconds: str = "") -> float | None:
    try:
        return int(quota_microseconds) / int(period_microseconds) if int(quota_microseconds) > 0 else None
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


@dataclass(frozen=True, slots=True)
class MemoryLeft:
    """Memory that is left before the kernel kills a process. `where` is the machine or its container, whichever has
    less left; the bytes are its own. Free swap counts only for the machine."""

    left_bytes: int
    total_bytes: int
    where: str
    swap_used_bytes: int = 0
    process_bytes: int = 0


def memory_left(root: Path = Path("/")) -> MemoryLeft:
    """Return the memory that is left now, in less than a millisecond. `root` contains /proc and /sys.

    A control group counts if less is left of its limit than of the machine. Raises OSError or psutil.Error."""
    memory, limits, swap_bytes = psutil.virtual_memory(), read_limits(root), _swap(root)
    left_bytes, total_bytes, where = memory.available + swap_bytes.get("SwapFree", 0), memory.total, "the machine"
    if limits.memory_bytes is not None and (container_left_bytes := limits.memory_left_bytes or 0) < left_bytes:
        left_bytes, total_bytes, where = container_left_bytes, limits.memory_bytes, "the container"
    swap_used_bytes = swap_bytes.get("SwapTotal", 0) - swap_bytes.get("SwapFree", 0)
    return MemoryLeft(left_bytes, total_bytes, where, swap_used_bytes, psutil.Process().memory_info().rss)


def _swap(root: Path) -> dict[str, int]:
    """Return the bytes of SwapTotal and SwapFree in /proc/meminfo. psutil would warn about missing counters."""
    sizes = {}
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    for line in lines:
        name, _, value = line.partition(":")
        kibibytes = value.split()[:1]
        if name in ("SwapTotal", "SwapFree") and kibibytes and kibibytes[0].isdigit():
            sizes[name] = int(kibibytes[0]) * 1024
    return sizes
