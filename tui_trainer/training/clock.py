"""Time on the device that computes: marks that are set without waiting, and read when a group of steps is written."""

from time import perf_counter
from typing import Any

import torch


class Clock:
    """On a GPU a mark is an event in its queue; on the CPU, which is done when a call returns, it is the time."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"

    def mark(self) -> Any:
        if not self._on_gpu:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event


def seconds_between(before: Any, after: Any) -> float:
    """Seconds from one mark to another. Of a GPU's marks the later one must be over: the caller has waited for it."""
    if isinstance(before, float):
        return float(after - before)
    return float(before.elapsed_time(after)) / 1000
