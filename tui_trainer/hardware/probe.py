"""Looks at the machine. Reads only files and counters; starts nothing and loads no torch."""

import platform
import socket
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil

from tui_trainer.hardware import libraries, nvml, processor
from tui_trainer.hardware import nvml as signs
from tui_trainer.hardware import storage as places
from tui_trainer.hardware.cgroup import CgroupLimits, read_limits
from tui_trainer.hardware.facts import Hardware


@cache
def probe() -> Hardware:
    """The facts of this machine, read once in a process, and again by `probe_again`."""
    return look()


def probe_again() -> Hardware:
    """The facts of this machine now, for everybody in this process."""
    probe.cache_clear()
    return probe()


def look() -> Hardware:
    """The facts of this machine now; a driver that was missing before is looked for again."""
    memory, limits = psutil.virtual_memory(), read_limits()
    limit = limits.memory_bytes
    cpu_name, cpu_flags = processor.read_cpuinfo()
    nvml.session.cache_clear()
    driver, gpus = nvml.read_cards(nvml.session())
    versions = libraries.read_versions()
    return Hardware(
        cpu_name=cpu_name,
        usable_cores=processor.usable_cores(limits),
        memory_bytes=memory.total if limit is None else min(memory.total, limit),
        memory_available_bytes=_available_bytes(memory.available, limits),
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
        bytecode_obstacle=libraries.bytecode_obstacle(),
        nvidia_pci_devices=signs.nvidia_pci_devices(),
    )


def with_memory_now(hardware: Hardware) -> Hardware:
    """The same facts with the memory that is free now, of the machine and of its cards, and how busy others keep it.

    The machine's take some milliseconds; a driver that hangs is waited for.
    """
    gpus, load = nvml.with_memory_now(hardware.gpus, nvml.session()), processor.load_of_others()
    return replace(hardware, memory_available_bytes=memory_available_now(), gpus=gpus, load_of_others=load)


def memory_available_now() -> int:
    """Bytes of the machine's memory that can be had now. Quick enough to be asked for each picture."""
    return _available_bytes(psutil.virtual_memory().available, read_limits())


def _available_bytes(of_machine: int, limits: CgroupLimits) -> int:
    """What can be had without swapping: the machine's, and no more than the container has left."""
    left = limits.memory_left_bytes
    return of_machine if left is None else min(of_machine, left)


def disk_free_bytes(folder: Path) -> int | None:
    """Free bytes for this user where `folder` is, or will be."""
    return places.read_place("", folder).free_bytes
