"""The points of a curve, smoothed, reduced to the columns of a chart, and painted: braille with 2 x 4 dots a cell, or
ASCII with 1 x 2.

All points are reduced anew at each draw: numpy passes over 100,000 of them in a few milliseconds, at any zoom, and
there is no pyramid that a resumed run could leave stale. Only the smoothing, which cannot be vectorised, is carried on.
What is painted later covers: the steps, their mean above, then evaluations, the losses to beat, and the crosshair.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tui_trainer.safe_text import one_line
from tui_trainer.ui.chart.axes import Bounds, column_of, row_of
from tui_trainer.ui.spans import Glyphs, Line, Role

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

_TAIL_SHARE: Final = 2.0  # percent
_MARGIN: Final = 0.5
# Quantiles of all points would cost more than everything else in a draw.
_QUANTILE_POINTS: Final = 8192
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


@dataclass(frozen=True, slots=True)
class Columns:
    """What falls into each of `n` dot columns; NaN where there is nothing. `bad` where a value is not finite."""

    low: Floats
    high: Floats
    smoothed: Floats
    bad: NDArray[np.bool_]


class Series:
    """Steps that grow strictly, their values, and the values' exponential moving average."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing
        self.steps: Whole = np.empty(0, np.int64)
        self.values: Floats = np.empty(0)
        self.smoothed: Floats = np.empty(0)
        self._mean = self._weight = 0.0

    def take(self, steps: Whole, values: Floats) -> bool:
        """Makes these the points. True when points that were there before have changed or are gone."""
        known = len(self.steps)
        # Values are compared by their bits: NaN is no other NaN.
        same_values = np.array_equal(values[:known].view(np.int64), self.values.view(np.int64))
        same = same_values and np.array_equal(steps[:known], self.steps)
        if not same:
            known, self._mean, self._weight = 0, 0.0, 0.0
        self.smoothed = np.concatenate([self.smoothed[:known], self._smooth(values[known:])])
        self.steps, self.values = steps, values
        return not same

    def _smooth(self, values: Floats) -> Floats:
        """Bias-corrected as in Adam (arXiv:1412.6980); a value that is not finite leaves a gap and is passed over."""
        if not self.smoothing:
            return np.where(np.isfinite(values), values, np.nan)
        beta, mean, weight = self.smoothing, self._mean, self._weight
        smoothed = []
        for value, finite in zip(values.tolist(), np.isfinite(values).tolist(), strict=True):
            if finite:
                mean, weight = beta * mean + (1 - beta) * value, beta * weight + (1 - beta)
            smoothed.append(mean / weight if finite else np.nan)
        self._mean, self._weight = mean, weight
        return np.array(smoothed, dtype=np.float64)

    def columns(self, window: Bounds, dots: int) -> Columns:
        """The points of the window in `dots` columns of equal length; between points that are further apart, a line."""
        begin, end = np.searchsorted(self.steps, [window.low, window.high], side="left")
        end += end < len(self.steps) and self.steps[end] == window.high
        place = (self.steps[begin:end] - window.low) * (dots / window.span)
        column = np.minimum(place.astype(np.int64), dots - 1)
        starts = np.flatnonzero(np.diff(column, prepend=-1))
        values, smoothed = self.values[begin:end], self.smoothed[begin:end]
        finite = np.isfinite(values)
        plain = np.where(finite, values, np.nan)
        found = column[starts]
        low, high, last = np.full((3, dots), np.nan)
        bad = np.zeros(dots, bool)
        if len(starts):
            low[found], high[found] = np.fmin.reduceat(plain, starts), np.fmax.reduceat(plain, starts)
            last[found] = smoothed[np.append(starts[1:], len(column)) - 1]
            bad[column[~finite]] = True
            _join(found, low, high, last)
        return Columns(low, high, last, bad)

    def core(self, window: Bounds, robust: bool, log: bool) -> Bounds | None:
        """The range that the window's values ask for; `log`: that of their logarithms, where they have one.

        `robust`: without the few that are far from the rest.
        """
        values = self._within(window)
        values = np.log10(values[values > 0]) if log else values
        if not len(values):
            return None
        low, high = float(values.min()), float(values.max())
        thinned = values[:: -(-len(values) // _QUANTILE_POINTS)]
        bottom, top = np.percentile(thinned, [_TAIL_SHARE, 100 - _TAIL_SHARE]).tolist()
        margin = (top - bottom) * _MARGIN
        if not robust or not margin:
            return Bounds(low, high)
        return Bounds(max(low, bottom - margin), min(high, top + margin))

    def nearest(self, step: float) -> int | None:
        """The index of the point that is nearest to the step; None without points."""
        return int(np.abs(self.steps - step).argmin()) if len(self.steps) else None

    def nearest_step(self, step: float) -> int | None:
        at = self.nearest(step)
        return None if at is None else int(self.steps[at])

    def outside(self, window: Bounds, bounds: Bounds) -> tuple[int, int]:
        """How many values of the window are below and above the bounds."""
        values = self._within(window)
        return int((values < bounds.low).sum()), int((values > bounds.high).sum())

    def _within(self, window: Bounds) -> Floats:
        begin, end = np.searchsorted(self.steps, [window.low, window.high + 1])
        values = self.values[begin:end]
        return values[np.isfinite(values)]

    def last_bad(self) -> int | None:
        bad = np.flatnonzero(~np.isfinite(self.values))
        return int(bad[-1]) if len(bad) else None


def _join(found: Whole, *rows: Floats) -> None:
    """Fills the columns between two that hold points; next to a value that is not finite they stay empty."""
    between = np.setdiff1d(np.arange(found[0], found[-1] + 1), found, assume_unique=True)
    if len(between):
        for row in rows:
            row[between] = np.interp(between, found, row[found])


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
