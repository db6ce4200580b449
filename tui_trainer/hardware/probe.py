"""Read the facts of this machine from files and counters. Nothing is started, and torch is not imported."""

import platform
import socket
from dataclasses import replace
from functools import cache
from pathlib import Path

import psutil

from tui_trainer.hardware import libraries, nvml, processor, storage
from tui_trainer.hardware.cgroup import CgroupLimits, read_limits
from tui_trainer.hardware.facts import Hardware


@cache
def probe() -> Hardware:
    """Return the facts of this machine, read once per process and again by `probe_again`."""
    return read_hardware()


def probe_again() -> Hardware:
    """Read the facts of this machine again, for the whole process."""
    probe.cache_clear()
    return probe()


def read_hardware() -> Hardware:
    """Read the facts of this machine. A driver that was missing before is looked for again."""
    memory, limits = psutil.virtual_memory(), read_limits()
    limit_bytes = limits.memory_bytes
    cpu_name, cpu_flags = processor.read_cpuinfo()
    nvml.session.cache_clear()
    driver, gpus = nvml.read_cards(nvml.session())
    library_versions = libraries.read_versions()
    return Hardware(
        cpu_name=cpu_name,
        usable_cores=processor.usable_cores(limits),
        memory_bytes=memory.total if limit_bytes is None else min(memory.total, limit_bytes),
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
        libraries=library_versions,
        torch_cuda=libraries.torch_cuda(library_versions["torch"]),
        places=storage.read_places(),
        bytecode_obstacle=libraries.bytecode_obstacle(),
        nvidia_pci_devices=nvml.nvidia_pci_devices(),
    )


def with_memory_now(hardware: Hardware) -> Hardware:
    """Return the facts with the currently free memory of the machine and its GPUs, and the load of other processes.

    Reading takes some milliseconds. If the NVIDIA driver hangs, this waits until the deadline of the query."""
    gpus, load_of_others = nvml.with_memory_now(hardware.gpus, nvml.session()), processor.load_of_others()
    return replace(hardware, memory_available_bytes=memory_available_now(), gpus=gpus, load_of_others=load_of_others)


def memory_available_now() -> int:
    """Return the available bytes of memory. This is fast enough to be called for each frame of a screen."""
    return _available_bytes(psutil.virtual_memory().available, read_limits())


def _available_bytes(machine_bytes: int, limits: CgroupLimits) -> int:
    """Return the bytes available without swapping: those of the machine, within the container's limit."""
    container_bytes = limits.memory_left_bytes
    return machine_bytes if container_bytes is None else min(machine_bytes, container_bytes)


def disk_free_bytes(folder: Path) -> int | None:
    """Return the bytes free for this user on the disk of `folder`, which need not exist yet."""
    return storage.read_place("", folder).free_bytes
