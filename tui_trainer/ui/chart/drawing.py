"""A chart of one metric over the steps of a run, as lines of text, and as a widget.

Columns that are drawn do not move while steps are added: the x axis doubles when it is full, and the y axis changes
only when the values leave it or use little of it. numpy is loaded by the first draw.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final, TypeVar

from textual.events import MouseDown, MouseMove, MouseScrollDown, MouseScrollUp, MouseUp
from textual.reactive import reactive

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.axes import GUTTER, Bounds, domain_steps, settle, window, with_y_axis, x_axis
from tui_trainer.ui.spans import Glyphs, Line, fit, title_rule, width_of
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.units import format_count, format_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tui_trainer.ui.chart.raster import Series

SMOOTHINGS: Final = (0.9, 0.98, 0.0, 0.6)
MOST_HALVINGS: Final = 12
_SMALLEST = (GUTTER + 10, 3)
_TICKS_TALL: Final = 5
# A chart lower than this has its x labels within the axis.
_LABELS_FROM: Final = 11
_TAIL_HALVINGS = 2
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Metric:
    """`values` gives one number per step of `state.steps`.

    What is noisy is smoothed, and the few values that are far off may leave the range.
    """

    values: Callable[[RunState], NDArray[np.float64]]
    show: Callable[[float], str]
    is_noisy: bool = True


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
    "learning rate": Metric(_column("lrs"), "{:.2e}".format, is_noisy=False),
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
        if view.cross_step is not None:
            view = replace(view, cross_step=series.nearest_step(view.cross_step))
        last_step = int(series.steps[-1]) if len(series.steps) else 0
        shown = window(domain_steps(last_step, state.total_steps), last_step, view.halvings, view.cross_step)
        self._shown = (shown, width - GUTTER)
        picture = _Picture(state, view, series, shown, glyphs)
        if (wanted := picture.wanted_bounds()) is not None:
            self._bounds = settle(self._bounds, wanted.low, wanted.high)
            return [picture.title(width, self._bounds), *picture.plot(self._bounds, width, height - 1)]
        lines = [picture.title(width, None), *[fit([], width)] * (height - 1)]
        text = "no value that could be drawn" if len(series.steps) else "no step has been taken yet"
        lines[height // 2] = fit([(text.center(width), "dim")], width, glyphs.ellipsis)
        return lines

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
        return self._series.nearest_step(shown.low + (x - GUTTER + 0.5) * shown.span / across)

    def _take(self, state: RunState, view: ChartView) -> Series:
        import numpy as np

        from tui_trainer.ui.chart.raster import Series

        before, metric = self._view, METRICS[view.metric]
        if before is None or (before.metric, before.smoothing) != (view.metric, view.smoothing):
            self._series = None
        if before is None or (before.metric, before.log, before.halvings) != (view.metric, view.log, view.halvings):
            self._bounds = None
        self._view = view
        if self._series is None:
            self._series = Series(view.smoothing if metric.is_noisy else 0.0)
        values = metric.values(state)
        steps = np.frombuffer(state.steps.tobytes(), np.int64)
        # A step may be appended between the two copies.
        length = min(len(steps), len(values))
        if self._series.take(steps[:length], values[:length]):
            self._bounds = None
        return self._series


@dataclass(frozen=True, slots=True)
class _Picture:
    state: RunState
    view: ChartView
    series: Series
    shown: Bounds
    glyphs: Glyphs

    @property
    def _shows_loss(self) -> bool:
        return self.view.metric == "loss"

    @property
    def _show(self) -> Callable[[float], str]:
        return METRICS[self.view.metric].show

    def _evals(self) -> list[tuple[int, float]]:
        """Step and value, in the unit of the y axis, of the evaluations in the window."""
        evals = self.state.evals if self._shows_loss else []
        begin = bisect_left(evals, self.shown.low, key=attrgetter("step"))
        inside = [(done.step, done.loss) for done in islice(evals, begin, None) if done.step <= self.shown.high]
        finite = [(step, loss) for step, loss in inside if math.isfinite(loss)]
        return [(step, math.log10(loss)) for step, loss in finite if loss > 0] if self.view.log else finite

    def wanted_bounds(self) -> Bounds | None:
        """The range of the values, and of the evaluations that are near them; None without any."""
        core = self.series.core(self.shown, METRICS[self.view.metric].is_noisy, self.view.log)
        values = [value for _, value in self._evals()]
        if core is None:
            return Bounds(min(values), max(values)) if values else None
        reach = core.span / 2 or math.inf
        near = [value for value in values if core.low - reach <= value <= core.high + reach]
        return Bounds(min(core.low, *near), max(core.high, *near)) if near else core

    def plot(self, bounds: Bounds, width: int, height: int) -> list[Line]:
        from tui_trainer.ui.chart.raster import plot

        view, columns, inline = self.view, width - GUTTER, height + 1 < _LABELS_FROM
        rows = height - (0 if view.compact else 1 if inline else 2)
        baselines = self.state.baselines if self._shows_loss and not view.compact else None
        raster = plot(
            self.series, self._evals(), baselines.losses if baselines else {}, self.shown, bounds, (columns, rows),
            self.glyphs, log=view.log, cross_step=None if view.compact else view.cross_step,
        )  # fmt: skip
        body = with_y_axis(raster.lines(), bounds, min(rows // 2 + 1, _TICKS_TALL), self.glyphs, log=view.log)
        if view.compact:
            return body
        axis = x_axis(columns, self.shown, "step", self.glyphs, keeps_unit=False, bad_columns=raster.bad_columns,
                      inline=inline)  # fmt: skip
        return [*body, *axis]

    def title(self, width: int, bounds: Bounds | None) -> Line:
        """The metric with its newest value, what stands under the crosshair, an alarm, or what the marks mean."""
        view, series, glyphs = self.view, self.series, self.glyphs
        if view.compact:
            value = self._show(float(series.values[-1])) if len(series.values) else "--"
            return title_rule(view.metric, width, glyphs, [(value.rjust(9), "text")])
        if view.cross_step is not None:
            return title_rule(self._reading(view.cross_step), width, glyphs)
        note = ", ".join(["log"] * view.log + [f"1/{2**view.halvings} of the axis"] * bool(view.halvings))
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
        shown = self._show(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"
        line: Line = [(f"step {step}", "chart_cross"), (f"  {self.view.metric} {shown}", "text")]
        if self.series.smoothing and math.isfinite(mean):
            line.append((f"  smoothed {self._show(mean)}", "chart_smooth"))
        if self.state.evals and self._shows_loss:
            nearest = min(self.state.evals, key=lambda done: abs(done.step - step))
            words = f"  {self.glyphs.eval_mark} {self._show(nearest.loss)} at step {nearest.step}"
            line.append((words, "chart_eval"))
        return line

    def _legend(self, bounds: Bounds | None) -> Line:
        glyphs, smoothing = self.glyphs, self.series.smoothing
        line: Line = [(self.view.metric, "title")]
        if smoothing:
            line += [("  " + (":" if glyphs.ascii else "⡇") + " steps", "chart_raw")]
            line += [("  " + ("*" if glyphs.ascii else "⠒") + f" smoothed {smoothing:g}", "chart_smooth")]
        if self.state.evals and self._shows_loss:
            line.append((f"  {glyphs.eval_mark} held out", "chart_eval"))
        if bounds is not None:
            linear = Bounds(10.0**bounds.low, 10.0**bounds.high) if self.view.log else bounds
            below, above = self.series.outside(self.shown, linear)
            line += [(f"  {glyphs.above} {above} above", "chart_raw")] if above else []
            line += [(f"  {glyphs.below} {below} below", "chart_raw")] if below else []
        return line


_ALL = ChartView()


def _next(choices: Sequence[T], present: T) -> T:
    return choices[(choices.index(present) + 1) % len(choices)]


class LossChart(Pane):
    """Draws the run that `state` gives, as `view` says; a `view` that changes is drawn at once."""

    DEFAULT_CSS = "LossChart { height: 1fr; min-height: 4; }"
    ALLOW_SELECT = False

    view: reactive[ChartView] = reactive(_ALL, repaint=False, init=False)

    def __init__(
        self, state: Callable[[], RunState], view: ChartView = _ALL, *, id: str | None = None, disabled: bool = False
    ) -> None:
        super().__init__(lambda w, h: self._drawing.draw(state(), self.view, w, h, self.glyphs), id=id)
        self.disabled = disabled
        self._state, self._drawing = state, ChartDrawing()
        self.set_reactive(LossChart.view, view)

    def forget(self) -> None:
        """Another run: it is drawn as nothing was before, with what was chosen about the marks."""
        self._drawing = ChartDrawing()
        self.set_reactive(LossChart.view, replace(self.view, halvings=0, cross_step=None, log=False))

    def watch_view(self) -> None:
        self.redraw()

    def next_smoothing(self) -> None:
        self.view = replace(self.view, smoothing=_next(SMOOTHINGS, self.view.smoothing))

    def next_metric(self) -> None:
        self.view = replace(self.view, metric=_next(list(METRICS), self.view.metric), log=False)

    def toggle_log(self) -> str:
        """Linear or logarithmic y. Returns why not when no value is above zero, else nothing."""
        metric = self.view.metric
        if not self.view.log and not (METRICS[metric].values(self._state()) > 0).any():
            return f"a logarithmic axis needs values above zero, and {metric} has none"
        self.view = replace(self.view, log=not self.view.log)
        return ""

    def zoom(self, halvings: int) -> None:
        self.view = replace(self.view, halvings=min(max(self.view.halvings + halvings, 0), MOST_HALVINGS))

    def toggle_tail(self) -> None:
        self.view = replace(self.view, halvings=0 if self.view.halvings else _TAIL_HALVINGS, cross_step=None)

    def move_cross(self, columns: int) -> None:
        """Move the crosshair; the first move shows it at the last step."""
        self.view = replace(self.view, cross_step=self._drawing.moved_cross(self.view.cross_step, columns))

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
        if not self.view.compact:
            self.view = replace(self.view, cross_step=self._drawing.step_at(x))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        event.stop()
        self.zoom(1)

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        event.stop()
        self.zoom(-1)
