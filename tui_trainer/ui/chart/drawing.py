"""A chart of one metric over the steps of a run, as lines of text.

Columns that are drawn do not move while steps are added: the x axis doubles when it is full, and the y axis changes
only when the values leave it or use little of it. numpy is loaded by the first draw.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.axes import (
    GUTTER,
    Bounds,
    domain_steps,
    gutter,
    log_ticks,
    message,
    settle,
    ticks,
    title_rule,
    window,
    x_axis,
)  # fmt: skip
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, fit, width_of
from tui_trainer.units import format_count, format_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tui_trainer.ui.chart.series import Series

SMOOTHINGS: Final = (0.9, 0.98, 0.0, 0.6)
MOST_HALVINGS: Final = 12
_Evals = list[tuple[int, float]]
_SMALLEST = (GUTTER + 10, 4)
_TICKS_TALL: Final = 5
# A chart lower than this has its x labels within the axis.
_LABELS_FROM: Final = 11


@dataclass(frozen=True, slots=True)
class Metric:
    """`values` gives one number per step of `state.steps`; `robust`: a few that are far off may leave the range.

    `smooths` is false for what has no noise.
    """

    values: Callable[[RunState], NDArray[np.float64]]
    show: Callable[[float], str]
    smooths: bool = True
    robust: bool = True


def _column(name: str) -> Callable[[RunState], NDArray[np.float64]]:
    def read(state: RunState) -> NDArray[np.float64]:
        import numpy as np

        # A copy made in one call: a view would lock the column against the thread that appends to it.
        column: array[float] = getattr(state, name)
        return np.frombuffer(column.tobytes(), np.float64)

    return read


def _tokens_per_second(state: RunState) -> NDArray[np.float64]:
    import numpy as np

    tokens, seconds = np.frombuffer(state.token_counts.tobytes(), np.int64), _column("step_seconds")(state)
    length = min(len(tokens), len(seconds))
    tokens, seconds = tokens[:length], seconds[:length]
    rates: NDArray[np.float64] = np.divide(tokens, seconds, out=np.full(length, np.nan), where=seconds > 0)
    return rates


METRICS: Final[dict[str, Metric]] = {
    "loss": Metric(_column("losses"), "{:.4f}".format),
    "learning rate": Metric(_column("lrs"), "{:.2e}".format, smooths=False, robust=False),
    "gradient norm": Metric(_column("grad_norms"), "{:.3g}".format),
    "tokens/s": Metric(_tokens_per_second, format_count),
    "step seconds": Metric(_column("step_seconds"), format_seconds),
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


class ChartDrawing:
    """Draws one chart; remembers what has to stay from one picture to the next: the smoothed series and the ranges."""

    def __init__(self) -> None:
        self._view: ChartView | None = None
        self._series: Series | None = None
        self._bounds: Bounds | None = None
        self._shown: tuple[Bounds, int] | None = None

    def draw(self, state: RunState, view: ChartView, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """`height` lines of `width` cells: a title rule with the legend, the plot, its x axis and the labels."""
        if width < _SMALLEST[0] or height < _SMALLEST[1]:
            return [fit([], width)] * height
        series = self._take(state, view)
        cross_step = None if view.cross_step is None else _nearest_step(series, view.cross_step)
        view = replace(view, cross_step=cross_step)
        last_step = int(series.steps[-1]) if len(series.steps) else 0
        shown = window(domain_steps(last_step, state.total_steps), last_step, view.halvings, cross_step)
        self._shown = (shown, width - GUTTER)
        evals = _evals(state, view, shown)
        wanted = _wanted(evals, series, view, shown)
        if wanted is None:
            text = "no value that could be drawn" if len(series.steps) else "no step has been taken yet"
            title = _title(state, view, series, (0, 0), width, glyphs)
            return [title, *message([text], width, height - 1, glyphs)]
        self._bounds = settle(self._bounds, wanted.low, wanted.high)
        linear = Bounds(10.0**self._bounds.low, 10.0**self._bounds.high) if view.log else self._bounds
        title = _title(state, view, series, series.outside(shown, linear), width, glyphs)
        return [title, *_plotted(state, view, series, evals, shown, self._bounds, width, height - 1, glyphs)]

    def moved_cross(self, cross_step: int | None, columns: int) -> int | None:
        """The step of a crosshair that moves by so many columns, at least to the next point; the first is the last."""
        if self._series is None or self._shown is None or not len(self._series.steps):
            return cross_step
        (shown, across), steps = self._shown, self._series.steps
        at = len(steps) - 1
        if cross_step is not None:
            at = self._series.nearest(cross_step) or 0
            moved = self._series.nearest(int(steps[at]) + columns * shown.span / across) or 0
            at = min(max(moved if moved != at else at + (1 if columns > 0 else -1), 0), len(steps) - 1)
        return int(steps[at])

    def step_at(self, x: int) -> int | None:
        """The step of the point that is nearest to the cell `x`; None while nothing is drawn."""
        if self._series is None or self._shown is None:
            return None
        shown, across = self._shown
        return _nearest_step(self._series, shown.low + (x - GUTTER + 0.5) * shown.span / across)

    def _take(self, state: RunState, view: ChartView) -> Series:
        import numpy as np

        from tui_trainer.ui.chart.series import Series

        before, metric = self._view, METRICS[view.metric]
        if before is None or (before.metric, before.smoothing) != (view.metric, view.smoothing):
            self._series = None
        if before is None or (before.metric, before.log, before.halvings) != (view.metric, view.log, view.halvings):
            self._bounds = None
        self._view = view
        if self._series is None:
            self._series = Series(view.smoothing if metric.smooths else 0.0)
        values = metric.values(state)
        steps = np.frombuffer(state.steps.tobytes(), np.int64)
        # A step may be appended between the two copies.
        length = min(len(steps), len(values))
        if self._series.take(steps[:length], values[:length]):
            self._bounds = None
        return self._series


def _nearest_step(series: Series, step: float) -> int | None:
    at = series.nearest(step)
    return None if at is None else int(series.steps[at])


def _evals(state: RunState, view: ChartView, shown: Bounds) -> _Evals:
    """Step and value, in the unit of the y axis, of the evaluations in the window."""
    if view.metric != "loss":
        return []
    begin = bisect_left(state.evals, shown.low, key=attrgetter("step"))
    inside = [(done.step, done.loss) for done in islice(state.evals, begin, None) if done.step <= shown.high]
    finite = [(step, loss) for step, loss in inside if math.isfinite(loss)]
    return [(step, math.log10(loss)) for step, loss in finite if loss > 0] if view.log else finite


def _wanted(evals: _Evals, series: Series, view: ChartView, shown: Bounds) -> Bounds | None:
    core = series.core(shown, METRICS[view.metric].robust, view.log)
    values = [value for _, value in evals]
    if core is None:
        return Bounds(min(values), max(values)) if values else None
    reach = core.span / 2 or math.inf
    near = [value for value in values if core.low - reach <= value <= core.high + reach]
    return Bounds(min(core.low, *near), max(core.high, *near)) if near else core


def _plotted(
    state: RunState, view: ChartView, series: Series, evals: _Evals, shown: Bounds, bounds: Bounds,
    width: int, height: int, glyphs: Glyphs,
) -> list[Line]:  # fmt: skip
    from tui_trainer.ui.chart.raster import plot

    inline = height + 1 < _LABELS_FROM
    rows = height - (0 if view.compact else 1 if inline else 2)
    has_baselines = view.metric == "loss" and not view.compact and state.baselines is not None
    baselines = state.baselines.losses if has_baselines and state.baselines else {}
    cross_step = None if view.compact else view.cross_step
    raster = plot(series, evals, baselines, shown, bounds, (width - GUTTER, rows), glyphs, log=view.log,
                  cross_step=cross_step)  # fmt: skip
    marks = (log_ticks if view.log else ticks)(bounds, min(rows // 2 + 1, _TICKS_TALL))
    body = [[*side, *line] for side, line in zip(gutter(rows, bounds, marks, glyphs), raster.lines(), strict=True)]
    return body if view.compact else [*body, *x_axis(width, shown, raster.bad_columns, inline, glyphs)]


def _title(
    state: RunState, view: ChartView, series: Series, outside: tuple[int, int], width: int, glyphs: Glyphs
) -> Line:
    """The metric with its newest value, what stands under the crosshair, an alarm, or what the marks mean."""
    name = view.metric
    if view.compact:
        value = METRICS[name].show(float(series.values[-1])) if len(series.values) else "--"
        return title_rule([(name, "title")], [(value.rjust(9), "text")], width, glyphs)
    if view.cross_step is not None:
        return title_rule(_reading(state, view, series, view.cross_step, glyphs), [], width, glyphs)
    words = ["log"] * view.log + [f"1/{2**view.halvings} of the axis"] * bool(view.halvings)
    right: Line = [(", ".join(words), "dim")] if words else []
    if (bad := series.last_bad()) is not None:
        what = "NaN" if math.isnan(series.values[bad]) else "infinite"
        return title_rule([(f"{name} is {what} at step {series.steps[bad]}", "bad")], right, width, glyphs)
    marks = _legend(view, series, bool(state.evals), outside, glyphs)
    while len(marks) > 1 and width_of(marks) > width - 6:
        marks.pop()
    return title_rule(marks, right, width, glyphs)


def _reading(state: RunState, view: ChartView, series: Series, step: int, glyphs: Glyphs) -> Line:
    """`step 120  loss 1.8531  smoothed 1.9012  ◆ 1.9100 at step 100`; the last is the nearest evaluation."""
    at, show = series.nearest(step) or 0, METRICS[view.metric].show
    value, mean = float(series.values[at]), float(series.smoothed[at])
    shown = show(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"
    line: Line = [(f"step {step}", "chart_cross"), (f"  {view.metric} {shown}", "text")]
    if series.smoothing and math.isfinite(mean):
        line.append((f"  smoothed {show(mean)}", "chart_smooth"))
    if state.evals and view.metric == "loss":
        nearest = min(state.evals, key=lambda done: abs(done.step - step))
        line.append((f"  {glyphs.eval_mark} {show(nearest.loss)} at step {nearest.step}", "chart_eval"))
    return line


def _legend(view: ChartView, series: Series, has_evals: bool, outside: tuple[int, int], glyphs: Glyphs) -> Line:
    """The metric, the marks that are drawn, and how many values lie below and above the edges."""
    from tui_trainer.ui.chart.raster import edge_marks

    line: Line = [(view.metric, "title")]
    if series.smoothing:
        line += [("  " + (":" if glyphs.ascii else "⡇") + " steps", "chart_raw")]
        line += [("  " + ("*" if glyphs.ascii else "⠒") + f" smoothed {series.smoothing:g}", "chart_smooth")]
    if has_evals and view.metric == "loss":
        line.append((f"  {glyphs.eval_mark} held out", "chart_eval"))
    (up, down), (below, above) = edge_marks(glyphs), outside
    line += [(f"  {sign} {count} {where}", "chart_raw")
             for sign, count, where in ((up, above, "above"), (down, below, "below")) if count]  # fmt: skip
    return line
