"""Paints a chart: columns of values as signs, braille with 2 x 4 dots in a cell, or ASCII with 1 x 2.

What is painted later covers: the steps, their mean above, then evaluations, the losses to beat, and the crosshair.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tui_trainer.safe_text import one_line
from tui_trainer.ui.chart.axes import Bounds, column_of, row_of
from tui_trainer.ui.chart.series import Floats, Series
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role

_LABEL_LIMIT: Final = 16
_MARK_EVERY: Final = 4
# The bits of U+2800 by row and column of the cell.
_BRAILLE_BITS: Final = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BRAILLE: Final = np.array([chr(0x2800 + bits) for bits in range(256)])
_ASCII_BITS: Final = np.array([[1], [2]])
_ASCII_THIN: Final = np.array([" ", "'", ".", ":"])
_ASCII_THICK: Final = np.array([" ", "*", "*", "*"])
_ROLES: Final[tuple[Role, ...]] = (
    "text", "dim", "chart_raw", "chart_smooth", "chart_eval", "chart_cross", "bad", "accent", "good", "warn",
)  # fmt: skip


class Raster:
    """`width` x `height` cells. Dot rows are counted from the top, dot columns from the left."""

    def __init__(self, width: int, height: int, glyphs: Glyphs) -> None:
        self.width, self.height, self.glyphs = width, height, glyphs
        self._bits = _ASCII_BITS if glyphs.ascii else _BRAILLE_BITS
        self.cell_rows, self.cell_columns = self._bits.shape
        self.dots_across, self.dots_down = width * self.cell_columns, height * self.cell_rows
        self._signs = np.full((height, width), " ")
        self._roles = np.zeros((height, width), np.int8)
        self.bad_columns: list[int] = []

    def curve(self, low: NDArray[np.float64], high: NDArray[np.float64], bounds: Bounds, role: Role) -> None:
        """In each dot column all dots from `low` to `high`, and those that connect it with the column before."""
        top, bottom = (np.rint((bounds.high - values) / bounds.span * (self.dots_down - 1)) for values in (high, low))
        before_top, before_bottom = np.roll(top, 1), np.roll(bottom, 1)
        before_top[0] = before_bottom[0] = np.nan
        top = np.fmin(top, before_bottom + 1, where=~np.isnan(top), out=top.copy())
        bottom = np.fmax(bottom, before_top - 1, where=~np.isnan(bottom), out=bottom.copy())
        rows = np.arange(self.dots_down)[:, None]
        self.dots((rows >= top) & (rows <= bottom), role)

    def dots(self, mask: NDArray[np.bool_], role: Role) -> None:
        """Sets the dots of a mask of dot rows x dot columns; cells without one stay as they are."""
        cells = mask.reshape(self.height, self.cell_rows, self.width, self.cell_columns)
        bits = np.einsum("hrwc,rc->hw", cells.astype(np.int64), self._bits)
        table = _BRAILLE if not self.glyphs.ascii else _ASCII_THICK if role == "chart_smooth" else _ASCII_THIN
        painted = bits > 0
        self._signs[painted] = table[bits[painted]]
        self._roles[painted] = _ROLES.index(role)

    def mark(self, column: int, row: int, sign: str, role: Role) -> None:
        self._signs[row, column], self._roles[row, column] = sign, _ROLES.index(role)

    def cross(self, column: int, sign: str) -> None:
        """A line from top to bottom through a column of cells; what is drawn there keeps its sign."""
        empty = self._signs[:, column] == " "
        self._signs[empty, column] = sign
        self._roles[:, column] = _ROLES.index("chart_cross")

    def label(self, row: int, text: str, role: Role) -> None:
        """A text at the right end of a row of cells, where there is room and nothing stands."""
        begin = self.width - len(text)
        if begin >= 0 and (self._signs[row, max(begin - 1, 0) :] == " ").all():
            self._signs[row, begin:], self._roles[row, begin:] = list(text), _ROLES.index(role)

    def lines(self) -> list[Line]:
        """The rows as spans, each `width` cells."""
        return [self._line(row) for row in range(self.height)]

    def _line(self, row: int) -> Line:
        roles = self._roles[row]
        ends = [*(np.flatnonzero(np.diff(roles)) + 1).tolist(), self.width]
        signs = self._signs[row].tolist()
        return [
            ("".join(signs[begin:end]), _ROLES[roles[begin]]) for begin, end in zip([0, *ends[:-1]], ends, strict=True)
        ]


def plot(
    series: Series, evals: Sequence[tuple[int, float]], baselines: Mapping[str, float], window: Bounds, bounds: Bounds,
    size: tuple[int, int], glyphs: Glyphs, *, log: bool, cross_step: int | None,
) -> Raster:  # fmt: skip
    """A raster of `size` cells, width first. `evals` and `bounds` are in the unit of the y axis."""
    raster = Raster(*size, glyphs)
    columns = series.columns(window, raster.dots_across)
    low, high, smoothed = (_scaled(values, log) for values in (columns.low, columns.high, columns.smoothed))
    raster.curve(low, high, bounds, "chart_raw" if series.smoothing else "chart_smooth")
    for beyond, row, sign in (
        (high > bounds.high, 0, glyphs.above),
        (low < bounds.low, raster.height - 1, glyphs.below),
    ):
        for column in set((np.flatnonzero(beyond) // raster.cell_columns).tolist()):
            raster.mark(column, row, sign, "chart_raw")
    if series.smoothing:
        raster.curve(smoothed, smoothed, bounds, "chart_smooth")
    _evaluations(raster, evals, window, bounds)
    _baselines(raster, baselines, bounds, log)
    if cross_step is not None:
        raster.cross(column_of(cross_step, window, raster.width), glyphs.vertical)
    raster.bad_columns = sorted(set((np.flatnonzero(columns.bad) // raster.cell_columns).tolist()))
    return raster


def _scaled(values: Floats, log: bool) -> Floats:
    if not log:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        # What has no logarithm lies below any range.
        return np.where(values > 0, np.log10(values), np.where(np.isnan(values), np.nan, -np.inf))


def _baselines(raster: Raster, baselines: Mapping[str, float], bounds: Bounds, log: bool) -> None:
    """The losses to beat, as names at the right end of their rows: lines across would look like steps.

    Those that lie beyond the range, or under the curve, are left out; of several in one row, all but the lowest.
    """
    drawn: set[int] = set()
    for name, loss in sorted(baselines.items(), key=lambda item: item[1]):
        value = math.log10(loss) if log and loss > 0 else loss
        row = row_of(value, bounds, raster.height)
        if bounds.low <= value <= bounds.high and row not in drawn:
            drawn.add(row)
            line = "---" if raster.glyphs.ascii else "┈┈┈"
            raster.label(row, f"{line} {raster.glyphs.only(one_line(name[:_LABEL_LIMIT]))}", "dim")


def _evaluations(raster: Raster, evals: Sequence[tuple[int, float]], window: Bounds, bounds: Bounds) -> None:
    """One mark in each few columns at most, the newest: a row of marks would hide the curve."""
    glyphs, per_step = raster.glyphs, raster.width / window.span / _MARK_EVERY
    for step, value in {int((step - window.low) * per_step): (step, value) for step, value in evals}.values():
        sign = glyphs.above if value > bounds.high else glyphs.below if value < bounds.low else glyphs.eval_mark
        column, row = column_of(step, window, raster.width), row_of(value, bounds, raster.height)
        raster.mark(column, row, sign, "chart_eval")
