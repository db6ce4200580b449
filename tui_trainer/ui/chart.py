"""A chart of one metric over the steps of a run: its axes, its points, how they are painted, and the widget.

Columns that are drawn do not move while steps are added: the x axis doubles when it is full, and the y axis changes
only when the values leave it or use little of it.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from textual.events import MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.reactive import reactive

from tui_trainer.runs.events import GAUGES, EvalDone, GaugesRead
from tui_trainer.runs.result import baselines_of
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.spans import Glyphs, Line, Role, Span, fit, next_of, title_rule, width_of
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.units import GIB, Figure, Unit, format_count, format_seconds, plotted

FIRST_DOMAIN_STEPS: Final = 32
LABEL_CELLS: Final = 7
GUTTER: Final = LABEL_CELLS + 1
_PADDING: Final = 0.08
# A range is drawn closer once the values fill less than this share of it.
_KEPT_FILL: Final = 0.6
_NEARLY: Final = 1e-9
_CELLS_PER_LABEL: Final = 13


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of an axis, in the axis' own unit: powers of ten where it is logarithmic."""

    low: float
    high: float

    @property
    def span(self) -> float:
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, in the axis' own unit, and what is written there."""

    at: float
    label: str


def settle(present: Bounds | None, low: float, high: float) -> Bounds:
    """The range to draw `low` to `high` in: the present one while they fit into it and fill most of it."""
    fits = present is not None and present.low <= low and high <= present.high
    if present is not None and fits and high - low >= _KEPT_FILL * present.span:
        return present
    # A span that drowns in the rounding of its ends cannot be divided into rows.
    padding = (high - low) * _PADDING if high - low > 1e-12 * max(abs(low), abs(high)) else abs(low) * 0.1 or 1.0
    return Bounds(low - padding, high + padding)


def domain_steps(last_step: int, total_steps: int) -> int:
    """Steps that the x axis holds: it doubles when it is full, and ends with the run, so that columns stay put."""
    # The next power of two.
    steps = max(1 << (last_step - 1).bit_length(), FIRST_DOMAIN_STEPS)
    return total_steps if last_step <= total_steps < steps else steps


def window(domain: int, last_step: int, halvings: int, around: int | None) -> Bounds:
    """The steps that are shown: all of them, or a part that holds `around`, else the tail.

    A part begins at a multiple of half its length, so that it jumps now and then instead of sliding at each step.
    """
    length = domain / 2**halvings
    if not halvings:
        return Bounds(0, domain)
    half = length / 2
    wanted = last_step if around is None else around
    begin = max(math.floor(wanted / half) - (around is None), 0) * half
    if around is not None and begin > 0 and wanted - begin < half / 2:
        begin -= half / 2
    return Bounds(begin, begin + length)


def ticks(bounds: Bounds, most: int) -> list[Tick]:
    """At most `most` nice values within the bounds, from low to high."""
    for parts in range(most + 1, 0, -1):
        least = bounds.span / parts
        base = 10.0 ** math.floor(math.log10(least))
        step = next(factor * base for factor in (1, 2, 5, 10) if least <= factor * base * (1 + _NEARLY))
        first = math.ceil(bounds.low / step - _NEARLY)
        last = math.floor(bounds.high / step + _NEARLY)
        values = [number * step for number in range(first, last + 1)]
        if len(values) <= most:
            return [Tick(value, label) for value, label in zip(values, labels(values, step), strict=True)]
    return []


def log_ticks(bounds: Bounds, most: int) -> list[Tick]:
    """1-2-5 of each power of ten, or only powers of ten where those are too many; nice values on a short range."""

    def short(value: float) -> str:
        return labels([value], 10.0 ** math.floor(math.log10(value)))[0]

    low, high = 10.0**bounds.low, 10.0**bounds.high
    powers = range(math.floor(bounds.low), math.ceil(bounds.high) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if 2 <= len(values) <= most:
            return [Tick(math.log10(value), short(value)) for value in values]
    if high / low > 100:
        every = math.ceil(len(powers) / most)
        return [Tick(power, short(10.0**power)) for power in powers[::every] if bounds.low <= power <= bounds.high]
    return [Tick(math.log10(tick.at), tick.label) for tick in ticks(Bounds(low, high), most) if tick.at > 0]


def labels(values: Sequence[float], step: float) -> list[str]:
    """The values with one unit and as many digits as the step between them needs; at most 7 signs each."""
    largest = max(map(abs, values), default=0.0)
    if largest and (largest < 1e-2 or largest >= 1e12):
        digits = 1 if all(len(f"{value:.1e}") <= LABEL_CELLS for value in values) else 0
        return [f"{value:.{digits}e}" if value else "0" for value in values]
    units = (("G", 1e9), ("M", 1e6), ("k", 1e3))
    unit, size = next((pair for pair in units if largest >= 10 * pair[1]), ("", 1.0))
    decimals = min(max(0, -math.floor(math.log10(step / size) + _NEARLY)), 5)
    return [f"{value / size:.{decimals}f}{unit}" for value in values]


def row_of(value: float, bounds: Bounds, rows: int) -> int:
    """The row of cells of a value, counted from the top; the first or the last one when it is out of bounds."""
    return min(max(int((bounds.high - value) / bounds.span * rows), 0), rows - 1)


def column_of(step: float, window: Bounds, columns: int) -> int:
    """The column of cells of a step; the first or the last one when it is not in the window."""
    return min(max(int((step - window.low) / window.span * columns), 0), columns - 1)


def with_y_axis(plot: Sequence[Line], bounds: Bounds, most: int, glyphs: Glyphs, *, log: bool) -> list[Line]:
    """The rows of a plot behind `GUTTER` cells each: the label of the tick that falls into it, and the axis."""
    names = {row_of(tick.at, bounds, len(plot)): tick.label for tick in (log_ticks if log else ticks)(bounds, most)}
    return [
        [
            (names.get(row, "").rjust(LABEL_CELLS), "dim"),
            (glyphs.tick_left if row in names else glyphs.vertical, "rule"),
            *line,
        ]
        for row, line in enumerate(plot)
    ]


def x_axis(
    columns: int, window: Bounds, unit: str, glyphs: Glyphs, *,
    keeps_unit: bool = True, bad_columns: Sequence[int] = (), inline: bool = False,
) -> list[Line]:  # fmt: skip
    """The axis below a plot of so many columns, with red marks; its labels in a line of their own unless `inline`.

    The unit stands at the end; unless it `keeps_unit`, only where no label is.
    """
    marks = [tick for tick in ticks(window, max(columns // _CELLS_PER_LABEL, 2)) if tick.at == int(tick.at)]
    places = {column_of(tick.at, window, columns): tick.label for tick in marks}
    words = _placed(places, bad_columns if inline else (), columns, unit, keeps_unit)
    axis: list[Span] = [(glyphs.tick_down if place in places else glyphs.rule, "rule") for place in range(columns)]
    if inline:
        axis = [(word, "dim") if word != " " else (glyphs.rule, "rule") for word in words]
    for column in bad_columns:
        axis[column] = (glyphs.bad[0], "bad")
    line: Line = [(" " * LABEL_CELLS, "text"), (glyphs.corner, "rule"), *_merged(axis)]
    return [line] if inline else [line, [(" " * GUTTER, "text"), (words, "dim")]]


def _merged(cells: Iterable[Span]) -> Line:
    """Neighbours of one role as one span."""
    return [("".join(sign for sign, _ in same), role) for role, same in groupby(cells, key=itemgetter(1))]


def _placed(places: dict[int, str], kept_free: Sequence[int], columns: int, unit: str, keeps_unit: bool) -> str:
    """The labels around their columns, but none over `kept_free` or over another one, and the unit."""
    row, end = [" "] * columns, columns - (len(unit) + 1) * keeps_unit
    for column, label in places.items():
        begin = max(min(column - (len(label) - 1) // 2, end - len(label)), 0)
        behind = begin + len(label)
        if "".join(row[max(begin - 1, 0) : behind]).isspace() and not any(begin <= at < behind for at in kept_free):
            row[begin:behind] = label
    beginning = columns - len(unit)
    is_free = "".join(row[beginning - 2 :]).isspace() and not any(at >= beginning - 1 for at in kept_free)
    if keeps_unit or is_free:
        row[beginning:] = unit
    return "".join(row)


# The points of a curve, smoothed, reduced to the columns of a chart, and painted: braille with 2 x 4 dots a cell, or
# ASCII with 1 x 2.
#
# All points are reduced anew at each draw: numpy passes over 100,000 of them in a few milliseconds, at any zoom, and
# there is no pyramid that a resumed run could leave stale. Only the smoothing, which cannot be vectorised, is carried
# on.
# What is painted later covers: the steps, their mean above, then evaluations, the losses to beat, and the crosshair.

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]
Points = tuple[Whole, Floats]
"""Steps and values."""

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
        self._roles = np.full((height, width), "text", object)

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
        self._roles[painted] = role

    def mark(self, column: int, row: int, sign: str, role: Role) -> None:
        self._signs[row, column], self._roles[row, column] = sign, role

    def cross(self, column: int, sign: str) -> None:
        """A line from top to bottom through a column of cells; what is drawn there keeps its sign."""
        empty = self._signs[:, column] == " "
        self._signs[empty, column] = sign
        self._roles[:, column] = "chart_cross"

    def label(self, row: int, text: str, role: Role) -> None:
        """A text at the right end of a row of cells, where there is room and nothing stands."""
        begin = self.width - len(text)
        if begin >= 0 and (self._signs[row, max(begin - 1, 0) :] == " ").all():
            self._signs[row, begin:], self._roles[row, begin:] = list(text), role

    def lines(self) -> list[Line]:
        rows = zip(self._signs.tolist(), self._roles.tolist(), strict=True)
        return [_merged(zip(signs, roles, strict=True)) for signs, roles in rows]


def _scaled(values: Floats, log: bool) -> Floats:
    if not log:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        # What has no logarithm lies below any range.
        return np.where(values > 0, np.log10(values), np.where(np.isnan(values), np.nan, -np.inf))


SMOOTHINGS: Final = (0.9, 0.98, 0.0, 0.6)
MOST_HALVINGS: Final = 12
_SMALLEST = (GUTTER + 10, 3)
_TICKS_TALL: Final = 5
# A chart lower than this has its x labels within the axis.
_LABELS_FROM: Final = 11
_TAIL_HALVINGS = 2


@dataclass(frozen=True, slots=True)
class Metric:
    """`points` are the steps at which it was measured, and its values there.

    What is noisy is smoothed, and the few values that are far off may leave the range. `marked` is what an evaluation
    has of it, if anything, and `to_beat` what simpler models reach, by name.
    """

    points: Callable[[RunState], Points]
    show: Callable[[float], str] = "{:.4f}".format
    is_noisy: bool = True
    marked: Callable[[EvalDone], float | None] = lambda _: None
    to_beat: Callable[[RunState], Mapping[str, float]] = lambda _: {}

    def values(self, state: RunState) -> Floats:
        return self.points(state)[1]

    def newest(self, state: RunState) -> str:
        values = self.values(state)
        return self.show(float(values[-1])) if len(values) and math.isfinite(values[-1]) else "--"


def _copied(column: array[Any]) -> NDArray[Any]:
    # A copy made in one call: a view would lock the column against the thread that appends to it.
    return np.frombuffer(column.tobytes(), column.typecode)


def _of_steps(values_of: Callable[[RunState], Floats]) -> Callable[[RunState], Points]:
    """One value per step of the run."""

    def points(state: RunState) -> Points:
        steps, values = _copied(state.steps), values_of(state)
        # A step may be appended between the two copies.
        length = min(len(steps), len(values))
        return steps[:length], values[:length]

    return points


def _column(name: str, unit: float = 1.0) -> Callable[[RunState], Points]:
    return _of_steps(lambda state: _copied(getattr(state, name)) / unit)


def _quotients(column: array[Any], divisors: array[Any]) -> Floats:
    """Divide two columns of steps; NaN where the divisor is 0."""
    values, by = _copied(column), _copied(divisors)
    length = min(len(values), len(by))
    values, by = values[:length], by[:length]
    found: Floats = np.divide(values, by, out=np.full(length, np.nan), where=by > 0)
    return found


def _losses(state: RunState) -> Floats:
    return _quotients(state.loss_sums, state.token_counts)


def _tokens_per_second(state: RunState) -> Floats:
    return _quotients(state.input_counts, state.step_seconds)


def _in_training(score: str) -> Callable[[RunState], Points]:
    """At the steps that have the score: the others stand as NaN in its column."""

    def points(state: RunState) -> Points:
        steps, values = _of_steps(lambda state: _copied(state.step_scores[score]))(state)
        known = ~np.isnan(values)
        return steps[known], values[known]

    return points


def _measured(pairs: Callable[[RunState], Iterable[tuple[int, float | None]]]) -> Callable[[RunState], Points]:
    """Steps and values of what is measured now and then. Of several at one step, as after a resume or where somebody
    asked for one, the newest is the point."""

    def points(state: RunState) -> Points:
        found = sorted({step: value for step, value in pairs(state) if value is not None}.items())
        return np.array([step for step, _ in found], np.int64), np.array([value for _, value in found], np.float64)

    return points


def _losses_to_beat(state: RunState) -> Mapping[str, float]:
    return state.baselines.losses if state.baselines else {}


LOSS: Final = "loss"
HELD_OUT_LOSS: Final = "held-out loss"
METRICS: Final[dict[str, Metric]] = {
    LOSS: Metric(_of_steps(_losses), marked=attrgetter("loss"), to_beat=_losses_to_beat),
    "learning rate": Metric(_column("lrs"), "{:.2e}".format, is_noisy=False),
    "gradient norm": Metric(_column("grad_norms"), "{:.3g}".format),
    "tokens/s": Metric(_of_steps(_tokens_per_second), format_count),
    "step seconds": Metric(_column("step_seconds"), format_seconds),
}
_PEAK_MEMORY: Final = Metric(_column("peaks", GIB), "{:.2f}".format, is_noisy=False)


def metrics_of(state: RunState) -> dict[str, Metric]:
    """Everything of a run that can be drawn, by its name: what every run has, and what this one has measured."""
    found = dict(METRICS)
    if state.evals:
        found[HELD_OUT_LOSS] = _held_out(METRICS[LOSS])
    for name in dict.fromkeys(name for done in state.evals for name in done.scores):
        found[f"{name}, held out"] = _held_out(_score(name))
    found |= {f"{name}, training": _score(name) for name in state.step_scores}
    if state.peak_memory_bytes:
        found["peak memory, GiB"] = _PEAK_MEMORY
    last = list(state.gauges)[-1:]
    return found | {
        title: metric for title, (name, metric) in _READINGS.items() if last and last[0].figure(name) is not None
    }


def metric_of(state: RunState, name: str) -> Metric | None:
    """The same by its name; what every run has is found without a look at all evaluations."""
    return METRICS.get(name) or metrics_of(state).get(name)


def _score(name: str) -> Metric:
    def to_beat(state: RunState) -> Mapping[str, float]:
        return baselines_of(name, state.baselines.scores) if state.baselines else {}

    return Metric(_in_training(name), marked=lambda done: done.scores.get(name), to_beat=to_beat)


def _held_out(metric: Metric) -> Metric:
    """What evaluations have of the metric."""
    points = _measured(lambda state: ((done.step, metric.marked(done)) for done in state.evals))
    return replace(metric, points=points, is_noisy=False)


def _of_readings(name: str, figure: Figure) -> Metric:
    """What the run used of its machine in the last hour."""

    def value_of(reading: GaugesRead) -> float | None:
        return None if (value := reading.figure(name)) is None else plotted(figure, value)

    points = _measured(lambda state: ((reading.step, value_of(reading)) for reading in list(state.gauges)))
    formats: dict[Unit, Callable[[float], str]] = {"bytes": "{:.2f}".format, "share": "{:.0%}".format}
    return Metric(points, formats.get(figure.unit, "{:.0f}".format), is_noisy=False)


_READINGS: Final = {
    figure.title + ", GiB" * (figure.unit == "bytes"): (name, _of_readings(name, figure))
    for name, figure in GAUGES.items()
}


@dataclass(frozen=True, slots=True)
class ChartView:
    """What is chosen of a chart. The x axis is halved `halvings` times, around the crosshair or at the tail."""

    metric: str = "loss"
    smoothing: float = SMOOTHINGS[0]
    log: bool = False
    halvings: int = 0
    cross_step: int | None = None
    compact: bool = False


@dataclass(frozen=True, slots=True)
class _Picture:
    """What is painted later covers: the steps, their mean, then evaluations, what is to be beaten, the crosshair."""

    state: RunState
    view: ChartView
    metric: Metric
    series: Series
    shown: Bounds
    glyphs: Glyphs

    def _evaluations(self) -> list[tuple[int, float]]:
        """Step and value of all that have the metric."""
        marked = ((done.step, self.metric.marked(done)) for done in self.state.evals)
        return [(step, value) for step, value in marked if value is not None]

    def _evals(self) -> list[tuple[int, float]]:
        """Step and value, in the unit of the y axis, of the evaluations in the window."""
        low, high = self.shown.low, self.shown.high
        finite = [(step, value) for step, value in self._evaluations() if low <= step <= high and math.isfinite(value)]
        return [(step, math.log10(value)) for step, value in finite if value > 0] if self.view.log else finite

    def wanted_bounds(self) -> Bounds | None:
        """The range of the values, and of the evaluations that are near them; None without any."""
        core = self.series.core(self.shown, self.metric.is_noisy, self.view.log)
        values = [value for _, value in self._evals()]
        if core is None:
            return Bounds(min(values), max(values)) if values else None
        reach = core.span / 2 or math.inf
        near = [value for value in values if core.low - reach <= value <= core.high + reach]
        return Bounds(min(core.low, *near), max(core.high, *near)) if near else core

    def plot(self, bounds: Bounds, width: int, height: int) -> list[Line]:
        view, glyphs, inline = self.view, self.glyphs, height + 1 < _LABELS_FROM
        raster = Raster(width - GUTTER, height - (0 if view.compact else 1 if inline else 2), glyphs)
        bad_columns = self._paint_curves(raster, bounds)
        self._mark_evaluations(raster, bounds)
        if not view.compact:
            self._name_baselines(raster, bounds)
            if view.cross_step is not None:
                raster.cross(column_of(view.cross_step, self.shown, raster.width), glyphs.vertical)
        body = with_y_axis(raster.lines(), bounds, min(raster.height // 2 + 1, _TICKS_TALL), glyphs, log=view.log)
        if view.compact:
            return body
        axis = x_axis(raster.width, self.shown, "step", glyphs, keeps_unit=False, bad_columns=bad_columns,
                      inline=inline)  # fmt: skip
        return [*body, *axis]

    def _paint_curves(self, raster: Raster, bounds: Bounds) -> list[int]:
        """The values and their mean, with marks where values lie beyond the range; the columns of bad values."""
        series, log = self.series, self.view.log
        columns = series.columns(self.shown, raster.dots_across)
        low, high, smoothed = (_scaled(values, log) for values in (columns.low, columns.high, columns.smoothed))

        def cells_of(found: NDArray[np.bool_]) -> list[int]:
            return sorted(set((np.flatnonzero(found) // raster.cell_columns).tolist()))

        raster.curve(low, high, bounds, "chart_raw" if series.smoothing else "chart_smooth")
        for column in cells_of(high > bounds.high):
            raster.mark(column, 0, self.glyphs.above, "chart_raw")
        for column in cells_of(low < bounds.low):
            raster.mark(column, raster.height - 1, self.glyphs.below, "chart_raw")
        if series.smoothing:
            raster.curve(smoothed, smoothed, bounds, "chart_smooth")
        return cells_of(columns.bad)

    def _mark_evaluations(self, raster: Raster, bounds: Bounds) -> None:
        """One mark in each few columns at most, the newest: a row of marks would hide the curve."""
        glyphs, per_step = self.glyphs, raster.width / self.shown.span / _MARK_EVERY
        newest = {int((step - self.shown.low) * per_step): (step, value) for step, value in self._evals()}
        for step, value in newest.values():
            sign = glyphs.above if value > bounds.high else glyphs.below if value < bounds.low else glyphs.eval_mark
            column, row = column_of(step, self.shown, raster.width), row_of(value, bounds, raster.height)
            raster.mark(column, row, sign, "chart_eval")

    def _name_baselines(self, raster: Raster, bounds: Bounds) -> None:
        """What is to be beaten, as names at the right end of their rows: lines across would look like steps.

        Those that lie beyond the range, or under the curve, are left out; of several in one row, all but the lowest.
        """
        drawn, line = set[int](), "---" if self.glyphs.ascii else "┈┈┈"
        for name, loss in sorted(self.metric.to_beat(self.state).items(), key=itemgetter(1)):
            value = math.log10(loss) if self.view.log and loss > 0 else loss
            row = row_of(value, bounds, raster.height)
            if bounds.low <= value <= bounds.high and row not in drawn:
                drawn.add(row)
                raster.label(row, f"{line} {self.glyphs.only(one_line(name[:_LABEL_LIMIT]))}", "dim")

    def title(self, width: int, bounds: Bounds | None) -> Line:
        """The metric with its newest value, what stands under the crosshair, an alarm, or what the marks mean."""
        view, series, glyphs = self.view, self.series, self.glyphs
        if view.compact:
            value = self.metric.show(float(series.values[-1])) if len(series.values) else "--"
            return title_rule(view.metric, width, glyphs, [(value.rjust(9), "text")])
        if view.cross_step is not None:
            return title_rule(self._reading(view.cross_step), width, glyphs)
        note = ", ".join(["log"] * view.log + [f"zoom {2**view.halvings}x"] * bool(view.halvings))
        if (bad := series.last_bad()) is not None:
            what = "NaN" if math.isnan(series.values[bad]) else "infinite"
            return title_rule([(f"{view.metric} is {what} at step {series.steps[bad]}", "bad")], width, glyphs, note)
        marks = self._legend(bounds)
        while len(marks) > 1 and width_of(marks) > width - 6:
            marks.pop()
        return title_rule(marks, width, glyphs, note)

    def _reading(self, step: int) -> Line:
        """`step 120  loss 1.8531  smoothed 1.9012  ◆ 1.9100 at step 100`; the last is the nearest evaluation."""
        at = self.series.nearest(step) or 0
        value, mean = float(self.series.values[at]), float(self.series.smoothed[at])
        shown = self.metric.show(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"
        line: Line = [(f"step {step}", "chart_cross"), (f"  {self.view.metric} {shown}", "text")]
        if self.series.smoothing and math.isfinite(mean):
            line.append((f"  smoothed {self.metric.show(mean)}", "chart_smooth"))
        if marks := self._marks:
            _, nearest, value = min((abs(done - step), done, value) for done, value in marks)
            line.append((f"  {self.glyphs.eval_mark} {self.metric.show(value)} at step {nearest}", "chart_eval"))
        return line

    @property
    def _marks(self) -> list[tuple[int, float]]:
        """The evaluations that are marked beside the curve: of what is not noisy they are the curve itself."""
        return self._evaluations() if self.metric.is_noisy else []

    def _legend(self, bounds: Bounds | None) -> Line:
        glyphs, smoothing = self.glyphs, self.series.smoothing
        line: Line = [(self.view.metric, "title")]
        if smoothing:
            line += [("  " + (":" if glyphs.ascii else "⡇") + " steps", "chart_raw")]
            line += [("  " + ("*" if glyphs.ascii else "⠒") + f" smoothed {smoothing:g}", "chart_smooth")]
        if self._marks:
            line.append((f"  {glyphs.eval_mark} held out", "chart_eval"))
        if bounds is not None:
            linear = Bounds(10.0**bounds.low, 10.0**bounds.high) if self.view.log else bounds
            below, above = self.series.outside(self.shown, linear)
            line += [(f"  {glyphs.above} {above} above", "chart_raw")] if above else []
            line += [(f"  {glyphs.below} {below} below", "chart_raw")] if below else []
        return line


_ALL = ChartView()


class LossChart(Pane):
    """Draws the run that `state` gives, as `view` says; a `view` that changes is drawn at once."""

    DEFAULT_CSS = "LossChart { height: 1fr; min-height: 4; }"
    ALLOW_SELECT = False

    view: reactive[ChartView] = reactive(_ALL, repaint=False, init=False)

    def __init__(
        self, state: Callable[[], RunState], view: ChartView = _ALL, *, id: str | None = None, disabled: bool = False
    ) -> None:
        super().__init__(lambda width, height: self.drawn(width, height, self.glyphs), id=id)
        self.disabled = disabled
        self._state = state
        self.beside: LossChart | None = None
        """Another chart of the same steps: what is chosen about the x axis is chosen for both."""
        # What has to stay from one picture to the next.
        self._drawn_view = view
        self._series: Series | None = None
        self._bounds: Bounds | None = None
        self._shown, self._across = Bounds(0, FIRST_DOMAIN_STEPS), 1
        self.set_reactive(LossChart.view, view)

    def forget(self) -> None:
        """Another run: it is drawn as nothing was before, with what was chosen about the marks."""
        self._series = self._bounds = None
        # A score that only the other run had.
        metric = self.view.metric if self.view.metric in METRICS else LOSS
        self.set_reactive(LossChart.view, replace(self.view, metric=metric, halvings=0, cross_step=None, log=False))

    def drawn(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """`height` lines of `width` cells: a title rule with the legend, the plot, its x axis and the labels."""
        if width < _SMALLEST[0] or height < _SMALLEST[1]:
            return [fit([], width)] * height
        state, view = self._state(), self.view
        if (metric := metric_of(state, view.metric)) is None:
            view, metric = replace(view, metric=LOSS, log=False), METRICS[LOSS]
        series = self._take(metric.points(state), view, metric.is_noisy)
        if view.cross_step is not None:
            view = replace(view, cross_step=series.nearest_step(view.cross_step))
        # The run's, also where what is drawn is measured now and then: two charts have the same axis.
        last_step = max([*series.steps[-1:].tolist(), *state.steps[-1:]], default=0)
        self._shown = window(domain_steps(last_step, state.total_steps), last_step, view.halvings, view.cross_step)
        self._across = width - GUTTER
        picture = _Picture(state, view, metric, series, self._shown, glyphs)
        if (wanted := picture.wanted_bounds()) is not None:
            self._bounds = settle(self._bounds, wanted.low, wanted.high)
            return [picture.title(width, self._bounds), *picture.plot(self._bounds, width, height - 1)]
        lines = [picture.title(width, None), *[fit([], width)] * (height - 1)]
        text = "no finite values to draw" if len(series.steps) else "no steps yet"
        lines[height // 2] = fit([(text.center(width), "dim")], width, glyphs.ellipsis)
        return lines

    def _take(self, points: Points, view: ChartView, is_noisy: bool) -> Series:
        before, self._drawn_view = self._drawn_view, view
        if self._series is None or (before.metric, before.smoothing) != (view.metric, view.smoothing):
            self._series = Series(view.smoothing if is_noisy else 0.0)
        is_other = (before.metric, before.log, before.halvings) != (view.metric, view.log, view.halvings)
        if self._series.take(*points) or is_other:
            self._bounds = None
        return self._series

    def watch_view(self) -> None:
        self.redraw()
        if (other := self.beside) is not None:
            now = self.view
            other.view = replace(other.view, smoothing=now.smoothing, halvings=now.halvings, cross_step=now.cross_step)

    def show_metric(self, name: str) -> None:
        if name != self.view.metric:
            self.view = replace(self.view, metric=name, log=False)

    def next_smoothing(self) -> None:
        self.view = replace(self.view, smoothing=next_of(SMOOTHINGS, self.view.smoothing))

    def next_metric(self) -> None:
        self.show_metric(next_of(list(metrics_of(self._state())), self.view.metric))

    def toggle_log(self) -> str:
        """Linear or logarithmic y. Returns why not when no value is above zero, else nothing."""
        name, state = self.view.metric, self._state()
        metric = metric_of(state, name) or METRICS[LOSS]
        if not self.view.log and not (metric.values(state) > 0).any():
            return f"a logarithmic axis needs positive values, and {name} has none"
        self.view = replace(self.view, log=not self.view.log)
        return ""

    def zoom(self, halvings: int) -> None:
        self.view = replace(self.view, halvings=min(max(self.view.halvings + halvings, 0), MOST_HALVINGS))

    def toggle_tail(self) -> None:
        self.view = replace(self.view, halvings=0 if self.view.halvings else _TAIL_HALVINGS, cross_step=None)

    def move_cross(self, columns: int) -> None:
        """Move the crosshair by so many columns, at least to the next point; the first move shows it at the last."""
        if self._series is None or not len(steps := self._series.steps):
            return
        at = len(steps) - 1
        if self.view.cross_step is not None:
            at = self._series.nearest(self.view.cross_step) or 0
            moved = self._series.nearest(int(steps[at]) + columns * self._column_steps) or 0
            at = min(max(moved if moved != at else at + (1 if columns > 0 else -1), 0), len(steps) - 1)
        self.view = replace(self.view, cross_step=int(steps[at]))

    @property
    def _column_steps(self) -> float:
        return self._shown.span / self._across

    def clear_cross(self) -> None:
        self.view = replace(self.view, cross_step=None)

    def on_mouse_down(self, event: MouseDown) -> None:
        self.capture_mouse()
        self._read_at(event.x)

    def on_mouse_move(self, event: MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._read_at(event.x)

    def on_mouse_up(self, event: MouseUp) -> None:
        self.release_mouse()

    def _read_at(self, x: int) -> None:
        """The crosshair at the point that is nearest to the cell `x`."""
        if self._series is not None and not self.view.compact:
            step = self._series.nearest_step(self._shown.low + (x - GUTTER + 0.5) * self._column_steps)
            self.view = replace(self.view, cross_step=step)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.zoom(1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.zoom(-1)
