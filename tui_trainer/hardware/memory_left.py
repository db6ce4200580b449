"""How much memory the machine, or the container, still has before the kernel ends a process."""

from dataclasses import dataclass
from pathlib import Path

import psutil

from tui_trainer.hardware.cgroup import read_limits


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
