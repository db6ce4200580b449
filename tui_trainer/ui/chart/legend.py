"""The words in the title of a chart: what the marks mean, or what stands under the crosshair."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tui_trainer.runs.state import RunState
from tui_trainer.ui.chart.metrics import ChartView
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line

if TYPE_CHECKING:
    from tui_trainer.ui.chart.series import Series


@dataclass(frozen=True, slots=True)
class Reading:
    """What stands under the crosshair, as texts. `evaluation` is the nearest one's value and step."""

    name: str
    step: int
    value: str
    smoothed: str | None
    evaluation: tuple[str, int] | None

    @classmethod
    def of(cls, chart: ChartView, state: RunState, series: Series) -> Reading | None:
        """None without a crosshair or a point."""
        at = None if chart.cross_step is None else series.nearest(chart.cross_step)
        if at is None:
            return None
        step, value, mean = int(series.steps[at]), float(series.values[at]), float(series.smoothed[at])
        smoothed = chart.metric.show(mean) if series.smoothing and math.isfinite(mean) else None
        nearest = min(state.evals, key=lambda done: abs(done.step - step), default=None)
        evaluation = None
        if nearest is not None and chart.metric.name == "loss":
            evaluation = (chart.metric.show(nearest.loss), nearest.step)
        return cls(chart.metric.name, step, _shown(chart, value), smoothed, evaluation)


def _shown(chart: ChartView, value: float) -> str:
    return chart.metric.show(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "infinite"


def crosshair_legend(reading: Reading, glyphs: Glyphs) -> Line:
    """`step 120  loss 1.8531  smoothed 1.9012  ◆ 1.9100 at step 100`."""
    line: Line = [(f"step {reading.step}", "chart_cross"), (f"  {reading.name} {reading.value}", "text")]
    if reading.smoothed is not None:
        line.append((f"  smoothed {reading.smoothed}", "chart_smooth"))
    if reading.evaluation is not None:
        value, step = reading.evaluation
        line.append((f"  {glyphs.eval_mark} {value} at step {step}", "chart_eval"))
    return line


def legend(chart: ChartView, has_evals: bool, outside: tuple[int, int], glyphs: Glyphs) -> Line:
    """The metric, the marks that are drawn, and how many values lie beyond the edges."""
    line: Line = [(chart.metric.name, "title")]
    smoothed = bool(chart.smoothing and chart.metric.smooths)
    if smoothed:
        line += [("  " + (":" if glyphs.ascii else "⡇") + " steps", "chart_raw")]
        line += [("  " + ("*" if glyphs.ascii else "⠒") + f" smoothed {chart.smoothing:g}", "chart_smooth")]
    if has_evals and chart.metric.name == "loss":
        line.append((f"  {glyphs.eval_mark} held out", "chart_eval"))
    below, above = outside
    up, down = edge_marks(glyphs)
    line += [(f"  {sign} {count} {where}", "chart_raw")
             for sign, count, where in ((up, above, "above"), (down, below, "below")) if count]  # fmt: skip
    return line


def scale_words(log: bool, halvings: int) -> Line:
    """Only what differs from the usual: a logarithmic axis, a part of the steps."""
    words = [word for word in ("log" if log else "", f"1/{2**halvings} of the axis" if halvings else "") if word]
    return [(", ".join(words), "dim")] if words else []


def edge_marks(glyphs: Glyphs) -> tuple[str, str]:
    """The signs for a value above and below the plot."""
    return ("^", "v") if glyphs.ascii else ("▴", "▾")
