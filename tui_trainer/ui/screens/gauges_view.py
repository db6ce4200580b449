"""The machine's gauges: a bar with its target drawn into it, the number, and the last minute as a small curve."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tui_trainer.hardware.gauges import Gauges, GpuGauge
from tui_trainer.ui.chart.sparkline import sparkline
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.spans import Line, fit, width_of
from tui_trainer.units import GIB

Band = tuple[float, float]
Sparks = Mapping[str, Sequence[float]]

# Target metrics of seeds/D-ner-sentiment-notebook.md: GPU 75-95 %, its memory 80-95 %, CPU 50-80 %.
GPU_TARGET: Final[Band] = (0.75, 0.95)
GPU_MEMORY_TARGET: Final[Band] = (0.80, 0.95)
CPU_TARGET: Final[Band] = (0.50, 0.80)
MOST_CARDS: Final = 4
HALF_WIDTH: Final = 39
_LABEL: Final = 9
_BAR: Final = 10
_WIDE_BAR: Final = 14
_TAIL: Final = 13
_TRAIL_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Gauge:
    """One bar. `share` is 0 to 1 or None; `tail` stands behind it, `spark` names its curve."""

    label: str
    share: float | None
    band: Band | None = None
    tail: str = ""
    spark: str = ""


class GaugeTrail:
    """The last minute of each gauge, as means over equal parts that begin at fixed times: they do not slide."""

    def __init__(self, parts: int = 12) -> None:
        self._part_seconds = _TRAIL_SECONDS / parts
        self._parts = parts
        self._sums: dict[str, deque[tuple[int, float, int]]] = {}

    def take(self, gauges: Gauges, at_seconds: float) -> None:
        """One look, at a time of a monotonic clock. What is not reported leaves a gap."""
        part = math.floor(at_seconds / self._part_seconds)
        for gauge in gauges_of(gauges):
            values = self._sums.setdefault(gauge.spark, deque(maxlen=self._parts))
            if gauge.share is None or not gauge.spark:
                continue
            if values and values[-1][0] == part:
                _, total, count = values.pop()
                values.append((part, total + gauge.share, count + 1))
            else:
                values.append((part, gauge.share, 1))

    def sparks(self, at_seconds: float) -> dict[str, list[float]]:
        """Shares by gauge, oldest first, one for each part that is over or has begun; NaN where none was reported."""
        newest = math.floor(at_seconds / self._part_seconds)
        parts = range(newest - self._parts + 1, newest + 1)
        means = {name: {part: total / count for part, total, count in sums} for name, sums in self._sums.items()}
        return {name: [found.get(part, math.nan) for part in parts] for name, found in means.items()}


def gauges_of(gauges: Gauges) -> Iterator[Gauge]:
    """The cards first, then CPU, memory and disk."""
    for card in gauges.gpus[:MOST_CARDS]:
        yield from _card(card)
    yield Gauge("CPU", gauges.cpu_share, CPU_TARGET, spark="cpu")
    memory = _share(gauges.memory_used_bytes, gauges.memory_bytes)
    yield Gauge("RAM", memory, tail=_amount(gauges.memory_used_bytes, gauges.memory_bytes), spark="memory")
    disk = _share(gauges.disk_used_bytes, gauges.disk_bytes)
    yield Gauge("disk", disk, tail=_free(gauges.disk_used_bytes, gauges.disk_bytes))


def _card(card: GpuGauge) -> Iterator[Gauge]:
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
    return (
        f"{used / GIB:.0f}/{whole / GIB:.0f} GiB" if whole >= 100 * GIB else f"{used / GIB:.1f}/{whole / GIB:.1f} GiB"
    )


def target_bar(share: float | None, width: int, band: Band | None, glyphs: Glyphs) -> Line:
    """A bar in which the part of the target that is not reached yet is shaded. None: `--`."""
    drawn = bar(share, width, glyphs)
    if share is None:
        return [(drawn, "dim")]
    filled = width - drawn.count(glyphs.bar_empty)
    if band is None:
        return [(drawn[:filled], "accent"), (drawn[filled:], "dim")]
    begin, end = (round(edge * width) for edge in band)
    shade = "=" if glyphs.ascii else "░"
    rest = "".join(shade if begin <= cell < end else glyphs.bar_empty for cell in range(filled, width))
    return [(drawn[:filled], "good" if band[0] <= share <= band[1] else "accent"), (rest, "dim")]


def gauge_line(gauge: Gauge, sparks: Sparks, width: int, glyphs: Glyphs) -> Line:
    """`CPU      ████░░░·· 47 %  ▁▂▃▃▂▂` in `width` cells; above 50 cells with both the curve and the amount."""
    wide = width > HALF_WIDTH + _TAIL
    percent = "  --" if gauge.share is None else f"{gauge.share:4.0%}"[:-1].rjust(3) + " %"
    inside = gauge.share is not None and gauge.band is not None and gauge.band[0] <= gauge.share <= gauge.band[1]
    line: Line = [(gauge.label.ljust(_LABEL), "text")]
    line += target_bar(gauge.share, _WIDE_BAR if wide else _BAR, gauge.band, glyphs)
    line.append((f" {percent:>5} ", "good" if inside else "text"))
    values = sparks.get(gauge.spark, ())
    curve = sparkline(values, _TAIL - 1, glyphs, low=0.0, high=1.0).ljust(_TAIL)
    if wide:
        room = width - width_of(line) - _TAIL
        line += [(curve, "chart_raw"), (f" {gauge.tail}"[:room], "dim")]
    elif gauge.tail and gauge.spark != "cpu":
        line.append((gauge.tail, "dim"))
    else:
        line.append((curve, "chart_raw"))
    return fit(line, width, glyphs.ellipsis)


def gauge_lines(gauges: Gauges, sparks: Sparks, width: int, glyphs: Glyphs) -> list[Line]:
    """One gauge on a line, or two where the width is that of two."""
    drawn = list(gauges_of(gauges))
    if width < 2 * HALF_WIDTH:
        return [gauge_line(gauge, sparks, width, glyphs) for gauge in drawn]
    rows = [drawn[begin : begin + 2] for begin in range(0, len(drawn), 2)]
    left = width - HALF_WIDTH
    lines: list[Line] = []
    for first, *rest in rows:
        second = gauge_line(rest[0], sparks, HALF_WIDTH, glyphs) if rest else []
        lines.append(fit([*gauge_line(first, sparks, left - 2, glyphs), ("  ", "text"), *second], width))
    return lines


def target_words(glyphs: Glyphs) -> str:
    """What the shaded part of the bars means."""
    return "= target" if glyphs.ascii else "░ target"
