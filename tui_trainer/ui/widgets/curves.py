"""Several curves over one axis: each with a colour and a sign of its own, so that no colour is needed to tell them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from tui_trainer.ui.chart.axes import GUTTER, Bounds, column_of, row_of, settle, with_y_axis, x_axis
from tui_trainer.ui.chart.raster import Raster
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role
from tui_trainer.ui.widgets.pane import Pane

ROLES: Final[tuple[Role, ...]] = ("accent", "warn", "good", "bad", "text", "chart_raw")
_Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Curve:
    """`points` (x, y) by growing x are joined; `marks` stand alone. `sign` is one character."""

    sign: str
    points: _Points = ()
    marks: _Points = ()

    def scaled(self, log: bool) -> "Curve":
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
    drawn = [(curve.scaled(log), role) for curve, role in zip(curves, ROLES, strict=False)]
    every = [point for curve, _ in drawn for point in (*curve.points, *curve.marks)]
    if not every or height < 4 or width < 3 * GUTTER:
        return [[("there is no loss to draw", "dim")]]
    raster = Raster(width - GUTTER, height - 2, glyphs)
    window = Bounds(0, max(x for x, _ in every) or 1)
    bounds = settle(None, min(y for _, y in every), max(y for _, y in every))

    def mark(points: _Points, sign: str, role: Role) -> None:
        for x, y in points:
            raster.mark(column_of(x, window, raster.width), row_of(y, bounds, raster.height), sign, role)

    # In layers: the signs of a curve are not covered by the marks of another one.
    for curve, role in drawn:
        _join(raster, curve.points, window, bounds, role)
    for curve, role in drawn:
        mark(curve.marks, glyphs.eval_mark, role)
    for place, (curve, role) in enumerate(drawn):
        mark(_signed(curve.points, place, len(drawn)), curve.sign, role)
    rows = with_y_axis(raster.lines(), bounds, max(raster.height // 3, 2), glyphs, log=log)
    return [*rows, *x_axis(raster.width, window, unit, glyphs)]


def _join(raster: Raster, points: _Points, window: Bounds, bounds: Bounds, role: Role) -> None:
    if not points:
        return
    x, y = np.array(points, np.float64).T
    at = np.linspace(window.low, window.high, raster.dots_across)
    # A dot column may fall between two points; what lies before the first and behind the last is nothing.
    values = np.interp(at, x, y, right=np.nan, left=np.nan)
    values[np.argmin(np.abs(at - x[-1]))] = y[-1]
    raster.curve(values, values, bounds, role)


def _signed(points: _Points, place: int, count: int) -> _Points:
    """Where the sign of a curve stands: at its end, and twice before, beside those of the others."""
    shares = [(place + 0.5) / count / 2, 0.5 + (place + 0.5) / count / 2]
    return [points[int(share * (len(points) - 1))] for share in (*shares, 1.0)] if points else []


class Curves(Pane):
    """Shows `curves`; `unit` is what the x axis counts. `redraw` after a change."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(lambda w, h: curves_lines(self.curves, self.unit, w, h, self.glyphs, log=self.is_log), id=id)
        self.curves: Sequence[Curve] = ()
        self.unit, self.is_log = "steps", False


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    def three_losses() -> list[Curves]:
        shown = Curves()
        speeds = zip("ABC", (4, 5, 6), strict=True)
        shown.curves = [Curve(sign, [(step, speed / step**0.3) for step in range(1, 400, 3)]) for sign, speed in speeds]
        return [shown]

    Demo(three_losses).run()
