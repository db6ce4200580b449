"""Metrics of a run that can be drawn: their points, smoothed, and reduced to the columns of a chart.

Each drawing reduces all points again, because numpy needs only a few milliseconds for 100,000 points. The moving
average cannot be vectorised, so it is continued from the points that were smoothed before.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tui_trainer.runs.events import GAUGES, EvalDone, GaugesRead
from tui_trainer.runs.result import baselines_of
from tui_trainer.runs.state import RunState
from tui_trainer.ui.plot import Bounds
from tui_trainer.units import GIB, Figure, Unit, format_count, format_seconds, plotted

Floats = NDArray[np.float64]
IntArray = NDArray[np.int64]
Points = tuple[IntArray, Floats]
"""Steps, and the value at each step."""

_TAIL_SHARE: Final = 2.0  # percent
_MARGIN: Final = 0.5
# Quantiles of more points would take longer than the rest of a drawing.
_QUANTILE_POINTS: Final = 8192


class Series:
    """Points of one metric (steps increase strictly), and the exponential moving average of its values."""

    def __init__(self, smoothing: float) -> None:
        self.smoothing = smoothing
        self.steps: IntArray = np.empty(0, np.int64)
        self.values: Floats = np.empty(0)
        self.smoothed: Floats = np.empty(0)
        self._mean = self._weight = 0.0

    def take(self, steps: IntArray, values: Floats) -> bool:
        """Replace the points. Return True if earlier points have changed, False if points were only added."""
        smoothed_count = len(self.steps)
        # Values are compared by their bits, because NaN does not equal NaN.
        has_same_values = np.array_equal(values[:smoothed_count].view(np.int64), self.values.view(np.int64))
        is_same = has_same_values and np.array_equal(steps[:smoothed_count], self.steps)
        if not is_same:
            smoothed_count, self._mean, self._weight = 0, 0.0, 0.0
        self.smoothed = np.concatenate([self.smoothed[:smoothed_count], self._smooth(values[smoothed_count:])])
        self.steps, self.values = steps, values
        return not is_same

    def _smooth(self, values: Floats) -> Floats:
        """Return the moving average, bias-corrected as in Adam (arXiv:1412.6980); NaN where a value is not finite."""
        if not self.smoothing:
            return np.where(np.isfinite(values), values, np.nan)
        beta, mean, weight = self.smoothing, self._mean, self._weight
        means = []
        for value, is_finite in zip(values.tolist(), np.isfinite(values).tolist(), strict=True):
            if is_finite:
                mean, weight = beta * mean + (1 - beta) * value, beta * weight + (1 - beta)
            means.append(mean / weight if is_finite else np.nan)
        self._mean, self._weight = mean, weight
        return np.array(means, dtype=np.float64)

    def columns(self, window: Bounds, dots: int) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
        """Reduce the points in the window to `dots` columns of equal length.

        Returns the lowest, highest and smoothed value in each column, or NaN, and whether it has a NaN or infinity.
        Gaps between points are interpolated, except next to a NaN.
        """
        begin, end = np.searchsorted(self.steps, [window.low, window.high], side="left")
        end += end < len(self.steps) and self.steps[end] == window.high
        positions = (self.steps[begin:end] - window.low) * (dots / window.span)
        point_columns = np.minimum(positions.astype(np.int64), dots - 1)
        starts = np.flatnonzero(np.diff(point_columns, prepend=-1))
        values, smoothed = self.values[begin:end], self.smoothed[begin:end]
        is_finite = np.isfinite(values)
        plain = np.where(is_finite, values, np.nan)
        filled_columns = point_columns[starts]
        low, high, last_means = np.full((3, dots), np.nan)
        is_bad = np.zeros(dots, bool)
        if len(starts):
            low[filled_columns], high[filled_columns] = np.fmin.reduceat(plain, starts), np.fmax.reduceat(plain, starts)
            last_means[filled_columns] = smoothed[np.append(starts[1:], len(point_columns)) - 1]
            is_bad[point_columns[~is_finite]] = True
            all_columns = np.arange(filled_columns[0], filled_columns[-1] + 1)
            for row in (low, high, last_means):
                row[all_columns] = np.interp(all_columns, filled_columns, row[filled_columns])
        return low, high, last_means, is_bad

    def main_value_range(self, window: Bounds, robust: bool, log: bool) -> Bounds | None:
        """Return the range of the values in the window (`log`: of their logarithms). If `robust`, ignore outliers."""
        values = self._values_in_window(window)
        values = np.log10(values[values > 0]) if log else values
        if not len(values):
            return None
        low, high = float(values.min()), float(values.max())
        sample = values[:: -(-len(values) // _QUANTILE_POINTS)]
        low_quantile, high_quantile = np.percentile(sample, [_TAIL_SHARE, 100 - _TAIL_SHARE]).tolist()
        margin = (high_quantile - low_quantile) * _MARGIN
        if not robust or not margin:
            return Bounds(low, high)
        return Bounds(max(low, low_quantile - margin), min(high, high_quantile + margin))

    def nearest_index(self, step: float) -> int | None:
        """Return the index of the point nearest to the step; None without points."""
        return int(np.abs(self.steps - step).argmin()) if len(self.steps) else None

    def nearest_step(self, step: float) -> int | None:
        index = self.nearest_index(step)
        return None if index is None else int(self.steps[index])

    def count_outside(self, window: Bounds, bounds: Bounds) -> tuple[int, int]:
        """Return how many values in the window are below the bounds, and how many above."""
        values = self._values_in_window(window)
        return int((values < bounds.low).sum()), int((values > bounds.high).sum())

    def _values_in_window(self, window: Bounds) -> Floats:
        begin, end = np.searchsorted(self.steps, [window.low, window.high + 1])
        values = self.values[begin:end]
        return values[np.isfinite(values)]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric that can be drawn. `points` returns its steps and values, and `format_value` formats a value.

    If `is_noisy`, the curve is smoothed, and outliers may be outside the range. `read_evaluation` returns the metric's
    value in an evaluation, and `baselines_of_run` the values of baselines by name."""

    points: Callable[[RunState], Points]
    format_value: Callable[[float], str] = "{:.4f}".format
    is_noisy: bool = True
    read_evaluation: Callable[[EvalDone], float | None] = lambda _: None
    baselines_of_run: Callable[[RunState], Mapping[str, float]] = lambda _: {}

    def values(self, state: RunState) -> Floats:
        return self.points(state)[1]

    def newest(self, state: RunState) -> str:
        values = self.values(state)
        return self.format_value(float(values[-1])) if len(values) and math.isfinite(values[-1]) else "--"


def _copied(column: "array[Any]") -> NDArray[Any]:
    # `tobytes` copies in one call. A view would lock the column against the thread that appends to it.
    return np.frombuffer(column.tobytes(), column.typecode)


def _with_steps(state: RunState, values: Floats) -> Points:
    """Return the steps with their values, of which there is one per step."""
    steps = _copied(state.steps)
    # A step may be appended between the copies of values and steps.
    length = min(len(steps), len(values))
    return steps[:length], values[:length]


def _column(name: str, unit: float = 1.0) -> Callable[[RunState], Points]:
    return lambda state: _with_steps(state, _copied(getattr(state, name)) / unit)


def _quotients(name: str, divisor: str) -> Callable[[RunState], Points]:
    """Return a function for `Metric.points` that divides two columns of the state; NaN where the divisor is 0."""

    def points(state: RunState) -> Points:
        values, divisors = _copied(getattr(state, name)), _copied(getattr(state, divisor))
        length = min(len(values), len(divisors))
        values, divisors = values[:length], divisors[:length]
        return _with_steps(state, np.divide(values, divisors, out=np.full(length, np.nan), where=divisors > 0))

    return points


def _points_of_pairs(pairs: Callable[[RunState], Iterable[tuple[int, float | None]]]) -> Callable[[RunState], Points]:
    """Return a function for `Metric.points` from pairs (step, value). The last value at a step counts."""

    def points(state: RunState) -> Points:
        by_step = sorted({step: value for step, value in pairs(state) if value is not None}.items())
        return np.array([step for step, _ in by_step], np.int64), np.array([value for _, value in by_step], np.float64)

    return points


LOSS: Final = "loss"
HELD_OUT_LOSS: Final = "held-out loss"
METRICS: Final[dict[str, Metric]] = {
    LOSS: Metric(_quotients("loss_sums", "token_counts"), read_evaluation=attrgetter("loss"),
                 baselines_of_run=lambda state: state.baselines.losses if state.baselines else {}),
    "learning rate": Metric(_column("lrs"), "{:.2e}".format, is_noisy=False),
    "gradient norm": Metric(_column("grad_norms"), "{:.3g}".format),
    "tokens/s": Metric(_quotients("input_counts", "step_seconds"), format_count),
    "step seconds": Metric(_column("step_seconds"), format_seconds),
}  # fmt: skip


def metrics_of(state: RunState) -> dict[str, Metric]:
    """Return all metrics of a run by name: those that every run has, and those that this run has measured."""
    metrics = dict(METRICS)
    if state.evals:
        metrics[HELD_OUT_LOSS] = _held_out_metric(METRICS[LOSS])
    for name in dict.fromkeys(name for event in state.evals for name in event.scores):
        metrics[f"{name}, held out"] = _held_out_metric(_score(name))
    metrics |= {f"{name}, training": _score(name) for name in state.step_scores}
    if state.peak_memory_bytes:
        metrics["peak memory, GiB"] = Metric(_column("step_peak_bytes", GIB), "{:.2f}".format, is_noisy=False)
    for reading in list(state.gauges)[-1:]:
        metrics |= {title: metric for title, (name, metric) in _READINGS.items() if reading.figure(name) is not None}
    return metrics


def metric_of(state: RunState, name: str) -> Metric | None:
    """Return a metric by its name. Metrics that every run has are found without reading all evaluations."""
    return METRICS.get(name) or metrics_of(state).get(name)


def _score(name: str) -> Metric:
    def points(state: RunState) -> Points:
        """Return a training score at the steps where it was measured."""
        steps, values = _with_steps(state, _copied(state.step_scores[name]))
        is_scored = ~np.isnan(values)
        return steps[is_scored], values[is_scored]

    def to_beat(state: RunState) -> Mapping[str, float]:
        return baselines_of(name, state.baselines.scores) if state.baselines else {}

    return Metric(points, read_evaluation=lambda event: event.scores.get(name), baselines_of_run=to_beat)


def _held_out_metric(metric: Metric) -> Metric:
    """Return the metric with its values in evaluations as points."""
    points = _points_of_pairs(lambda state: ((event.step, metric.read_evaluation(event)) for event in state.evals))
    return replace(metric, points=points, is_noisy=False)


def _gauge_metric(name: str, figure: Figure) -> Metric:
    """Return the metric of a gauge, such as GPU memory. Its points are the readings of the last hour."""

    def value_of(reading: GaugesRead) -> float | None:
        return None if (value := reading.figure(name)) is None else plotted(figure, value)

    points = _points_of_pairs(lambda state: ((reading.step, value_of(reading)) for reading in list(state.gauges)))
    formats: dict[Unit, Callable[[float], str]] = {"bytes": "{:.2f}".format, "share": "{:.0%}".format}
    return Metric(points, formats.get(figure.unit, "{:.0f}".format), is_noisy=False)


_READINGS: Final = {
    figure.title + ", GiB" * (figure.unit == "bytes"): (name, _gauge_metric(name, figure))
    for name, figure in GAUGES.items()
}
