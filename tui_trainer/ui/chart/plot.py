"""Paints one chart: the steps, their mean above, then evaluations, the losses to beat, and the crosshair."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.ui.chart.frame import column_of, row_of
from tui_trainer.ui.chart.legend import edge_marks
from tui_trainer.ui.chart.metrics import ChartView
from tui_trainer.ui.chart.raster import Raster
from tui_trainer.ui.chart.scale import Bounds
from tui_trainer.ui.chart.series import Columns, Floats, Series
from tui_trainer.ui.glyphs import Glyphs

_LABEL_LIMIT: Final = 16
_MARK_EVERY: Final = 4


def plot(
    chart: ChartView, state: RunState, series: Series, evals: Sequence[tuple[int, float]],
    window: Bounds, bounds: Bounds, size: tuple[int, int], glyphs: Glyphs,
) -> Raster:  # fmt: skip
    """A raster of `size` cells, width first. `evals` and `bounds` are in the unit of the y axis."""
    raster = Raster(*size, glyphs)
    columns = series.columns(window, raster.dots_across)
    low, high, smoothed = (_scaled(values, chart.log) for values in (columns.low, columns.high, columns.smoothed))
    raster.curve(low, high, bounds, "chart_raw" if series.smoothing else "chart_smooth")
    _edges(raster, low, high, bounds, glyphs)
    if series.smoothing:
        raster.curve(smoothed, smoothed, bounds, "chart_smooth")
    _evaluations(raster, evals, window, bounds, glyphs)
    if chart.metric.name == "loss" and not chart.compact:
        _baselines(raster, state, bounds, chart.log, glyphs)
    if chart.cross_step is not None and not chart.compact:
        raster.cross(column_of(chart.cross_step, window, raster.width), glyphs.vertical)
    raster.bad_columns = _bad(columns, raster)
    return raster


def _scaled(values: Floats, log: bool) -> Floats:
    if not log:
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        # What has no logarithm lies below any range.
        return np.where(values > 0, np.log10(values), np.where(np.isnan(values), np.nan, -np.inf))


def _baselines(raster: Raster, state: RunState, bounds: Bounds, log: bool, glyphs: Glyphs) -> None:
    """The losses to beat, as names at the right end of their rows: lines across would look like steps.

    Those that lie beyond the range, or under the curve, are left out; of several in one row, all but the lowest.
    """
    drawn: set[int] = set()
    for name, loss in sorted((state.baselines.losses if state.baselines else {}).items(), key=lambda item: item[1]):
        value = math.log10(loss) if log and loss > 0 else loss
        row = row_of(value, bounds, raster.height)
        if bounds.low <= value <= bounds.high and row not in drawn:
            drawn.add(row)
            name = one_line(name[:_LABEL_LIMIT])
            text = f"--- {name.encode('ascii', 'replace').decode()}" if glyphs.ascii else f"┈┈┈ {name}"
            raster.label(row, text, "dim")


def _edges(raster: Raster, low: Floats, high: Floats, bounds: Bounds, glyphs: Glyphs) -> None:
    up, down = edge_marks(glyphs)
    for beyond, row, sign in ((high > bounds.high, 0, up), (low < bounds.low, raster.height - 1, down)):
        for column in set((np.flatnonzero(beyond) // raster.cell_columns).tolist()):
            raster.mark(column, row, sign, "chart_raw")


def _evaluations(
    raster: Raster, evals: Sequence[tuple[int, float]], window: Bounds, bounds: Bounds, glyphs: Glyphs
) -> None:
    """One mark in each few columns at most, the newest: a row of marks would hide the curve."""
    up, down = edge_marks(glyphs)
    per_step = raster.width / window.span / _MARK_EVERY
    for step, value in {int((step - window.low) * per_step): (step, value) for step, value in evals}.values():
        sign = up if value > bounds.high else down if value < bounds.low else glyphs.eval_mark
        column, row = column_of(step, window, raster.width), row_of(value, bounds, raster.height)
        raster.mark(column, row, sign, "chart_eval")


def _bad(columns: Columns, raster: Raster) -> list[int]:
    return sorted(set((np.flatnonzero(columns.bad) // raster.cell_columns).tolist()))
