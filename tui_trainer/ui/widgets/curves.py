"""Several curves over one axis: each with a colour and a sign of its own, so that no colour is needed to tell them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tui_trainer.ui.chart.axes import GUTTER, Bounds, column_of, gutter, log_ticks, row_of, settle, ticks
from tui_trainer.ui.chart.raster import Raster
from tui_trainer.ui.glyphs import ASCII, UNICODE, Glyphs
from tui_trainer.ui.spans import Line, Role
from tui_trainer.ui.widgets.pane import Pane

ROLES: Final[tuple[Role, ...]] = ("accent", "warn", "good", "bad", "text", "chart_raw")
_Points = Sequence[tuple[float, float]]
_CELLS_PER_LABEL: Final = 13


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """`points` (x, y) by growing x are joined; `marks` stand alone. `sign` is one character."""

    sign: str
    points: _Points = ()
    marks: _Points = ()

    def scaled(self, log: bool) -> Curve:
        """What can be drawn, in powers of ten where the y axis is logarithmic."""
        points, marks = (
            [(x, math.log10(y) if log else y) for x, y in found if math.isfinite(y) and (y > 0 or not log)]
            for found in (self.points, self.marks)
        )
        return Curve(sign=self.sign, points=points, marks=marks)


def curves_lines(
    curves: Sequence[Curve], unit: str, width: int, height: int, glyphs: Glyphs, *, log: bool = False
) -> list[Line]:
    """The curves in `width` x `height` cells with their axes; a curve has the role of its place in `ROLES`."""
    scaled = [curve.scaled(log) for curve in curves]
    every = [point for curve in scaled for point in (*curve.points, *curve.marks)]
    if not every or height < 4 or width < 3 * GUTTER:
        return [[("there is no loss to draw", "dim")]]
    size = (width - GUTTER, height - 2)
    window = Bounds(0, max(x for x, _ in every) or 1)
    bounds = settle(None, min(y for _, y in every), max(y for _, y in every))
    raster = Raster(*size, glyphs)
    for curve, role in zip(scaled, ROLES, strict=False):
        _join(raster, curve.points, window, bounds, role)
    for curve, role in zip(scaled, ROLES, strict=False):
        for x, y in curve.marks:
            raster.mark(column_of(x, window, size[0]), row_of(y, bounds, size[1]), glyphs.eval_mark, role)
    for place, (curve, role) in enumerate(zip(scaled, ROLES, strict=False)):
        for x, y in _signed(curve.points, place, len(scaled)):
            raster.mark(column_of(x, window, size[0]), row_of(y, bounds, size[1]), curve.sign, role)
    marks = (log_ticks if log else ticks)(bounds, max(size[1] // 3, 2))
    rows = [[*left, *right] for left, right in zip(gutter(size[1], bounds, marks, glyphs), raster.lines(), strict=True)]
    return [*rows, *_x_axis(size[0], window, unit, glyphs)]


def _join(raster: Raster, points: _Points, window: Bounds, bounds: Bounds, role: Role) -> None:
    if not points:
        return
    x, y = np.array(points, np.float64).T
    at = np.linspace(window.low, window.high, raster.dots_across)
    # A dot column may fall between two points; what lies before the first and behind the last is nothing.
    values = np.interp(at, x, y, right=np.nan, left=np.nan)
    nearest = int(np.argmin(np.abs(at - x[-1])))
    values[nearest] = y[-1]
    raster.curve(values, values, bounds, role)


def _signed(points: _Points, place: int, count: int) -> _Points:
    """Where the sign of a curve stands: at its end, and twice before, beside those of the others."""
    shares = [(place + 0.5) / count / 2, 0.5 + (place + 0.5) / count / 2]
    return [points[int(share * (len(points) - 1))] for share in (*shares, 1.0)] if points else []


def _x_axis(columns: int, window: Bounds, unit: str, glyphs: Glyphs) -> list[Line]:
    """The axis and, below it, its labels and the unit at the end."""
    marks = ticks(window, max(columns // _CELLS_PER_LABEL, 2))
    axis, words = [glyphs.rule] * columns, [" "] * columns
    for tick in marks:
        column = column_of(tick.at, window, columns)
        begin = max(min(column - (len(tick.label) - 1) // 2, columns - len(unit) - 1 - len(tick.label)), 0)
        axis[column] = "+" if glyphs.ascii else "\u252c"
        if not "".join(words[max(begin - 1, 0) : begin + len(tick.label)]).strip():
            words[begin : begin + len(tick.label)] = tick.label
    words[columns - len(unit) :] = unit
    corner = "+" if glyphs.ascii else "\u2514"
    return [
        [(" " * (GUTTER - 1), "text"), (corner + "".join(axis), "rule")],
        [(" " * GUTTER + "".join(words), "dim")],
    ]


class Curves(Pane):
    """Shows `curves`; `unit` is what the x axis counts. `redraw` after a change."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(self._picture, id=id)
        self.curves: Sequence[Curve] = ()
        self.unit, self.is_log = "steps", False

    def _picture(self, width: int, height: int) -> list[Line]:
        glyphs = ASCII if self.app.has_class("-ascii") else UNICODE
        return curves_lines(self.curves, self.unit, width, height, glyphs, log=self.is_log)


if __name__ == "__main__":
    from textual.app import App, ComposeResult

    class Demo(App[None]):
        """Three made-up losses."""

        def compose(self) -> ComposeResult:
            shown = Curves()
            shown.curves = [
                Curve(sign=sign, points=[(step, speed / step**0.3) for step in range(1, 400, 3)])
                for sign, speed in zip("ABC", (4, 5, 6), strict=True)
            ]
            yield shown

    Demo().run()
