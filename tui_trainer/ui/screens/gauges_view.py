"""The machine's gauges and their last minutes."""

import math
from collections import deque
from collections.abc import Iterator
from itertools import zip_longest
from typing import Final

from tui_trainer.hardware.gauges import Gauges, GpuGauge
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, fit
from tui_trainer.ui.widgets.gauge import Band, Gauge, Sparks, gauge_line
from tui_trainer.units import GIB

# Target metrics of seeds/D-ner-sentiment-notebook.md: GPU 75-95 %, its memory 80-95 %, CPU 50-80 %.
GPU_TARGET: Final[Band] = (0.75, 0.95)
GPU_MEMORY_TARGET: Final[Band] = (0.80, 0.95)
CPU_TARGET: Final[Band] = (0.50, 0.80)
MOST_CARDS: Final = 4
HALF_WIDTH: Final = 39
TRAIL_MINUTES: Final = 5
"""How long the gauges of the Hardware screen are kept."""


class GaugeTrail:
    """The last seconds of each gauge, as means over equal parts that begin at fixed times: they do not slide."""

    def __init__(self, parts: int = 12, seconds: float = 60.0) -> None:
        self._part_seconds = seconds / parts
        self._parts = parts
        self._sums: dict[str, deque[tuple[int, float, int]]] = {}

    def take(self, gauges: Gauges, at_seconds: float) -> None:
        """One look, at a time of a monotonic clock. What is not reported leaves a gap."""
        part = math.floor(at_seconds / self._part_seconds)
        for gauge in gauges_of(gauges, len(gauges.gpus)):
            values = self._sums.setdefault(gauge.spark, deque(maxlen=self._parts))
            if gauge.share is not None and gauge.spark:
                _, total, count = values.pop() if values and values[-1][0] == part else (part, 0.0, 0)
                values.append((part, total + gauge.share, count + 1))

    def sparks(self, at_seconds: float) -> dict[str, list[float]]:
        """Shares by gauge, oldest first, one for each part that is over or has begun; NaN where none was reported."""
        newest = math.floor(at_seconds / self._part_seconds)
        parts = range(newest - self._parts + 1, newest + 1)
        means = {
            name: {part: round(total / count, 3) for part, total, count in sums} for name, sums in self._sums.items()
        }
        return {name: [found.get(part, math.nan) for part in parts] for name, found in means.items()}


def gauges_of(gauges: Gauges, most_cards: int = MOST_CARDS) -> Iterator[Gauge]:
    """The cards first, then CPU, memory and disk."""
    for card in gauges.gpus[:most_cards]:
        yield from card_gauges(card)
    yield Gauge("CPU", gauges.cpu_share, CPU_TARGET, spark="cpu")
    memory = _share(gauges.memory_used_bytes, gauges.memory_bytes)
    yield Gauge("RAM", memory, tail=_amount(gauges.memory_used_bytes, gauges.memory_bytes), spark="memory")
    disk = _share(gauges.disk_used_bytes, gauges.disk_bytes)
    yield Gauge("disk", disk, tail=_free(gauges.disk_used_bytes, gauges.disk_bytes))


def card_gauges(card: GpuGauge) -> Iterator[Gauge]:
    heat = "" if card.temperature_celsius is None else f"{card.temperature_celsius:3.0f} C"
    power = "" if card.power_watts is None else f"{card.power_watts:4.0f} W"
    tail = " ".join(filter(None, [heat, power]))
    memory = _share(card.memory_used_bytes, card.memory_bytes)
    amount = _amount(card.memory_used_bytes, card.memory_bytes)
    yield Gauge(f"GPU {card.index}", card.utilisation_share, GPU_TARGET, tail, f"gpu{card.index}")
    yield Gauge("  memory", memory, GPU_MEMORY_TARGET, amount, f"gpu{card.index} memory")


def _share(used: int | None, whole: int | None) -> float | None:
    return used / whole if used is not None and whole else None


def _free(used: int | None, whole: int | None) -> str:
    """`70 GiB free`: what is used includes room that this user cannot have, so it says little."""
    return "--" if used is None or whole is None else f"{(whole - used) / GIB:.0f} GiB free"


def _amount(used: int | None, whole: int | None) -> str:
    """`12.1/31.2 GiB`, 13 cells; `--` when not reported."""
    if used is None or whole is None:
        return "--"
    decimals = 0 if whole >= 100 * GIB else 1
    return f"{used / GIB:.{decimals}f}/{whole / GIB:.{decimals}f} GiB"


def gauge_lines(gauges: Gauges, sparks: Sparks, width: int, glyphs: Glyphs) -> list[Line]:
    """One gauge on a line, or two where the width is that of two."""
    drawn = list(gauges_of(gauges))
    if width < 2 * HALF_WIDTH:
        return [gauge_line(gauge, sparks, width, glyphs) for gauge in drawn]
    left = width - HALF_WIDTH
    lines: list[Line] = []
    for first, second in zip_longest(drawn[::2], drawn[1::2]):
        right = gauge_line(second, sparks, HALF_WIDTH, glyphs) if second else []
        lines.append(fit([*gauge_line(first, sparks, left - 2, glyphs), ("  ", "text"), *right], width))
    return lines


def target_words(glyphs: Glyphs) -> str:
    """What the shaded part of the bars means."""
    return f"{glyphs.target} target"
