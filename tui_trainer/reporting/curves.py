"""Charts of a run for reports. Curves are reduced to a few hundred points, even for 100,000 steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tui_trainer.runs.comparison import eval_curve, train_curve
from tui_trainer.runs.events import GAUGES
from tui_trainer.runs.result import display_name
from tui_trainer.runs.state import GaugeSummary, RunState, means
from tui_trainer.units import Unit, plotted

MOST_POINTS = 600
STEP_PARTS = ("data", "forward", "backward", "optimizer")
Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line of a chart. It contains only finite points."""

    name: str
    points: Points


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Curves over one x axis. `levels` are named values to compare with. A `stacked` curve is added to those before it.

    `from_zero` says whether the y axis starts at zero. `resumed_at` are the steps at which the run resumed."""

    title: str
    x_unit: str
    curves: tuple[Curve, ...]
    levels: tuple[tuple[str, float], ...] = ()
    stacked: bool = False
    from_zero: bool = True
    resumed_at: tuple[int, ...] = ()


def charts_of(state: RunState) -> list[Chart]:
    """Return the charts of a run. A chart without any points is left out."""
    loss_curves = (
        Curve(name="training", points=[(point.step, point.loss) for point in train_curve(state, MOST_POINTS)]),
        Curve(name="held out", points=[(point.step, point.loss) for point in eval_curve(state, MOST_POINTS)]),
    )
    scores: list[tuple[str, str, Points]] = []
    for name in dict.fromkeys(name for event in state.evals for name in event.scores):
        points: Points = [(event.step, event.scores[name]) for event in state.evals if name in event.scores]
        scores.append(("Score", display_name(name), points))
    for name, column in state.step_scores.items():
        scores.append(("In training", display_name(name), means(state.steps, column, MOST_POINTS)))
    levels = tuple((state.baselines.losses if state.baselines else {}).items())
    part_curves = []
    for part in STEP_PARTS:
        milliseconds = [(step, 1e3 * seconds) for step, seconds in _means(state, f"{part}_seconds")]
        part_curves.append(Curve(name=part, points=milliseconds))
    charts = [
        Chart(title="Loss", x_unit="step", curves=loss_curves, levels=levels, from_zero=False),
        *(_step_chart(f"{kind}: {name}", name, points, from_zero=False) for kind, name, points in scores),
        _step_chart("Learning rate", "learning rate", _means(state, "lrs")),
        _step_chart("Gradient norm", "gradient norm", _means(state, "grad_norms")),
        Chart(title="Step time, ms", x_unit="step", curves=tuple(part_curves), stacked=True),
    ]
    resume_steps = _resumed_at(state)
    charts = [*(replace(chart, resumed_at=resume_steps) for chart in charts), *_gauge_charts(state.gauge_summary)]
    return [chart for chart in charts if any(curve.points for curve in chart.curves)]


def _means(state: RunState, column: str) -> Points:
    return means(state.steps, getattr(state, column), MOST_POINTS)


def _step_chart(title: str, name: str, points: Points, *, from_zero: bool = True) -> Chart:
    return Chart(title=title, x_unit="step", curves=(Curve(name=name, points=points),), from_zero=from_zero)


def _resumed_at(state: RunState) -> tuple[int, ...]:
    """Return the steps at which the run resumed, without those that a later resume from an earlier step undid."""
    steps = set[int]()
    for start in state.starts:
        if start.from_step:
            steps = {start.from_step, *(step for step in steps if step < start.from_step)}
    return tuple(sorted(steps))


_UNITS, _LEAST_UNITS = {"hour": 3600, "minute": 60, "second": 1}, 3
_SHARED_TITLES: dict[Unit, str] = {"bytes": "Memory, GiB", "share": "Use, 0 to 1"}
"""Titles of the charts that show all gauges with the same unit, by unit."""


def _gauge_charts(gauges: GaugeSummary) -> Iterator[Chart]:
    total_seconds = gauges.seconds[-1] if gauges.seconds else 0.0
    unit = next((unit for unit, seconds in _UNITS.items() if total_seconds >= _LEAST_UNITS * seconds), "second")
    xs = [value / _UNITS[unit] for value in gauges.seconds]
    curves_of_title = dict[str, list[Curve]]()
    for name, figure in GAUGES.items():
        values = [plotted(figure, value) for value in gauges.columns[name]]
        if points := means(xs, values, MOST_POINTS):
            title = _SHARED_TITLES.get(figure.unit, figure.title)
            curves_of_title.setdefault(title, []).append(Curve(name=figure.title, points=points))
    for title, curves in curves_of_title.items():
        yield Chart(title=title, x_unit=unit, curves=tuple(curves))
