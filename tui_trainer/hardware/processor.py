"""The processor: its name, its cores, and the instruction sets that decide what it computes natively."""

import os
import platform
from collections.abc import Iterable
from pathlib import Path

import psutil

from tui_trainer.hardware.cgroup import Limits

_AVX = {"sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16"}
_AMX = {"amx_tile", "amx_int8", "amx_bf16", "amx_fp16"}
_ARM = {"asimd", "asimdhp", "asimddp", "bf16", "i8mm", "sve", "sve2", "svebf16"}
_RELEVANT = frozenset(_AVX | _AMX | _ARM)
BF16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})


def read_cpuinfo(root: Path = Path("/")) -> tuple[str, frozenset[str]]:
    """Name and relevant instruction sets, from /proc/cpuinfo; what the platform says elsewhere."""
    name, flags = "", frozenset[str]()
    try:
        with (root / "proc/cpuinfo").open(errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    name = name or value.strip()
                elif key.strip() in ("flags", "Features"):
                    flags = frozenset(value.split()) & _RELEVANT
                    break
    except OSError:
        pass
    return name or platform.processor() or platform.machine(), flags


def training_threads(usable_cores: int) -> int:
    """One a core; from four cores on one core is left for everything else."""
    return usable_cores - 1 if usable_cores >= 4 else usable_cores


def usable_cores(limits: Limits, root: Path = Path("/")) -> int:
    """By affinity, the container's quota and without hyper-threads, which only get in each other's way."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores, logical = _distinct_cores(allowed, root), psutil.cpu_count(logical=True)
    if not cores:
        cores = (psutil.cpu_count(logical=False) if len(allowed) == logical else None) or len(allowed)
    return max(1, min(cores, int(limits.cores)) if limits.cores else cores)


def _distinct_cores(allowed: Iterable[int], root: Path) -> int | None:
    """How many cores these logical processors belong to; None where the kernel does not say.

    Source: the kernel's Documentation/admin-guide/cputopology.rst: threads of one core have the same list of siblings.
    """
    cpus = root / "sys/devices/system/cpu"
    try:
        return len({(cpus / f"cpu{index}/topology/thread_siblings_list").read_text().strip() for index in allowed})
    except OSError:
        return None
