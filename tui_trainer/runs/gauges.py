"""What readings of a run add up to: means of what varies, peaks of what has to fit."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from tui_trainer.runs.events import GaugesRead


@dataclass(slots=True)
class Mean:
    """Of the values that were reported; None without one."""

    total: float = 0.0
    count: int = 0

    def add(self, *values: float | None) -> None:
        known = _reported(values)
        self.total += sum(known)
        self.count += len(known)

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(slots=True)
class GaugeSummary:
    """Several readings as one. None: not reported by any of them.

    Of several cards, memory and power are those of all together; the temperature is that of the hottest.
    """

    readings: int = 0
    utilization_share: Mean = field(default_factory=Mean)
    power_watts: Mean = field(default_factory=Mean)
    busy_cores: Mean = field(default_factory=Mean)
    usable_cores: float | None = None
    peak_gpu_memory_bytes: float | None = None
    gpu_memory_bytes: float | None = None
    peak_temperature_celsius: float | None = None
    peak_process_memory_bytes: float | None = None

    def add(self, reading: GaugesRead) -> None:
        """Takes one more reading in; figures that are not finite count as not reported."""
        gpus = reading.gpus
        self.readings += 1
        self.utilization_share.add(*(gpu.utilization_share for gpu in gpus))
        self.power_watts.add(_sum(gpu.power_watts for gpu in gpus))
        cores, share = _sum([reading.usable_cores]), _sum([reading.process_cpu_share])
        if cores is not None and share is not None:
            self.busy_cores.add(share * cores)
            self.usable_cores = cores
        self.peak_gpu_memory_bytes = _highest(self.peak_gpu_memory_bytes, _sum(gpu.memory_used_bytes for gpu in gpus))
        self.gpu_memory_bytes = _highest(self.gpu_memory_bytes, _sum(gpu.memory_bytes for gpu in gpus))
        self.peak_temperature_celsius = _highest(
            self.peak_temperature_celsius, *(gpu.temperature_celsius for gpu in gpus)
        )
        self.peak_process_memory_bytes = _highest(self.peak_process_memory_bytes, reading.process_memory_bytes)


def _reported(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]


def _sum(values: Iterable[float | None]) -> float | None:
    known = _reported(values)
    return sum(known) if known else None


def _highest(*values: float | None) -> float | None:
    return max(_reported(values), default=None)
