"""One gauge: a bar with its target drawn into it, the number, and the last minutes as a curve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from textual.reactive import reactive

from tui_trainer.ui.chart.sparkline import sparkline
from tui_trainer.ui.glyphs import Glyphs, bar
from tui_trainer.ui.spans import Line, fit, width_of
from tui_trainer.ui.widgets.pane import Pane

Band = tuple[float, float]
"""The target: from this share to that one."""
Sparks = Mapping[str, Sequence[float]]
"""The values of each curve by its name, oldest first."""

_LABEL: Final = 9
_BAR: Final = 10
_WIDE_BAR: Final = 14
_TAIL: Final = 13
_BOTH_ABOVE: Final = 52
_ANY: Final = 10_000


@dataclass(frozen=True, slots=True)
class Gauge:
    """One bar. `share` is 0 to 1 or None; `tail` stands behind it, `spark` names its curve."""

    label: str
    share: float | None
    band: Band | None = None
    tail: str = ""
    spark: str = ""

    @property
    def is_on_target(self) -> bool:
        return self.share is not None and self.band is not None and self.band[0] <= self.share <= self.band[1]


class GaugeBar(Pane):
    """A gauge, `CPU  ████░░··  47 %  ▁▂▃▃▂▂`; with `height: 2` or more the curve stands below it, as high as it can be.

    `values` are the shares of the curve, oldest first.
    """

    DEFAULT_CSS = "GaugeBar { height: 1; }"

    gauge: reactive[Gauge] = reactive(Gauge("", None), init=False, repaint=False)
    values: reactive[Sequence[float]] = reactive[Sequence[float]]((), init=False, repaint=False)

    def __init__(self, glyphs: Glyphs, *, id: str | None = None) -> None:
        super().__init__(self._gauge_lines, id=id)
        self._glyphs = glyphs

    def watch_gauge(self) -> None:
        self.redraw()

    def watch_values(self) -> None:
        self.redraw()

    def _gauge_lines(self, width: int, height: int) -> list[Line]:
        if height == 1:
            return [gauge_line(self.gauge, {self.gauge.spark: self.values}, width, self._glyphs, most_parts=_ANY)]
        first = gauge_line(self.gauge, {}, width, self._glyphs, most_parts=0)
        return [first, *curve_lines(self.values, width, height - 1, self.gauge.band, self._glyphs)]


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


def gauge_line(gauge: Gauge, sparks: Sparks, width: int, glyphs: Glyphs, *, most_parts: int = _TAIL - 1) -> Line:
    """The gauge in `width` cells; above 52 cells with both the curve, of at most `most_parts` cells, and the tail."""
    wide = width > _BOTH_ABOVE
    percent = "  --" if gauge.share is None else f"{gauge.share:4.0%}"[:-1].rjust(3) + " %"
    line: Line = [(gauge.label.ljust(_LABEL), "text")]
    line += target_bar(gauge.share, _WIDE_BAR if wide else _BAR, gauge.band, glyphs)
    line.append((f" {percent:>5} ", "good" if gauge.is_on_target else "text"))
    values, parts = sparks.get(gauge.spark, ()), _TAIL - 1
    if wide:
        parts = max(min(width - width_of(line) - _TAIL - 2, most_parts), 0)
    if wide or not gauge.tail or gauge.spark == "cpu":
        curve = sparkline(values[-parts:], parts, glyphs, low=0.0, high=1.0) if parts else ""
        line.append((f"{curve} ", "chart_raw"))
    if gauge.tail and (wide or gauge.spark != "cpu"):
        line.append((f" {gauge.tail}" if wide else gauge.tail, "dim"))
    return fit(line, width, glyphs.ellipsis)


def curve_lines(values: Sequence[float], width: int, height: int, band: Band | None, glyphs: Glyphs) -> list[Line]:
    """Shares of 0 to 1 as bars of `height` lines, a cell each, the newest at the right end; NaN is a gap.

    The lines in the target are shaded where no bar reaches them.
    """
    levels = len(glyphs.levels)
    shown = values[max(len(values) - width, 0) :]
    # What is there is seen: a share of 0 is the lowest sign.
    bars = [0 if math.isnan(share) else max(round(share * height * levels), 1) for share in shown]
    lines: list[Line] = []
    for row in reversed(range(height)):
        on_target = band is not None and band[0] <= (row + 0.5) / height <= band[1] and not glyphs.ascii
        cells = [min(max(full - row * levels, 0), levels) if full else -1 for full in bars]
        signs = f"{'░' if on_target else ' '}{glyphs.levels} "
        parts = [("".join(signs[cell] for cell in part), drawn) for drawn, part in groupby(cells, key=lambda c: c > 0)]
        line: Line = [(text, "chart_raw" if drawn else "dim") for text, drawn in parts]
        lines.append([(" " * (width - len(shown)), "text"), *line])
    return lines


if __name__ == "__main__":
    from tui_trainer.ui.glyphs import UNICODE
    from tui_trainer.ui.widgets.demo import Demo

    def three_gauges() -> Iterator[GaugeBar]:
        for name, share, height in (("short", 0.6, 1), ("history", 0.82, 5), ("silent", None, 1)):
            bar = GaugeBar(UNICODE, id=name)
            bar.styles.height = height
            bar.gauge = Gauge(name, share, (0.5, 0.8), "12.0/31.2 GiB", name)
            bar.values = [0.5 + math.sin(part / 5) / 2 for part in range(60 if share else 0)]
            yield bar

    Demo(three_gauges).run()
