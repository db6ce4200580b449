"""Charts as SVG inside a page: no script, no font and no colour of their own but those of the page's style."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tui_trainer.reporting.curves import Chart, Curve, Points
from tui_trainer.reporting.sections import short_number
from tui_trainer.safe_text import one_line

COLOURS = 6
_WIDTH, _HEIGHT = 480, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 54, 14, 10, 30
_TICKS = 5
_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values are drawn: the ranges of both axes."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float

    def x(self, value: float) -> float:
        share = (value - self.x_low) / ((self.x_high - self.x_low) or 1.0)
        return _LEFT + share * (_WIDTH - _RIGHT - _LEFT)

    def y(self, value: float) -> float:
        share = (value - self.y_low) / ((self.y_high - self.y_low) or 1.0)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _BOTTOM - _TOP)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in points)


def chart_figure(chart: Chart) -> str:
    curves = [curve for curve in chart.curves if curve.points]
    lines = _stacked(curves) if chart.stacked else [curve.points for curve in curves]
    xs = [x for points in lines for x, _ in points]
    values = [y for points in lines for _, y in points] + [value for _, value in chart.levels]
    y_ticks = nice_ticks(min(0.0, *values) if chart.from_zero else min(values), max(values))
    frame = _Frame(min(0.0, *xs), max(xs), y_ticks[0], y_ticks[-1])
    parts = [_axes(frame, y_ticks), *(_level(frame, name, value) for name, value in chart.levels)]
    parts += [f'<path class="level" d="M{frame.x(step):.1f} {_TOP}V{_HEIGHT - _BOTTOM}"/>' for step in chart.resumed_at]
    drawn = [_drawn(frame, lines, at, stacked=chart.stacked) for at in range(len(lines))]
    name, picture = as_html(chart.title), "".join([*parts, *reversed(drawn)])
    return (
        f'<figure><figcaption>{name} <span class="dim">by {as_html(chart.x_unit)}</span></figcaption>'
        f'<div class="legend">{_legend(chart, curves)}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">{picture}</svg></figure>'
    )


def _drawn(frame: _Frame, lines: Sequence[Points], at: int, *, stacked: bool) -> str:
    points, colour = lines[at], f"c{at % COLOURS}"
    if stacked:
        floor = lines[at - 1] if at else [(x, frame.y_low) for x, _ in points]
        return f'<polygon class="{colour}" points="{frame.path([*points, *reversed(floor)])}"/>'
    dots = points if len(points) <= 40 else points[-1:]
    marks = "".join(f'<circle class="{colour}" cx="{frame.x(x):.1f}" cy="{frame.y(y):.1f}" r="2.5"/>' for x, y in dots)
    return f'<polyline class="{colour}" points="{frame.path(points)}"/>{marks}'


def _stacked(curves: Sequence[Curve]) -> list[Points]:
    """Each curve on top of those before it; they have the same places."""
    below, lines = [0.0] * min(len(curve.points) for curve in curves), []
    for curve in curves:
        below = [one + y for one, (_, y) in zip(below, curve.points, strict=False)]
        lines.append([(x, y) for (x, _), y in zip(curve.points, below, strict=False)])
    return lines


def _axes(frame: _Frame, y_ticks: Sequence[float]) -> str:
    right = _WIDTH - _RIGHT
    parts = []
    for tick in y_ticks:
        y = frame.y(tick)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}H{right}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{axis_number(tick)}</text>')
    bottom = _HEIGHT - _BOTTOM + 18
    inside = [tick for tick in nice_ticks(frame.x_low, frame.x_high) if frame.x_low <= tick <= frame.x_high]
    for tick in inside:
        anchor = "end" if frame.x(tick) > right - 20 else "middle"
        parts.append(f'<text x="{frame.x(tick):.1f}" y="{bottom}" text-anchor="{anchor}">{axis_number(tick)}</text>')
    return "".join(parts)


def _level(frame: _Frame, name: str, value: float) -> str:
    y, right = frame.y(value), _WIDTH - _RIGHT
    text = f'<text x="{right}" y="{y - 4:.1f}" text-anchor="end">{as_html(name)}</text>'
    return f'<path class="level" d="M{_LEFT} {y:.1f}H{right}"/>{text}'


def axis_number(value: float) -> str:
    """`20k` for 20000, `1.5e-4` for 0.00015."""
    if 0 < abs(value) < 1e-3:
        return short_number(value)
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else f"{value:.6g}"


def nice_ticks(low: float, high: float) -> list[float]:
    """Round numbers that span `low` to `high`, at most seven: the first at most `low`, the last at least `high`."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) * 0.1 or 1.0
        low, high = low - margin, high + margin
    power = 10.0 ** math.floor(math.log10((high - low) / _TICKS))
    step = next(step for factor in (1, 2, 2.5, 5, 10, 20) if (high - low) / (step := power * factor) <= _TICKS)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [at * step for at in range(first, last + 1)]


def _legend(chart: Chart, curves: Sequence[Curve]) -> str:
    lines = [
        f'<span><i class="c{at % COLOURS}"></i>{as_html(curve.name)} <b>{short_number(curve.points[-1][1])}</b></span>'
        for at, curve in enumerate(curves)
    ]
    lines += [
        f'<span><i class="level"></i>{as_html(name)} <b>{short_number(value)}</b></span>'
        for name, value in chart.levels
    ]
    if chart.resumed_at:
        shown = ", ".join(f"{step:,}" for step in chart.resumed_at[:_MOST_NAMED])
        more = " ..." if len(chart.resumed_at) > _MOST_NAMED else ""
        lines.append(f'<span><i class="level"></i>resumed after <b>{shown}{more}</b></span>')
    return "".join(lines)


def as_html(text: str) -> str:
    return escape(one_line(text))
