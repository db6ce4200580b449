"""What the steps and the readings of a run add up to, while its journal is read."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final

from tui_trainer.runs.events import BetweenSteps, GaugesRead, StepDone


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


_MARK_STEPS: Final = 100
_MARK_SECONDS: Final = 20.0
_MARKS: Final = 6


@dataclass(slots=True)
class StepSums:
    """Seconds of the parts of so many steps, and what the steps took in."""

    steps: int = 0
    data_seconds: float = 0.0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    step_seconds: float = 0.0
    input_tokens: int = 0
    positions: int = 0
    samples: int = 0

    def add(self, done: StepDone) -> None:
        self.steps += 1
        self.data_seconds += done.data_seconds
        self.forward_seconds += done.forward_seconds
        self.backward_seconds += done.backward_seconds
        self.optimizer_seconds += done.optimizer_seconds
        self.step_seconds += done.step_seconds
        self.input_tokens += done.input_tokens
        self.positions += done.positions
        self.samples += done.samples

    def since(self, before: "StepSums") -> "StepSums":
        """What came after an earlier state of these sums."""
        names = [item.name for item in fields(self)]
        return StepSums(**{name: getattr(self, name) - getattr(before, name) for name in names})


@dataclass(slots=True)
class StepTimes:
    """Of one start of a run: the whole of it, and the last few hundred steps."""

    whole: StepSums = field(default_factory=StepSums)
    between_steps: int = 0
    journal_seconds: float = 0.0
    empty_cache_seconds: float = 0.0
    other_seconds: float = 0.0
    _marks: deque[StepSums] = field(default_factory=lambda: deque([StepSums()], maxlen=_MARKS))

    def add(self, done: StepDone) -> None:
        whole, last = self.whole, self._marks[-1]
        whole.add(done)
        if whole.steps - last.steps >= _MARK_STEPS and whole.step_seconds - last.step_seconds >= _MARK_SECONDS:
            self._marks.append(replace(whole))

    def add_between(self, event: BetweenSteps) -> None:
        self.between_steps += event.steps
        self.journal_seconds += event.journal_seconds
        self.empty_cache_seconds += event.empty_cache_seconds
        self.other_seconds += event.other_seconds

    @property
    def recent(self) -> StepSums:
        """The last 500 steps or more, and 100 seconds or more; all of them while there are fewer."""
        return self.whole.since(self._marks[0])


def spread_ends(count: int, most: int) -> list[int]:
    """Where up to `most` equal parts of `count` things end, the last at `count`."""
    parts = min(count, most)
    return [count * (place + 1) // parts for place in range(parts)]


def means(xs: Sequence[float], values: Sequence[float], most: int) -> list[tuple[float, float]]:
    """Up to `most` means of values that follow each other, each at the place of the last of them; of finite ones."""
    points, start = [], 0
    for end in spread_ends(min(len(xs), len(values)), most):
        finite = [value for value in values[start:end] if math.isfinite(value)]
        if finite:
            points.append((xs[end - 1], sum(finite) / len(finite)))
        start = end
    return points
