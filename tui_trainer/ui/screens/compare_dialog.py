"""The comparison dialog of the Runs screen: curves of two to six runs, and a table of the differences between them."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from textual.containers import Container, VerticalScroll
from textual.widget import Widget

from tui_trainer.errors import InputError
from tui_trainer.lines.comparison_lines import comparison_lines
from tui_trainer.lines.guides import sections
from tui_trainer.runs.comparison import CURVE_POINTS, ComparedRun, Comparison, compare_and_states
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import RunState, means
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.curves import HELD_OUT_LOSS, LOSS, METRICS, Metric, metric_of, metrics_of
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.plot import GUTTER, Bounds, Raster, column_of, row_of, stable_bounds, with_y_axis, x_axis
from tui_trainer.ui.screens.runs_view import RUN_LETTERS
from tui_trainer.ui.spans import Glyphs, Line, Role, next_of, paragraph, title_rule
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import Workbench

ROLES: Final[tuple[Role, ...]] = ("accent", "warn", "good", "bad", "text", "chart_raw")
_Points = Sequence[tuple[float, float]]
_FIELDS: Final = {"steps": "step", "tokens": "tokens", "seconds": "seconds"}


@dataclass(frozen=True, slots=True)
class ComparedCurve:
    """Curve of one run with the letter `sign`. `points` (x, y) are sorted and joined; `marks` are single points."""

    sign: str
    points: _Points = ()
    marks: _Points = ()

    def scaled(self, log: bool) -> "ComparedCurve":
        def scale(points: _Points) -> _Points:
            return [(x, math.log10(y) if log else y) for x, y in points if math.isfinite(y) and (y > 0 or not log)]

        return ComparedCurve(self.sign, scale(self.points), scale(self.marks))


def curves_lines(
    curves: Sequence[ComparedCurve], unit: str, width: int, height: int, glyphs: Glyphs, *, log: bool = False
) -> list[Line]:
    """Return a chart of the curves with axes, in `width` x `height` cells. `ROLES` gives each curve its colour."""
    scaled_curves = [(curve.scaled(log), role) for curve, role in zip(curves, ROLES, strict=False)]
    all_points = [point for curve, _ in scaled_curves for point in (*curve.points, *curve.marks)]
    if not all_points or height < 4 or width < 3 * GUTTER:
        return [[("no values to draw", "dim")]]
    raster, (all_x, all_y) = Raster(width - GUTTER, height - 2, glyphs), zip(*all_points, strict=True)
    x_bounds, y_bounds = Bounds(0, max(all_x) or 1), stable_bounds(None, min(all_y), max(all_y))

    def draw_marks(points: _Points, sign: str, role: Role) -> None:
        for x, y in points:
            raster.draw_mark(column_of(x, x_bounds, raster.width), row_of(y, y_bounds, raster.height), sign, role)

    # Lines, marks and signs are drawn in this order, so that no mark covers the sign of another curve.
    # Dot columns between two points are interpolated. Nothing is drawn before the first or after the last point.
    dots_x = np.linspace(x_bounds.low, x_bounds.high, raster.dot_columns)
    for curve, role in scaled_curves:
        if curve.points:
            x, y = np.array(curve.points, np.float64).T
            values = np.interp(dots_x, x, y, right=np.nan, left=np.nan)
            values[np.argmin(np.abs(dots_x - x[-1]))] = y[-1]
            raster.draw_curve(values, values, y_bounds, role)
    for curve, role in scaled_curves:
        draw_marks(curve.marks, glyphs.eval_mark, role)
    for index, (curve, role) in enumerate(scaled_curves):
        draw_marks(_signed(curve.points, index, len(scaled_curves)), curve.sign, role)
    rows = with_y_axis(raster.lines(), y_bounds, max(raster.height // 3, 2), glyphs, log=log)
    return [*rows, *x_axis(raster.width, x_bounds, unit, glyphs)]


def _signed(points: _Points, index: int, count: int) -> _Points:
    """Return the points of a curve that get its sign: the last point, and one point in each half."""
    first_share = (index + 0.5) / count / 2
    return [points[int(share * (len(points) - 1))] for share in (first_share, 0.5 + first_share, 1.0)] if points else []


def metric_names(states: Sequence[RunState]) -> list[str]:
    """Return the names of the metrics that at least one run has, losses and scores first."""
    scores = [name for state in states for name in metrics_of(state) if name not in METRICS]
    return list(dict.fromkeys([LOSS, HELD_OUT_LOSS, *scores, *METRICS]))


def metric_points(state: RunState, metric: Metric, unit: str) -> _Points:
    """Return up to `CURVE_POINTS` means of a metric as (x, y). x is the end of the averaged steps, in `unit`."""
    steps, values = metric.points(state)
    x = steps.astype(float)
    if unit != "steps":
        totals = np.cumsum(state.token_counts if unit == "tokens" else state.step_seconds, dtype=float)
        x = np.append(0.0, totals)[np.searchsorted(state.steps, steps, side="right")]
    return means(x.tolist(), values.tolist(), CURVE_POINTS)


def _curve(sign: str, run: ComparedRun, state: RunState, name: str, unit: str) -> ComparedCurve:
    """Return the curve of the metric `name`. The training loss also has marks at the evaluations."""
    if name == LOSS:
        point_series = ([(float(getattr(point, _FIELDS[unit])), point.loss) for point in curve]
                        for curve in (run.train_curve, run.eval_curve))  # fmt: skip
        return ComparedCurve(sign, *point_series)
    metric = metric_of(state, name)
    return ComparedCurve(sign, metric_points(state, metric, unit) if metric else ())


class Curves(Pane):
    """Chart of one metric of all compared runs."""

    def __init__(self, metric: str) -> None:
        super().__init__(self._chart_lines)
        self.curves: Sequence[ComparedCurve] = ()
        self.metric, self.unit, self.is_log = metric, "steps", False

    def _chart_lines(self, width: int, height: int) -> list[Line]:
        scale_note = ", logarithmic" if self.is_log else ""
        marks_note = f"{self.glyphs.eval_mark} held out" if any(curve.marks for curve in self.curves) else ""
        name = "training loss" if self.metric == LOSS else self.metric
        unit = "trained tokens" if self.unit == "tokens" else self.unit
        title = title_rule(f"{name} over {unit}{scale_note}", width, self.glyphs, marks_note)
        return [title, *curves_lines(self.curves, self.unit, width, height - 1, self.glyphs, log=self.is_log)]


class CompareDialog(Dialog):
    heading = "Compare"
    keys = (
        ("v", "metric"), ("V", "second"), ("x", "axis"), ("Z", "log"),
        ("up down", "scroll"), ("?", "help"), ("escape", "close"),
    )  # fmt: skip
    app: Any

    def __init__(self, bench: Workbench, folders: Sequence[RunFolder]) -> None:
        super().__init__()
        self._bench, self._folders = bench, folders
        self._answer: Comparison | str | None = None
        self._states: Sequence[RunState] = ()
        self._first, self._second = Curves(LOSS), Curves("")
        self._second.display = False

    def compose_content(self) -> Iterable[Widget]:
        with VerticalScroll(id="inside", can_focus=False):
            yield Pane(self._legend)
            with Container(id="charts"):
                yield self._first
                yield self._second
            yield Pane(lambda width, _: self.lines(width))

    def on_mount(self) -> None:
        self._bench.background.run_work("comparison", self._compare, self._compared)

    def _compare(self) -> tuple[Comparison, Sequence[RunState]] | str:
        try:
            return compare_and_states(self._folders)
        except (InputError, OSError) as error:
            return one_line(str(error))

    def _compared(self, answer: tuple[Comparison, Sequence[RunState]] | str) -> None:
        self._answer, self._states = (answer, ()) if isinstance(answer, str) else answer
        if self.is_attached:
            self._show_curves()
            self.redraw()

    def _show_curves(self) -> None:
        runs = self._answer.runs if isinstance(self._answer, Comparison) else ()
        for chart in (self._first, self._second):
            chart.curves = [_curve(sign, run, state, chart.metric, chart.unit)
                            for sign, run, state in zip(RUN_LETTERS, runs, self._states, strict=False)]  # fmt: skip

    def _legend(self, width: int, _: int) -> list[Line]:
        warning = self._answer.warning if isinstance(self._answer, Comparison) else ""
        return [
            *([(f"{sign} ", role), (one_line(folder.name), "text"), (f"  {one_line(str(folder.root.parent))}", "dim")]
              for sign, role, folder in zip(RUN_LETTERS, ROLES, self._folders, strict=False)),
            *(paragraph(one_line(warning), width, "warn") if warning else []),
        ]  # fmt: skip

    def lines(self, width: int) -> list[Line]:
        if not isinstance(self._answer, Comparison):
            return [[(self._answer or "reading the journals ...", "text")]]
        rows = comparison_lines(self._answer, width, RUN_LETTERS[: len(self._answer.runs)])
        return [[(row, "text")] for row in ["", *rows]]

    def press(self, key: str, character: str | None) -> bool:
        charts = (self._first, self._second)
        if character == "?" or key == "f1":
            pages = sections("screens")
            self.app.call_next(self.app.read_guide, next(page for page in pages if page.title == "The comparison"))
        elif character == "v":
            self._first.metric = next_of(metric_names(self._states), self._first.metric)
        elif character == "V":
            # The second chart shows no metric that the first one shows. After the last metric it is hidden.
            other_metrics = [name for name in metric_names(self._states) if name != self._first.metric]
            self._second.metric = next_of(["", *other_metrics], self._second.metric)
            self._second.display = bool(self._second.metric)
            self.set_class(self._second.display, "-two")
        elif key == "x":
            for chart in charts:
                chart.unit = next_of(list(_FIELDS), chart.unit)
        elif character == "Z":
            for chart in charts:
                chart.is_log = not chart.is_log
        self._show_curves()
        return True
