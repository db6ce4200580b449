"""Whether the machine's memory will run out while a run trains: a trend over two minutes, not a single reading."""

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
# The last of them, and all: what has fallen for 40 s, and what falls in steps.
_FEWEST_READINGS, _READINGS = 8, 24
# Where more than this is left, a trend may be a cache that fills or a process that starts.
_LOW_SHARE, _NEARLY_NONE_SHARE = 0.25, 0.02
_SOON_SECONDS = 600.0
# Parts of the readings, and of the whole fall what each has to have: one step down lies in two of them at the most.
_PARTS, _STEADY_SHARE = 4, 0.15


@dataclass(frozen=True, slots=True)
class _Reading:
    seconds: float
    step: int
    memory: MemoryLeft


class HostMemoryWatch:
    """`look(step)` between two steps: it reads every five seconds, and is a question of the time otherwise."""

    def __init__(self, read: Callable[[], MemoryLeft] = memory_left, now: Callable[[], float] = monotonic) -> None:
        self._read, self._now = read, now
        self._readings: deque[_Reading] = deque(maxlen=_READINGS)
        self._next_seconds = 0.0
        self._told_bytes: int | None = None

    def look(self, step: int) -> str:
        """A sentence where memory will run out soon; empty where not, and where this trend was told before."""
        seconds = self._now()
        if seconds < self._next_seconds:
            return ""
        self._next_seconds = seconds + _PERIOD_SECONDS
        with suppress(*UNREADABLE):
            self._readings.append(_Reading(seconds, step, self._read()))
            return self._warning()
        return ""

    def _warning(self) -> str:
        memory = self._readings[-1].memory
        left = memory.left_bytes
        if self._told_bytes is not None and left > 2 * self._told_bytes:
            self._told_bytes = None
        readings = list(self._readings)
        found = [self._seconds_left_by(readings[-count:]) for count in (_FEWEST_READINGS, _READINGS)]
        seconds = min((seconds for seconds in found if seconds is not None), default=None)
        soon = seconds is not None and seconds < _SOON_SECONDS and left < _LOW_SHARE * memory.total_bytes
        if not soon and left >= _NEARLY_NONE_SHARE * memory.total_bytes:
            return ""
        if self._told_bytes is not None and 2 * left > self._told_bytes:
            return ""
        self._told_bytes = left
        return self._sentence(seconds)

    def _seconds_left_by(self, readings: Sequence[_Reading]) -> float | None:
        """Return the seconds until nothing is left, as memory falls in these readings; None if it does not steadily."""
        if len(readings) < _FEWEST_READINGS:
            return None
        size = len(readings) // _PARTS
        parts = [readings[len(readings) - size * (part + 1) :][:size] for part in range(_PARTS)]
        left = [fmean(one.memory.left_bytes for one in part) for part in parts]
        falls = [earlier - later for later, earlier in pairwise(left)]
        if min(falls) < _STEADY_SHARE * max(sum(falls), 1):
            return None
        between = fmean(one.seconds for one in parts[0]) - fmean(one.seconds for one in parts[-1])
        return readings[-1].memory.left_bytes / sum(falls) * between

    def _sentence(self, seconds_left: float | None) -> str:
        """`memory is running out: 310 MiB of the 16 GiB of the machine are left, falling by 95 MiB per minute, ...`."""
        first, last = self._readings[0], self._readings[-1]
        memory = last.memory
        left = f"{format_bytes(memory.left_bytes)} of the {format_bytes(memory.total_bytes)} of {memory.where} are left"
        words = [f"memory is running out: {left}"]
        if seconds_left is not None:
            a_second = memory.left_bytes / max(seconds_left, 1e-9)
            steps = (last.step - first.step) / (last.seconds - first.seconds)
            a_step = f" ({format_bytes(a_second / steps)} per step)" if steps > 0 else ""
            used_up = f"used up in {format_seconds(seconds_left)}"
            words.append(f"falling by {format_bytes(60 * a_second)} per minute{a_step}, and will be {used_up}")
        words.append(f"this run uses {format_bytes(memory.process_bytes)}")
        grown = memory.process_bytes - first.memory.process_bytes
        if grown > 0 and seconds_left is not None:
            words[-1] += f", {format_bytes(grown)} more than {format_seconds(last.seconds - first.seconds)} ago"
        if memory.swap_used_bytes:
            words.append(f"swap in use {format_bytes(memory.swap_used_bytes)}")
        return "; ".join([", ".join(words[:2]), *words[2:]])
