"""The points of one curve, smoothed and reduced to the columns of a chart.

All points are reduced anew at each draw: numpy passes over 100,000 of them in a few milliseconds, at any zoom, and
there is no pyramid that a resumed run could leave stale. Only the smoothing, which cannot be vectorised, is carried on.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tui_trainer.ui.chart.axes import Bounds

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

_TAIL_SHARE: Final = 2.0  # percent
_MARGIN: Final = 0.5
# Quantiles of all points would cost more than everything else in a draw.
_QUANTILE_POINTS: Final = 8192


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
        """The index of the last value that is not finite."""
        bad = np.flatnonzero(~np.isfinite(self.values))
        return int(bad[-1]) if len(bad) else None


def _join(found: Whole, *rows: Floats) -> None:
    """Fills the columns between two that hold points; next to a value that is not finite they stay empty."""
    between = np.setdiff1d(np.arange(found[0], found[-1] + 1), found, assume_unique=True)
    if len(between):
        for row in rows:
            row[between] = np.interp(between, found, row[found])
