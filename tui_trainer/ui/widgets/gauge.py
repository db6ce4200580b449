"""The machine's gauges. A gauge has a bar that also shows the target range, a number, and a curve of recent values."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, zip_longest
from typing import Final

from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.ui.spans import Glyphs, Line, bar, fit, sparkline, width_of
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.units import GIB

Band = tuple[float, float]
"""Lowest and highest share of a target range."""
Sparks = Mapping[str, Sequence[float]]
"""Shares of the last minutes by name of the curve, the oldest first."""

_LABEL: Final = 9
_BAR: Final = 10
_WIDE_BAR: Final = 14
_VALUE_TEXT_CELLS: Final = 13
_CURVE_CELLS: Final = 12
_BOTH_ABOVE: Final = 52
_ANY: Final = 10_000
# Target metrics of seeds/D-ner-sentiment-notebook.md: GPU 75-95 %, its memory 80-95 %, CPU 50-80 %.
GPU_TARGET: Final[Band] = (0.75, 0.95)
GPU_MEMORY_TARGET: Final[Band] = (0.80, 0.95)
CPU_TARGET: Final[Band] = (0.50, 0.80)
MOST_CARDS: Final = 4
HALF_WIDTH: Final = 39
TRAIL_MINUTES: Final = 5
"""Period that the curves on the Hardware page cover."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One gauge. `share` is 0 to 1, None if unknown; `tail` is a text behind the bar, `curve_name` the name of its
    curve."""

    label: str
    share: float | None
    band: Band | None = None
    tail: str = ""
    curve_name: str = ""


def target_bar(share: float | None, width: int, band: Band | None, glyphs: Glyphs) -> Line:
    """Return a bar for a share of 0 to 1. The part of the target range above the share is shaded. None: `--`."""
    bar_text = bar(share, width, glyphs)
    if share is None:
        return [(bar_text, "dim")]
    filled_cells = width - bar_text.count(glyphs.bar_empty)
    if band is None:
        return [(bar_text[:filled_cells], "accent"), (bar_text[filled_cells:], "dim")]
    start, end = (round(edge * width) for edge in band)
    tail = "".join(glyphs.target if start <= cell < end else glyphs.bar_empty for cell in range(filled_cells, width))
    return [(bar_text[:filled_cells], "good" if band[0] <= share <= band[1] else "accent"), (tail, "dim")]


def gauge_line(gauge: Gauge, sparks: Sparks, width: int, glyphs: Glyphs, *, most_parts: int = _CURVE_CELLS) -> Line:
    """Return the gauge in `width` cells. Above 52 cells, it has its tail and a curve of up to `most_parts` cells."""
    is_wide = width > _BOTH_ABOVE
    percent = "  --" if gauge.share is None else f"{gauge.share:4.0%}"[:-1].rjust(3) + " %"
    line: Line = [(gauge.label.ljust(_LABEL), "text")]
    line += target_bar(gauge.share, _WIDE_BAR if is_wide else _BAR, gauge.band, glyphs)
    is_on_target = gauge.share is not None and gauge.band is not None and gauge.band[0] <= gauge.share <= gauge.band[1]
    line.append((f" {percent:>5} ", "good" if is_on_target else "text"))
    room_cells = max(width - width_of(line) - _VALUE_TEXT_CELLS - 2, 0)
    curve_cells = min(room_cells, most_parts) if is_wide else _CURVE_CELLS
    if is_wide or not gauge.tail:
        values = sparks.get(gauge.curve_name, ())
        curve = sparkline(values[-curve_cells:], curve_cells, glyphs, low=0.0, high=1.0) if curve_cells else ""
        line.append((f"{curve} ", "chart_raw"))
    if gauge.tail:
        line.append((f" {gauge.tail}" if is_wide else gauge.tail, "dim"))
    return fit(line, width, glyphs.ellipsis)


def curve_lines(values: Sequence[float], width: int, height: int, band: Band | None, glyphs: Glyphs) -> list[Line]:
    """Return a chart of shares from 0 to 1: bars of one cell each, the newest at the right end. NaN is a gap.

    The target range `band` is shaded where no bar covers it.
    """
    level_count = len(glyphs.levels)
    visible_shares = values[max(len(values) - width, 0) :]
    # A share of 0 has the lowest bar, so that it differs from a gap.
    bar_levels = [0 if math.isnan(share) else max(round(share * height * level_count), 1) for share in visible_shares]
    lines: list[Line] = []
    for row in reversed(range(height)):
        is_on_target = band is not None and band[0] <= (row + 0.5) / height <= band[1] and not glyphs.ascii
        cells = [min(max(level - row * level_count, 0), level_count) if level else -1 for level in bar_levels]
        signs = f"{glyphs.target if is_on_target else ' '}{glyphs.levels} "
        parts = [("".join(signs[cell] for cell in run), is_bar) for is_bar, run in groupby(cells, key=lambda c: c > 0)]
        line: Line = [(text, "chart_raw" if is_bar else "dim") for text, is_bar in parts]
        lines.append([(" " * (width - len(visible_shares)), "text"), *line])
    return lines


class GaugeBar(Pane):
    """A gauge such as `CPU  ████░░··  47 %  ▁▂▃▃▂▂`. If it is higher than one line, the curve is below the bar."""

    DEFAULT_CSS = "GaugeBar { height: 1; }"

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(self._gauge_lines, id=id)
        self._shown: tuple[Gauge, Sequence[float]] = Gauge("", None), ()

    def show(self, gauge: Gauge, values: Sequence[float]) -> None:
        if (gauge, values) != self._shown:
            self._shown = gauge, values
            self.redraw()

    def _gauge_lines(self, width: int, height: int) -> list[Line]:
        gauge, values = self._shown
        if height == 1:
            return [gauge_line(gauge, {gauge.curve_name: values}, width, self.glyphs, most_parts=_ANY)]
        first_line = gauge_line(gauge, {}, width, self.glyphs, most_parts=0)
        return [first_line, *curve_lines(values, width, height - 1, gauge.band, self.glyphs)]


class GaugeTrail:
    """History of each gauge as means over `parts` equal periods, which start at fixed times so that no curve jitters.

    The history covers `seconds`."""

    def __init__(self, parts: int, seconds: float) -> None:
        self._period_seconds, self._period_count = seconds / parts, parts
        self._sums: dict[str, deque[tuple[int, float, int]]] = {}

    def add_reading(self, gauges: Gauges, at_seconds: float) -> None:
        """Add a reading at a time of the monotonic clock, in seconds. A share that is not reported leaves a gap."""
        period = math.floor(at_seconds / self._period_seconds)
        for gauge in gauges_of(gauges, len(gauges.gpus)):
            values = self._sums.setdefault(gauge.curve_name, deque(maxlen=self._period_count))
            if gauge.share is not None and gauge.curve_name:
                _, share_sum, count = values.pop() if values and values[-1][0] == period else (period, 0.0, 0)
                values.append((period, share_sum + gauge.share, count + 1))

    def sparks(self, at_seconds: float) -> dict[str, list[float]]:
        """Return the mean shares of each gauge by period, the oldest first; NaN for a period without a reading."""
        newest_period = math.floor(at_seconds / self._period_seconds)
        periods = range(newest_period - self._period_count + 1, newest_period + 1)
        means = {
            name: {period: round(total / count, 3) for period, total, count in sums}
            for name, sums in self._sums.items()
        }
        return {name: [shares.get(period, math.nan) for period in periods] for name, shares in means.items()}


def gauges_of(gauges: Gauges, most_cards: int = MOST_CARDS) -> Iterator[Gauge]:
    """Yield the gauges of up to `most_cards` GPUs, and then of CPU, memory and disk."""
    for card in gauges.gpus[:most_cards]:
        yield from card_gauges(card)
    yield Gauge("CPU", gauges.cpu_share, CPU_TARGET, curve_name="cpu")
    memory_share, memory_text = _use(gauges.memory_used_bytes, gauges.memory_bytes)
    yield Gauge("RAM", memory_share, tail=memory_text, curve_name="memory")
    used_bytes, disk_bytes = gauges.disk_used_bytes, gauges.disk_bytes
    # The used bytes include reserved space that users cannot have, so free bytes say more.
    free_text = "--" if used_bytes is None or disk_bytes is None else f"{(disk_bytes - used_bytes) / GIB:.0f} GiB free"
    yield Gauge("disk", _use(used_bytes, disk_bytes)[0], tail=free_text)


def card_gauges(card: Gpu) -> Iterator[Gauge]:
    temperature_text = "" if card.temperature_celsius is None else f"{card.temperature_celsius:3.0f} C"
    power_text = "" if card.power_watts is None else f"{card.power_watts:4.0f} W"
    tail = " ".join(filter(None, [temperature_text, power_text]))
    memory_share, memory_text = _use(card.memory_used_bytes, card.memory_bytes)
    yield Gauge(f"GPU {card.index}", card.utilisation_share, GPU_TARGET, tail, f"gpu{card.index}")
    yield Gauge("  memory", memory_share, GPU_MEMORY_TARGET, memory_text, f"gpu{card.index} memory")


def _use(used: int | None, whole: int | None) -> tuple[float | None, str]:
    """Return the used share and the words for it, such as `12.1/31.2 GiB`; None and `--` if it is not reported."""
    if used is None or whole is None:
        return None, "--"
    decimals = 0 if whole >= 100 * GIB else 1
    return used / whole if whole else None, f"{used / GIB:.{decimals}f}/{whole / GIB:.{decimals}f} GiB"


def gauge_lines(gauges: Gauges, sparks: Sparks, width: int, glyphs: Glyphs) -> list[Line]:
    all_gauges = list(gauges_of(gauges))
    if width < 2 * HALF_WIDTH:
        return [gauge_line(gauge, sparks, width, glyphs) for gauge in all_gauges]
    left_cells = width - HALF_WIDTH
    lines: list[Line] = []
    for left_gauge, right_gauge in zip_longest(all_gauges[::2], all_gauges[1::2]):
        right_line = gauge_line(right_gauge, sparks, HALF_WIDTH, glyphs) if right_gauge else []
        lines.append(fit([*gauge_line(left_gauge, sparks, left_cells - 2, glyphs), ("  ", "text"), *right_line], width))
    return lines
