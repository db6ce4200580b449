"""The chart of a run: what is chosen (metric, smoothing, scale, zoom, crosshair), and the drawing of it.

Columns that are drawn do not move while steps are added: the x axis doubles when it is full, and the y axis changes
only when the values leave it or use little of it. numpy is loaded by the first draw.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.frame import GUTTER, gutter, message, title_rule, x_axis
from tui_trainer.ui.chart.legend import Reading, crosshair_legend, legend, scale_words
from tui_trainer.ui.chart.metrics import METRICS
from tui_trainer.ui.chart.scale import Bounds, domain_steps, log_ticks, settle, ticks, window
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, fit, width_of

if TYPE_CHECKING:
    from tui_trainer.ui.chart.series import Series

SMOOTHINGS: Final = (0.9, 0.98, 0.0, 0.6)
MOST_HALVINGS: Final = 12
_Evals = list[tuple[int, float]]
_TAIL_HALVINGS: Final = 2
_SMALLEST = (GUTTER + 10, 4)
_TICKS_TALL: Final = 5
# A chart lower than this has its x labels within the axis.
_LABELS_FROM: Final = 11


class LossChart:
    """Draws one metric of a run over its steps. One object belongs to one place on the screen."""

    def __init__(self, metric: str = "loss", *, smoothing: float = SMOOTHINGS[0], compact: bool = False) -> None:
        self.metric, self.smoothing, self.compact = METRICS[metric], smoothing, compact
        self.log = False
        self.halvings = 0
        self.cross_step: int | None = None
        self._series: Series | None = None
        self._bounds: Bounds | None = None
        self._shown: tuple[Bounds, int] | None = None

    def cycle_smoothing(self) -> str:
        """The next of 0, 0.6, 0.9 and 0.98; returns a sentence."""
        self.smoothing = SMOOTHINGS[(SMOOTHINGS.index(self.smoothing) + 1) % len(SMOOTHINGS)]
        self._series = None
        return f"smoothing {self.smoothing:g}" if self.smoothing else "no smoothing"

    def cycle_metric(self) -> str:
        """The next metric, on a linear axis; returns its name."""
        names = list(METRICS)
        self.metric = METRICS[names[(names.index(self.metric.name) + 1) % len(names)]]
        self._series = self._bounds = None
        self.log = False
        return self.metric.name

    def toggle_log(self, state: RunState) -> str | None:
        """Linear or logarithmic y. Returns why not when no value is above zero, else None."""
        if not self.log and not (self.metric.values(state) > 0).any():
            return f"a logarithmic axis needs values above zero, and {self.metric.name} has none"
        self.log = not self.log
        self._bounds = None
        return None

    def zoom_in(self) -> None:
        """Half as many steps, around the crosshair or at the tail."""
        self.halvings = min(self.halvings + 1, MOST_HALVINGS)
        self._bounds = None

    def zoom_out(self) -> None:
        """Twice as many steps, up to all of them."""
        self.halvings = max(self.halvings - 1, 0)
        self._bounds = None

    def zoom_reset(self) -> None:
        """All steps."""
        self.halvings, self._bounds = 0, None

    def toggle_tail(self) -> None:
        """All steps, or the last quarter of the axis."""
        self.halvings, self.cross_step, self._bounds = 0 if self.halvings else _TAIL_HALVINGS, None, None

    def move_cross(self, columns: int) -> None:
        """Moves the crosshair by so many columns, at least to the next point; the first move shows it at the tail."""
        if self._series is None or self._shown is None or not len(self._series.steps):
            return
        shown, across = self._shown
        series = self._series
        at = len(series.steps) - 1 if self.cross_step is None else series.nearest(self.cross_step) or 0
        if self.cross_step is not None:
            nearest = series.nearest(int(series.steps[at]) + columns * shown.span / across) or 0
            moved = nearest if nearest != at else at + (1 if columns > 0 else -1)
            at = min(max(moved, 0), len(series.steps) - 1)
        self.cross_step = int(series.steps[at])

    def clear_cross(self) -> None:
        """No crosshair."""
        self.cross_step = None

    def draw(self, state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """`height` lines of `width` cells: a title rule with the legend, the plot, its x axis and the labels."""
        if width < _SMALLEST[0] or height < _SMALLEST[1]:
            return [fit([], width)] * height
        series = self._take(state)
        last_step = int(series.steps[-1]) if len(series.steps) else 0
        shown = window(domain_steps(last_step, state.total_steps), last_step, self.halvings, self._around(series))
        self._shown = (shown, width - GUTTER)
        evals = self._evals(state, shown)
        wanted = self._wanted(evals, series, shown)
        if wanted is None:
            return self._empty(series, state, width, height, glyphs)
        self._bounds = settle(self._bounds, wanted.low, wanted.high)
        return self._drawn(state, series, evals, shown, width, height, glyphs)

    def _take(self, state: RunState) -> Series:
        import numpy as np

        from tui_trainer.ui.chart.series import Series

        if self._series is None:
            self._series = Series(self.smoothing if self.metric.smooths else 0.0)
        values = self.metric.values(state)
        steps = np.frombuffer(state.steps.tobytes(), np.int64)
        # A step may be appended between the two copies.
        length = min(len(steps), len(values))
        if self._series.take(steps[:length], values[:length]):
            self._bounds = None
        return self._series

    def _around(self, series: Series) -> int | None:
        nearest = None if self.cross_step is None else series.nearest(self.cross_step)
        if nearest is None:
            return None
        self.cross_step = int(series.steps[nearest])
        return self.cross_step

    def _evals(self, state: RunState, shown: Bounds) -> _Evals:
        """Step and value, in the unit of the y axis, of the evaluations in the window."""
        if self.metric.name != "loss":
            return []
        begin = bisect_left(state.evals, shown.low, key=attrgetter("step"))
        inside = [(done.step, done.loss) for done in islice(state.evals, begin, None) if done.step <= shown.high]
        finite = [(step, loss) for step, loss in inside if math.isfinite(loss)]
        return [(step, math.log10(loss)) for step, loss in finite if loss > 0] if self.log else finite

    def _wanted(self, evals: _Evals, series: Series, shown: Bounds) -> Bounds | None:
        core = series.core(shown, self.metric.robust, self.log)
        values = [value for _, value in evals]
        if core is None:
            return Bounds(min(values), max(values)) if values else None
        reach = core.span / 2 or math.inf
        near = [value for value in values if core.low - reach <= value <= core.high + reach]
        return Bounds(min(core.low, *near), max(core.high, *near)) if near else core

    def _title(self, state: RunState, series: Series, shown: Bounds, width: int, glyphs: Glyphs) -> Line:
        reading = Reading.of(self, state, series)
        if self.compact:
            newest = float(series.values[-1]) if len(series.values) else None
            value = "--" if newest is None else self.metric.show(newest)
            return title_rule([(self.metric.name, "title")], [(value.rjust(9), "text")], width, glyphs)
        if reading is not None:
            return title_rule(crosshair_legend(reading, glyphs), [], width, glyphs)
        bad = series.last_bad()
        right = scale_words(self.log, self.halvings)
        if bad is not None:
            what = "NaN" if math.isnan(series.values[bad]) else "infinite"
            alarm: Line = [(f"{self.metric.name} is {what} at step {series.steps[bad]}", "bad")]
            return title_rule(alarm, right, width, glyphs)
        outside = (0, 0) if self._bounds is None else series.outside(shown, self._linear(self._bounds))
        words = legend(self, bool(state.evals), outside, glyphs)
        while len(words) > 1 and width_of(words) > width - 6:
            words.pop()
        return title_rule(words, right, width, glyphs)

    def _linear(self, bounds: Bounds) -> Bounds:
        return Bounds(10.0**bounds.low, 10.0**bounds.high) if self.log else bounds

    def _empty(self, series: Series, state: RunState, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        shown = Bounds(0, 1)
        text = "no value that could be drawn" if len(series.steps) else "no step has been taken yet"
        return [self._title(state, series, shown, width, glyphs), *message([text], width, height - 1, glyphs)]

    def _drawn(
        self, state: RunState, series: Series, evals: _Evals, shown: Bounds, width: int, height: int, glyphs: Glyphs
    ) -> list[Line]:
        from tui_trainer.ui.chart.plot import plot

        assert self._bounds is not None
        inline = height < _LABELS_FROM
        rows = height - (1 if self.compact else 2 if inline else 3)
        raster = plot(self, state, series, evals, shown, self._bounds, (width - GUTTER, rows), glyphs)
        most = min(rows // 2 + 1, _TICKS_TALL)
        marks = (log_ticks if self.log else ticks)(self._bounds, most)
        left = gutter(rows, self._bounds, marks, glyphs)
        body: list[Line] = [[*side, *line] for side, line in zip(left, raster.lines(), strict=True)]
        below = [] if self.compact else x_axis(width, shown, raster.bad_columns, inline, glyphs)
        return [self._title(state, series, shown, width, glyphs), *body, *below]
