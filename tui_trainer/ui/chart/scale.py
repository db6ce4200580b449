"""Ranges and ticks of a chart: nice numbers, and ranges that move rarely, so that what is drawn stays where it is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

FIRST_DOMAIN_STEPS: Final = 32
LABEL_CELLS: Final = 7
_PADDING: Final = 0.08
# A range is drawn closer once the values fill less than this share of it.
_KEPT_FILL: Final = 0.6
_NEARLY: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Bounds:
    """The range of an axis, in the axis' own unit: powers of ten where it is logarithmic."""

    low: float
    high: float

    @property
    def span(self) -> float:
        """Above zero."""
        return self.high - self.low


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis, in the axis' own unit, and what is written there."""

    at: float
    label: str


def settle(present: Bounds | None, low: float, high: float) -> Bounds:
    """The range to draw `low` to `high` in: the present one while they fit into it and fill most of it."""
    fits = present is not None and present.low <= low and high <= present.high
    if present is not None and fits and high - low >= _KEPT_FILL * present.span:
        return present
    return _padded(low, high)


def _padded(low: float, high: float) -> Bounds:
    # A span that drowns in the rounding of its ends cannot be divided into rows.
    padding = (high - low) * _PADDING if high - low > 1e-12 * max(abs(low), abs(high)) else abs(low) * 0.1 or 1.0
    return Bounds(low - padding, high + padding)


def domain_steps(last_step: int, total_steps: int) -> int:
    """Steps that the x axis holds: it doubles when it is full, and ends with the run, so that columns stay put."""
    steps = FIRST_DOMAIN_STEPS
    while steps < last_step:
        steps *= 2
    return total_steps if last_step <= total_steps < steps else steps


def window(domain: int, last_step: int, halvings: int, around: int | None) -> Bounds:
    """The steps that are shown: all of them, or a part that holds `around`, else the tail.

    A part begins at a multiple of half its length, so that it jumps now and then instead of sliding at each step.
    """
    length = domain / 2**halvings
    if not halvings:
        return Bounds(0, domain)
    half = length / 2
    wanted = last_step if around is None else around
    begin = max(math.floor(wanted / half) - (around is None), 0) * half
    if around is not None and begin > 0 and wanted - begin < half / 2:
        begin -= half / 2
    return Bounds(begin, begin + length)


def nice_step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5 times a power of ten that divides `span` into at most `most` parts."""
    least = span / max(most, 1)
    base = 10.0 ** math.floor(math.log10(least))
    return next(factor * base for factor in (1, 2, 5, 10) if least <= factor * base * (1 + _NEARLY))


def ticks(bounds: Bounds, most: int) -> list[Tick]:
    """At most `most` nice values within the bounds, from low to high."""
    for parts in range(most + 1, 0, -1):
        step = nice_step(bounds.span, parts)
        first = math.ceil(bounds.low / step - _NEARLY)
        last = math.floor(bounds.high / step + _NEARLY)
        values = [number * step for number in range(first, last + 1)]
        if len(values) <= most:
            return [Tick(value, label) for value, label in zip(values, labels(values, step), strict=True)]
    return []


def log_ticks(bounds: Bounds, most: int) -> list[Tick]:
    """1-2-5 of each power of ten, or only powers of ten where those are too many; nice values on a short range."""
    low, high = 10.0**bounds.low, 10.0**bounds.high
    powers = range(math.floor(bounds.low), math.ceil(bounds.high) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if 2 <= len(values) <= most:
            return [Tick(math.log10(value), _short(value)) for value in values]
    if high / low > 100:
        every = math.ceil(len(powers) / most)
        return [Tick(power, _short(10.0**power)) for power in powers[::every] if bounds.low <= power <= bounds.high]
    return [Tick(math.log10(tick.at), tick.label) for tick in ticks(Bounds(low, high), most) if tick.at > 0]


def labels(values: Sequence[float], step: float) -> list[str]:
    """The values with one unit and as many digits as the step between them needs; at most 7 signs each."""
    largest = max(map(abs, values), default=0.0)
    if largest and (largest < 1e-2 or largest >= 1e12):
        digits = 1 if all(len(f"{value:.1e}") <= LABEL_CELLS for value in values) else 0
        return [f"{value:.{digits}e}" if value else "0" for value in values]
    units = (("G", 1e9), ("M", 1e6), ("k", 1e3))
    unit, size = next((pair for pair in units if largest >= 10 * pair[1]), ("", 1.0))
    decimals = min(max(0, -math.floor(math.log10(step / size) + _NEARLY)), 5)
    return [f"{value / size:.{decimals}f}{unit}" for value in values]


def _short(value: float) -> str:
    return labels([value], 10.0 ** math.floor(math.log10(value)))[0]
