"""A chart of one metric over the steps of a run. `curves.py` provides the metrics, `plot.py` the axes and dots."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from textual.events import MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.reactive import reactive

from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui import plot
from tui_trainer.ui.curves import LOSS, METRICS, Floats, Metric, Points, Series, metric_of, metrics_of
from tui_trainer.ui.plot import GUTTER, Bounds, Raster
from tui_trainer.ui.spans import Glyphs, Line, fit, next_of, title_rule, width_of
from tui_trainer.ui.widgets.pane import Pane

_LABEL_LIMIT: Final = 16
_MARK_EVERY: Final = 4
SMOOTHINGS: Final = (0.9, 0.98, 0.0, 0.6)
MOST_HALVINGS: Final = 12
_SMALLEST = (GUTTER + 10, 3)
_TICKS_TALL: Final = 5
# A chart with fewer rows has the labels of the x axis within the axis line.
_LABELS_FROM: Final = 11
_TAIL_HALVINGS = 2


def _scaled(values: Floats, log: bool) -> Floats:
    if not log:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        # Values that have no logarithm are drawn below every range.
        return np.where(values > 0, np.log10(values), np.where(np.isnan(values), np.nan, -np.inf))


@dataclass(frozen=True, slots=True)
class ChartView:
    """Settings of a chart. Each of `halvings` halves the visible steps, around the crosshair or at the newest steps."""

    metric: str = "loss"
    smoothing: float = SMOOTHINGS[0]
    log: bool = False
    halvings: int = 0
    cross_step: int | None = None
    compact: bool = False


@dataclass(frozen=True, slots=True)
class _Picture:
    """One drawing of a chart. Layers, each above the one before: steps, mean, evaluations, baselines, crosshair."""

    state: RunState
    view: ChartView
    metric: Metric
    series: Series
    step_window: Bounds
    glyphs: Glyphs

    def _evaluations(self) -> list[tuple[int, float]]:
        """Return `(step, value)` for each evaluation that measured the metric."""
        step_values = ((event.step, self.metric.read_evaluation(event)) for event in self.state.evals)
        return [(step, value) for step, value in step_values if value is not None]

    def _visible_evaluations(self) -> list[tuple[int, float]]:
        """Return `(step, value)` for each evaluation in the window. On a logarithmic axis, values are logarithms."""
        low, high = self.step_window.low, self.step_window.high
        points = [(step, value) for step, value in self._evaluations() if low <= step <= high and math.isfinite(value)]
        return [(step, math.log10(value)) for step, value in points if value > 0] if self.view.log else points

    def wanted_bounds(self) -> Bounds | None:
        """Return the range that the y axis should show: the curve, and evaluations near it. None without values."""
        core = self.series.main_value_range(self.step_window, self.metric.is_noisy, self.view.log)
        values = [value for _, value in self._visible_evaluations()]
        if core is None:
            return Bounds(min(values), max(values)) if values else None
        reach = core.span / 2 or math.inf
        near_values = [value for value in values if core.low - reach <= value <= core.high + reach]
        return Bounds(min(core.low, *near_values), max(core.high, *near_values)) if near_values else core

    def plot(self, bounds: Bounds, width: int, height: int) -> list[Line]:
        view, glyphs, is_inline = self.view, self.glyphs, height + 1 < _LABELS_FROM
        raster = Raster(width - GUTTER, height - (0 if view.compact else 1 if is_inline else 2), glyphs)
        bad_columns = self._paint_curves(raster, bounds)
        self._mark_evaluations(raster, bounds)
        if not view.compact:
            self._name_baselines(raster, bounds)
            if view.cross_step is not None:
                column = plot.column_of(view.cross_step, self.step_window, raster.width)
                raster.draw_vertical_line(column, glyphs.vertical)
        rows = plot.with_y_axis(raster.lines(), bounds, min(raster.height // 2 + 1, _TICKS_TALL), glyphs, log=view.log)
        if view.compact:
            return rows
        axis_lines = plot.x_axis(raster.width, self.step_window, "step", glyphs,
                                 keeps_unit=False, bad_columns=bad_columns, inline=is_inline)  # fmt: skip
        return [*rows, *axis_lines]

    def _paint_curves(self, raster: Raster, bounds: Bounds) -> list[int]:
        """Draw the values and their mean, and mark values out of range. Return the columns with NaN or infinity."""
        series, log = self.series, self.view.log
        *curves, is_bad = series.columns(self.step_window, raster.dot_columns)
        low, high, smoothed = (_scaled(values, log) for values in curves)

        def cells_of(dots: NDArray[np.bool_]) -> list[int]:
            return sorted(set((np.flatnonzero(dots) // raster.cell_columns).tolist()))

        raster.draw_curve(low, high, bounds, "chart_raw" if series.smoothing else "chart_smooth")
        for column in cells_of(high > bounds.high):
            raster.draw_mark(column, 0, self.glyphs.above, "chart_raw")
        for column in cells_of(low < bounds.low):
            raster.draw_mark(column, raster.height - 1, self.glyphs.below, "chart_raw")
        if series.smoothing:
            raster.draw_curve(smoothed, smoothed, bounds, "chart_smooth")
        return cells_of(is_bad)

    def _mark_evaluations(self, raster: Raster, bounds: Bounds) -> None:
        """Draw the marks of evaluations, at most one in each few columns, because more would hide the curve."""
        glyphs, marks_per_step = self.glyphs, raster.width / self.step_window.span / _MARK_EVERY
        points = self._visible_evaluations()
        newest_points = {int((point[0] - self.step_window.low) * marks_per_step): point for point in points}
        for step, value in newest_points.values():
            sign = glyphs.above if value > bounds.high else glyphs.below if value < bounds.low else glyphs.eval_mark
            column = plot.column_of(step, self.step_window, raster.width)
            raster.draw_mark(column, plot.row_of(value, bounds, raster.height), sign, "chart_eval")

    def _name_baselines(self, raster: Raster, bounds: Bounds) -> None:
        """Write the name of each baseline at the right end of its row, because a full line would look like a curve.

        A name is left out if its value is out of range, if its cells are taken, or if a lower baseline has the row.
        """
        used_rows, leader = set[int](), "---" if self.glyphs.ascii else "┈┈┈"
        for name, loss in sorted(self.metric.baselines_of_run(self.state).items(), key=itemgetter(1)):
            value = math.log10(loss) if self.view.log and loss > 0 else loss
            row = plot.row_of(value, bounds, raster.height)
            if bounds.low <= value <= bounds.high and row not in used_rows:
                used_rows.add(row)
                safe_name = self.glyphs.replace_unsupported(one_line(name[:_LABEL_LIMIT]))
                raster.draw_label(row, f"{leader} {safe_name}", "dim")

    def title(self, width: int, bounds: Bounds | None) -> Line:
        """Return the title line: the newest value, the values at the crosshair, a warning about NaN, or the legend."""
        view, series, glyphs = self.view, self.series, self.glyphs
        if view.compact:
            value = self.metric.format_value(float(series.values[-1])) if len(series.values) else "--"
            return title_rule(view.metric, width, glyphs, [(value.rjust(9), "text")])
        if view.cross_step is not None:
            return title_rule(self._crosshair_line(view.cross_step), width, glyphs)
        note = ", ".join(["log"] * view.log + [f"zoom {2**view.halvings}x"] * bool(view.halvings))
        for index in np.flatnonzero(~np.isfinite(series.values))[-1:]:
            kind = "NaN" if math.isnan(series.values[index]) else "infinite"
            return title_rule([(f"{view.metric} is {kind} at step {series.steps[index]}", "bad")], width, glyphs, note)
        legend = self._legend(bounds)
        while len(legend) > 1 and width_of(legend) > width - 6:
            legend.pop()
        return title_rule(legend, width, glyphs, note)

    def _crosshair_line(self, step: int) -> Line:
        """Return the values at the crosshair: `step 120  loss 1.8531  smoothed 1.9012  ◆ 1.9100 at step 100`."""
        index = self.series.nearest_index(step) or 0
        value, smoothed = float(self.series.values[index]), float(self.series.smoothed[index])
        bad_text = "NaN" if math.isnan(value) else "infinite"
        value_text = self.metric.format_value(value) if math.isfinite(value) else bad_text
        line: Line = [(f"step {step}", "chart_cross"), (f"  {self.view.metric} {value_text}", "text")]
        if self.series.smoothing and math.isfinite(smoothed):
            line.append((f"  smoothed {self.metric.format_value(smoothed)}", "chart_smooth"))
        if marks := self._marks:
            _, nearest_step, value = min((abs(eval_step - step), eval_step, value) for eval_step, value in marks)
            mark_text = f"  {self.glyphs.eval_mark} {self.metric.format_value(value)} at step {nearest_step}"
            line.append((mark_text, "chart_eval"))
        return line

    @property
    def _marks(self) -> list[tuple[int, float]]:
        """Evaluations to mark beside the curve, as `(step, value)`; none if the curve itself shows evaluations."""
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
            value_bounds = Bounds(10.0**bounds.low, 10.0**bounds.high) if self.view.log else bounds
            below_count, above_count = self.series.count_outside(self.step_window, value_bounds)
            line += [(f"  {glyphs.above} {above_count} above", "chart_raw")] if above_count else []
            line += [(f"  {glyphs.below} {below_count} below", "chart_raw")] if below_count else []
        return line


_ALL = ChartView()


class LossChart(Pane):
    """Chart of the run that `state()` returns. Assigning `view` redraws the chart."""

    DEFAULT_CSS = "LossChart { height: 1fr; min-height: 4; }"
    ALLOW_SELECT = False

    view: reactive[ChartView] = reactive(_ALL, repaint=False, init=False)

    def __init__(self, state: Callable[[], RunState], view: ChartView = _ALL, *, id: str | None = None) -> None:
        super().__init__(lambda width, height: self.draw_lines(width, height, self.glyphs), id=id)
        self.disabled = view.compact  # a small chart takes no keys and no clicks
        self._state = state
        self.other_chart: LossChart | None = None
        """Another chart of the same run, which gets this chart's zoom, crosshair and smoothing."""
        self._drawn_view = view
        self._series: Series | None = None
        self._bounds: Bounds | None = None
        self._step_window, self._column_steps = Bounds(0, plot.FIRST_DOMAIN_STEPS), 1.0
        self.set_reactive(LossChart.view, view)

    def forget(self) -> None:
        """Reset zoom, crosshair and axes for another run. A metric that not every run has is replaced by the loss."""
        self._series = self._bounds = None
        metric = self.view.metric if self.view.metric in METRICS else LOSS
        self.set_reactive(LossChart.view, replace(self.view, metric=metric, halvings=0, cross_step=None, log=False))

    def draw_lines(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """Return `height` lines of `width` cells: the title, the plot, and its x axis with labels."""
        if width < _SMALLEST[0] or height < _SMALLEST[1]:
            return [fit([], width)] * height
        state, view = self._state(), self.view
        if (metric := metric_of(state, view.metric)) is None:
            view, metric = replace(view, metric=LOSS, log=False), METRICS[LOSS]
        series = self._take(metric.points(state), view, metric.is_noisy)
        if view.cross_step is not None:
            view = replace(view, cross_step=series.nearest_step(view.cross_step))
        # The x axis follows the run's steps even for rare evaluations, so that charts side by side have the same axis.
        last_step = max([*series.steps[-1:].tolist(), *state.steps[-1:]], default=0)
        domain_steps = plot.domain_steps(last_step, state.total_steps)
        self._step_window = plot.window(domain_steps, last_step, view.halvings, view.cross_step)
        self._column_steps = self._step_window.span / (width - GUTTER)
        picture = _Picture(state, view, metric, series, self._step_window, glyphs)
        if (curve_bounds := picture.wanted_bounds()) is not None:
            self._bounds = plot.stable_bounds(self._bounds, curve_bounds.low, curve_bounds.high)
            return [picture.title(width, self._bounds), *picture.plot(self._bounds, width, height - 1)]
        lines = [picture.title(width, None), *[fit([], width)] * (height - 1)]
        message = "no finite values to draw" if len(series.steps) else "no steps yet"
        lines[height // 2] = fit([(message.center(width), "dim")], width, glyphs.ellipsis)
        return lines

    def _take(self, points: Points, view: ChartView, is_noisy: bool) -> Series:
        old_view, self._drawn_view = self._drawn_view, view
        if self._series is None or (old_view.metric, old_view.smoothing) != (view.metric, view.smoothing):
            self._series = Series(view.smoothing if is_noisy else 0.0)
        is_different = (old_view.metric, old_view.log, old_view.halvings) != (view.metric, view.log, view.halvings)
        if self._series.take(*points) or is_different:
            self._bounds = None
        return self._series

    def watch_view(self) -> None:
        self.redraw()
        if (chart := self.other_chart) is not None:
            now = self.view
            chart.view = replace(chart.view, smoothing=now.smoothing, halvings=now.halvings, cross_step=now.cross_step)

    def show_metric(self, name: str) -> None:
        if name != self.view.metric:
            self.view = replace(self.view, metric=name, log=False)

    def next_smoothing(self) -> None:
        self.view = replace(self.view, smoothing=next_of(SMOOTHINGS, self.view.smoothing))

    def next_metric(self) -> None:
        self.show_metric(next_of(list(metrics_of(self._state())), self.view.metric))

    def toggle_log(self) -> str:
        """Switch the y axis between linear and logarithmic. Return why that is impossible, or an empty string."""
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
        """Move the crosshair by columns, at least to the next point. The first call shows it at the newest point."""
        if self._series is None or not len(steps := self._series.steps):
            return
        index = len(steps) - 1
        if self.view.cross_step is not None:
            index = self._series.nearest_index(self.view.cross_step) or 0
            nearest = self._series.nearest_index(int(steps[index]) + columns * self._column_steps) or 0
            index = min(max(nearest if nearest != index else index + (1 if columns > 0 else -1), 0), len(steps) - 1)
        self.view = replace(self.view, cross_step=int(steps[index]))

    def clear_cross(self) -> None:
        self.view = replace(self.view, cross_step=None)

    def on_mouse_down(self, event: MouseDown) -> None:
        self.capture_mouse()
        self._move_cross_to_cell(event.x)

    def on_mouse_move(self, event: MouseMove) -> None:
        if self.app.mouse_captured is self:
            self._move_cross_to_cell(event.x)

    def on_mouse_up(self, event: MouseUp) -> None:
        self.release_mouse()

    def _move_cross_to_cell(self, x: int) -> None:
        """Move the crosshair to the point nearest to the cell `x`."""
        if self._series is not None and not self.view.compact:
            step = self._series.nearest_step(self._step_window.low + (x - GUTTER + 0.5) * self._column_steps)
            self.view = replace(self.view, cross_step=step)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.zoom(1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.zoom(-1)
