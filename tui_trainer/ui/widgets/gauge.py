"""One gauge: a bar with its target drawn into it, the number, and the last minutes as a curve."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from tui_trainer.ui.glyphs import Glyphs, bar, sparkline
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


def target_bar(share: float | None, width: int, band: Band | None, glyphs: Glyphs) -> Line:
    """A bar in which the part of the target that is not reached yet is shaded. None: `--`."""
    drawn = bar(share, width, glyphs)
    if share is None:
        return [(drawn, "dim")]
    filled = width - drawn.count(glyphs.bar_empty)
    if band is None:
        return [(drawn[:filled], "accent"), (drawn[filled:], "dim")]
    begin, end = (round(edge * width) for edge in band)
    rest = "".join(glyphs.target if begin <= cell < end else glyphs.bar_empty for cell in range(filled, width))
    return [(drawn[:filled], "good" if band[0] <= share <= band[1] else "accent"), (rest, "dim")]


def gauge_line(gauge: Gauge, sparks: Sparks, width: int, glyphs: Glyphs, *, most_parts: int = _TAIL - 1) -> Line:
    """The gauge in `width` cells; above 52 cells with both the curve, of at most `most_parts` cells, and the tail."""
    wide = width > _BOTH_ABOVE
    percent = "  --" if gauge.share is None else f"{gauge.share:4.0%}"[:-1].rjust(3) + " %"
    line: Line = [(gauge.label.ljust(_LABEL), "text")]
    line += target_bar(gauge.share, _WIDE_BAR if wide else _BAR, gauge.band, glyphs)
    is_on_target = gauge.share is not None and gauge.band is not None and gauge.band[0] <= gauge.share <= gauge.band[1]
    line.append((f" {percent:>5} ", "good" if is_on_target else "text"))
    parts = max(min(width - width_of(line) - _TAIL - 2, most_parts), 0) if wide else _TAIL - 1
    if wide or not gauge.tail:
        values = sparks.get(gauge.spark, ())
        curve = sparkline(values[-parts:], parts, glyphs, low=0.0, high=1.0) if parts else ""
        line.append((f"{curve} ", "chart_raw"))
    if gauge.tail:
        line.append((f" {gauge.tail}" if wide else gauge.tail, "dim"))
    return fit(line, width, glyphs.ellipsis)


def curve_lines(values: Sequence[float], width: int, height: int, band: Band | None, glyphs: Glyphs) -> list[Line]:
    """Shares of 0 to 1 as bars of `height` lines, a cell each, the newest at the right end; NaN is a gap.

    The lines in the target are shaded where no bar reaches them.
    """
    levels = len(glyphs.levels)
    shown = values[max(len(values) - width, 0) :]
    # What is known is seen: a share of 0 is the lowest sign.
    bars = [0 if math.isnan(share) else max(round(share * height * levels), 1) for share in shown]
    lines: list[Line] = []
    for row in reversed(range(height)):
        on_target = band is not None and band[0] <= (row + 0.5) / height <= band[1] and not glyphs.ascii
        cells = [min(max(full - row * levels, 0), levels) if full else -1 for full in bars]
        signs = f"{glyphs.target if on_target else ' '}{glyphs.levels} "
        parts = [("".join(signs[cell] for cell in part), drawn) for drawn, part in groupby(cells, key=lambda c: c > 0)]
        line: Line = [(text, "chart_raw" if drawn else "dim") for text, drawn in parts]
        lines.append([(" " * (width - len(shown)), "text"), *line])
    return lines


class GaugeBar(Pane):
    """A gauge, `CPU  ████░░··  47 %  ▁▂▃▃▂▂`; with `height: 2` or more the curve stands below it, as high as it can be.

    `show` gives it another gauge, and the shares of its curve, oldest first.
    """

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
            return [gauge_line(gauge, {gauge.spark: values}, width, self.glyphs, most_parts=_ANY)]
        first = gauge_line(gauge, {}, width, self.glyphs, most_parts=0)
        return [first, *curve_lines(values, width, height - 1, gauge.band, self.glyphs)]


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    def three_gauges() -> Iterator[GaugeBar]:
        for name, share, height in (("short", 0.6, 1), ("history", 0.82, 5), ("silent", None, 1)):
            bar = GaugeBar(id=name)
            bar.styles.height = height
            values = [0.5 + math.sin(part / 5) / 2 for part in range(60 if share else 0)]
            bar.show(Gauge(name, share, (0.5, 0.8), "12.0/31.2 GiB", name), values)
            yield bar

    Demo(three_gauges).run()
