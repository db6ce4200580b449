"""Looks at the machine. Reads only files and counters; starts nothing and loads no torch."""

from __future__ import annotations

import platform
import socket
from functools import cache
from pathlib import Path

import psutil

from tui_trainer.hardware import libraries, nvml, places, processor, signs
from tui_trainer.hardware.cgroup import read_limits
from tui_trainer.hardware.facts import Hardware


@cache
def probe() -> Hardware:
    """The facts of this machine, read once in a process."""
    return look()


def look() -> Hardware:
    """The facts of this machine now."""
    memory, limits = psutil.virtual_memory(), read_limits()
    limit, used = limits.memory_bytes, limits.memory_used_bytes or 0
    cpu_name, cpu_flags = processor.read_cpuinfo()
    driver, gpus = nvml.read_cards(nvml.session())
    versions = libraries.read_versions()
    return Hardware(
        cpu_name=cpu_name,
        usable_cores=processor.usable_cores(limits),
        memory_bytes=memory.total if limit is None else min(memory.total, limit),
        memory_available_bytes=memory.available if limit is None else min(memory.available, max(limit - used, 0)),
        platform=platform.platform(),
        python_version=platform.python_version(),
        host=socket.gethostname(),
        logical_cores=psutil.cpu_count(logical=True),
        physical_cores=psutil.cpu_count(logical=False),
        machine_memory_bytes=memory.total,
        cpu_flags=cpu_flags,
        gpus=gpus,
        driver=driver,
        libraries=versions,
        torch_cuda=libraries.torch_cuda(versions["torch"]),
        places=places.read_places(),
        nvidia_pci_devices=signs.nvidia_pci_devices(),
    )


def disk_free_bytes(folder: Path) -> int | None:
    """Free bytes for this user where `folder` is, or will be."""
    try:
        return psutil.disk_usage(str(places.nearest_existing(folder))).free
    except OSError:
        return None
