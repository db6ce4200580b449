"""Looks at the machine. Reads only files and counters; starts nothing and loads no torch."""

from __future__ import annotations

import os
import platform
from functools import cache
from pathlib import Path

import psutil

from tui_trainer.hardware.facts import Hardware

_CGROUP = Path("/sys/fs/cgroup")


@cache
def probe() -> Hardware:
    """The facts of this machine, read once in a process."""
    memory = psutil.virtual_memory()
    limit, used = _cgroup_number("memory.max"), _cgroup_number("memory.current")
    available = memory.available if limit is None else min(memory.available, max(limit - (used or 0), 0))
    return Hardware(
        cpu_name=_cpu_name(),
        usable_cores=_usable_cores(),
        memory_bytes=memory.total if limit is None else min(memory.total, limit),
        memory_available_bytes=available,
        platform=platform.platform(),
        python_version=platform.python_version(),
    )


def disk_free_bytes(folder: Path) -> int | None:
    """Free bytes for this user where `folder` is, or will be."""
    folder = folder.absolute()
    try:
        while not folder.exists() and folder != folder.parent:
            folder = folder.parent
        return psutil.disk_usage(str(folder)).free
    except OSError:
        return None


def _usable_cores() -> int:
    """By affinity, the container's quota and without hyper-threads, which only get in each other's way."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    logical, physical = psutil.cpu_count(logical=True), psutil.cpu_count(logical=False)
    if logical and physical and allowed == logical:
        allowed = physical
    quota = _cpu_quota()
    return max(1, min(allowed, quota) if quota else allowed)


def _cpu_quota() -> int | None:
    """Whole cores of the container's CPU quota (cgroup v2 `cpu.max`), or None without one."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text().split()
        return None if quota == "max" else max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return None


def _cgroup_number(name: str) -> int | None:
    try:
        return int((_CGROUP / name).read_text())
    except (OSError, ValueError):
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
