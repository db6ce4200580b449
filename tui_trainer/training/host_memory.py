"""Warn if the machine's memory will run out during training, judged by the trend over the last two minutes."""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from time import monotonic

from tui_trainer.hardware.cgroup import MemoryLeft, memory_left
from tui_trainer.hardware.gauges import UNREADABLE
from tui_trainer.units import format_bytes, format_seconds

HINT = "end other programs, or set dataloader.num_workers = 1 in a new run"
_PERIOD_SECONDS = 5.0
# Trends are taken over the last readings (a fall for 40 s) and over all of them (a fall in steps).
_FEWEST_READINGS, _READINGS = 8, 24
# If more memory than this share is left, the trend may be a cache that fills or a process that starts.
_LOW_SHARE, _NEARLY_NONE_SHARE = 0.25, 0.02
_SOON_SECONDS = 600.0
# A fall is steady if each part of the readings has at least this share of it. A sudden fall affects two parts at most.
_PARTS, _STEADY_SHARE = 4, 0.15


@dataclass(frozen=True, slots=True)
class _Reading:
    seconds: float
    step: int
    memory: MemoryLeft


class HostMemoryWatch:
    """Watch on the machine's free memory. Call `check_memory` after each step: it reads every five seconds."""

    def __init__(self, read: Callable[[], MemoryLeft] = memory_left, now: Callable[[], float] = monotonic) -> None:
        self._read, self._now = read, now
        self._readings: deque[_Reading] = deque(maxlen=_READINGS)
        self._next_seconds = 0.0
        self._warned_bytes: int | None = None

    def check_memory(self, step: int) -> str:
        """Return a warning if memory will run out soon; empty if not, or if the same trend was already reported."""
        now_seconds = self._now()
        if now_seconds < self._next_seconds:
            return ""
        self._next_seconds = now_seconds + _PERIOD_SECONDS
        with suppress(*UNREADABLE):
            self._readings.append(_Reading(now_seconds, step, self._read()))
            return self._warning()
        return ""

    def _warning(self) -> str:
        memory = self._readings[-1].memory
        left_bytes = memory.left_bytes
        if self._warned_bytes is not None and left_bytes > 2 * self._warned_bytes:
            self._warned_bytes = None
        readings = list(self._readings)
        estimates = [self._seconds_left_by(readings[-count:]) for count in (_FEWEST_READINGS, _READINGS)]
        seconds = min((seconds for seconds in estimates if seconds is not None), default=None)
        is_soon = seconds is not None and seconds < _SOON_SECONDS and left_bytes < _LOW_SHARE * memory.total_bytes
        if not is_soon and left_bytes >= _NEARLY_NONE_SHARE * memory.total_bytes:
            return ""
        if self._warned_bytes is not None and 2 * left_bytes > self._warned_bytes:
            return ""
        self._warned_bytes = left_bytes
        return self._sentence(seconds)

    def _seconds_left_by(self, readings: Sequence[_Reading]) -> float | None:
        """Return the seconds until no memory is left if the trend continues; None if memory does not fall steadily."""
        if len(readings) < _FEWEST_READINGS:
            return None
        part_size = len(readings) // _PARTS
        parts = [readings[len(readings) - part_size * (part + 1) :][:part_size] for part in range(_PARTS)]
        left_bytes = [fmean(reading.memory.left_bytes for reading in part) for part in parts]
        fallen_bytes = [earlier_bytes - later_bytes for later_bytes, earlier_bytes in pairwise(left_bytes)]
        if min(fallen_bytes) < _STEADY_SHARE * max(sum(fallen_bytes), 1):
            return None
        part_seconds = fmean(reading.seconds for reading in parts[0]) - fmean(reading.seconds for reading in parts[-1])
        return readings[-1].memory.left_bytes / sum(fallen_bytes) * part_seconds

    def _sentence(self, seconds_left: float | None) -> str:
        """Return a warning like `memory is running out: 310 MiB of the 16 GiB of the machine are left, falling ...`."""
        start, end = self._readings[0], self._readings[-1]
        memory = end.memory
        left = f"{format_bytes(memory.left_bytes)} of the {format_bytes(memory.total_bytes)} of {memory.where} are left"
        phrases = [f"memory is running out: {left}"]
        if seconds_left is not None:
            falling = memory.left_bytes / max(seconds_left, 1e-9)
            steps_per_second = (end.step - start.step) / (end.seconds - start.seconds)
            step_words = f" ({format_bytes(falling / steps_per_second)} per step)" if steps_per_second > 0 else ""
            end_words = f"used up in {format_seconds(seconds_left)}"
            phrases.append(f"falling by {format_bytes(60 * falling)} per minute{step_words}, and will be {end_words}")
        phrases.append(f"this run uses {format_bytes(memory.process_bytes)}")
        grown_bytes = memory.process_bytes - start.memory.process_bytes
        if grown_bytes > 0 and seconds_left is not None:
            phrases[-1] += f", {format_bytes(grown_bytes)} more than {format_seconds(end.seconds - start.seconds)} ago"
        if memory.swap_used_bytes:
            phrases.append(f"swap in use {format_bytes(memory.swap_used_bytes)}")
        return "; ".join([", ".join(phrases[:2]), *phrases[2:]])
