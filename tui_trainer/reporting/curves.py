"""The curves of a run, collected while its journal is read, and thinned: 100,000 steps become a few hundred points."""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field, replace
from datetime import datetime

from tui_trainer.runs.comparison import eval_curve, train_curve
from tui_trainer.runs.events import Event, GaugesRead, RunStarted, StepDone
from tui_trainer.runs.result import plain
from tui_trainer.runs.state import RunState, means
from tui_trainer.units import GIB

MOST_POINTS = 600
STEP_PARTS = ("data", "forward", "backward", "optimizer")
# Between two readings that are further apart nothing was measured: the run was paused or gone, or a clock jumped.
_LONGEST_GAP_SECONDS = 60.0
Points = list[tuple[float, float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line of a chart. What is not finite is left out."""

    name: str
    points: Points


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Curves over the same axis, which begins at zero where not only differences matter. `levels` are values to compare
    with; `stacked` curves lie on top of each other; at `resumed_at` the run was gone on with."""

    title: str
    x_unit: str
    curves: tuple[Curve, ...]
    levels: tuple[tuple[str, float], ...] = ()
    stacked: bool = False
    from_zero: bool = True
    resumed_at: tuple[int, ...] = ()


def _column() -> array[float]:
    return array("d")


@dataclass(slots=True)
class CurveCollector:
    """What a RunState does not keep of each step and each reading. `take` an event after the state has."""

    parts: tuple[array[float], ...] = field(default_factory=lambda: tuple(_column() for _ in STEP_PARTS))
    energy_joules: float | None = None
    """Of the cards, by the readings; None where none tells its power."""
    _resumed_at: set[int] = field(default_factory=set)
    _gauge_seconds: array[float] = field(default_factory=_column)
    _gauges: dict[str, array[float]] = field(default_factory=dict)
    _seconds: float = 0.0
    _last_at: datetime | None = None
    _last_watts: float | None = None

    def take(self, event: Event, state: RunState) -> None:
        if isinstance(event, StepDone):
            # Steps that are done again replace their first try, as in the state.
            for name, column in zip(STEP_PARTS, self.parts, strict=True):
                del column[len(state.steps) - 1 :]
                column.append(getattr(event, f"{name}_seconds"))
        elif isinstance(event, RunStarted) and event.resumed_from_step:
            # What came after it is done again, and so are the resumes there.
            step = event.resumed_from_step
            self._resumed_at = {step, *(one for one in self._resumed_at if one < step)}
        elif isinstance(event, GaugesRead):
            self._take_gauges(event)

    def _take_gauges(self, event: GaugesRead) -> None:
        at = _moment(event.at)
        gap = (at - self._last_at).total_seconds() if at and self._last_at else 0.0
        gap = gap if 0 <= gap <= _LONGEST_GAP_SECONDS else 0.0
        if (watts := event.over_gpus("power_watts")) is not None:
            self.energy_joules = (self.energy_joules or 0.0) + gap * (watts + (self._last_watts or watts)) / 2
        self._last_at, self._last_watts = at or self._last_at, watts
        self._seconds += gap
        self._gauge_seconds.append(self._seconds)
        for name, value in _readings(event).items():
            if name not in self._gauges:
                self._gauges[name] = array("d", [math.nan] * (len(self._gauge_seconds) - 1))
            self._gauges[name].append(math.nan if value is None else value)

    def charts(self, state: RunState) -> list[Chart]:
        losses = (
            Curve(name="training", points=[(point.step, point.loss) for point in train_curve(state, MOST_POINTS)]),
            Curve(name="held out", points=[(point.step, point.loss) for point in eval_curve(state, MOST_POINTS)]),
        )
        names = list(dict.fromkeys(name for done in state.evals for name in done.scores))
        scores: list[tuple[str, Points]] = [
            (plain(name), [(done.step, done.scores[name]) for done in state.evals if name in done.scores])
            for name in names
        ]
        levels = tuple((state.baselines.losses if state.baselines else {}).items())
        parts = tuple(
            Curve(
                name=name, points=[(step, 1e3 * seconds) for step, seconds in means(state.steps, column, MOST_POINTS)]
            )
            for name, column in zip(STEP_PARTS, self.parts, strict=True)
        )
        made = [
            Chart(title="Loss", x_unit="step", curves=losses, levels=levels, from_zero=False),
            *(replace(_alone(f"Score: {name}", name, points), from_zero=False) for name, points in scores),
            *(
                replace(_alone(f"In training: {plain(name)}", plain(name), points), from_zero=False)
                for name, column in state.step_scores.items()
                if (points := means(state.steps, column, MOST_POINTS))
            ),
            _alone("Learning rate", "learning rate", means(state.steps, state.lrs, MOST_POINTS)),
            _alone("Gradient norm", "gradient norm", means(state.steps, state.grad_norms, MOST_POINTS)),
            Chart(title="Step time, ms", x_unit="step", curves=parts, stacked=True),
        ]
        resumed_at = tuple(sorted(self._resumed_at))
        made = [*(replace(chart, resumed_at=resumed_at) for chart in made), *self._gauge_charts()]
        return [chart for chart in made if any(curve.points for curve in chart.curves)]

    def _gauge_charts(self) -> list[Chart]:
        unit = next((unit for unit, length in _UNITS.items() if self._seconds >= _LEAST_UNITS * length), "second")
        xs = [value / _UNITS[unit] for value in self._gauge_seconds]
        curves = {
            name: Curve(name=name, points=means(xs, column, MOST_POINTS)) for name, column in self._gauges.items()
        }
        return [
            Chart(
                title=title,
                x_unit=unit,
                curves=tuple(curves[name] for name in names if name in curves and curves[name].points),
            )
            for title, names in _GAUGE_CHARTS.items()
        ]


_UNITS, _LEAST_UNITS = {"hour": 3600, "minute": 60, "second": 1}, 3
_GAUGE_CHARTS = {
    "Memory, GiB": ("process memory", "GPU memory"),
    "Use, %": ("CPU", "GPU"),
    "GPU power, W": ("power",),
    "GPU temperature, °C": ("temperature",),
}


def _readings(event: GaugesRead) -> dict[str, float | None]:
    return {
        "process memory": _scaled(event.process_memory_bytes, 1 / GIB),
        "CPU": _scaled(event.process_cpu_share, 100),
        "GPU memory": _scaled(event.over_gpus("memory_used_bytes"), 1 / GIB),
        "GPU": _scaled(event.over_gpus("utilization_share"), 100),
        "power": event.over_gpus("power_watts"),
        "temperature": event.over_gpus("temperature_celsius"),
    }


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _alone(title: str, name: str, points: Points) -> Chart:
    return Chart(title=title, x_unit="step", curves=(Curve(name=name, points=points),))


def _moment(at: str) -> datetime | None:
    try:
        return datetime.fromisoformat(at)
    except ValueError:
        return None


def seconds_between(first: str, last: str) -> float | None:
    """Of two `at`s by the wall clock; None where one is none, or the clock was set back."""
    one, other = _moment(first), _moment(last)
    try:
        seconds = (other - one).total_seconds() if one and other else -1.0
    except TypeError:  # one with a time zone, one without
        return None
    return seconds if seconds >= 0 else None
