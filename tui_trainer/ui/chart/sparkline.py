"""One line of bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tui_trainer.ui.glyphs import Glyphs


def sparkline(
    values: Sequence[float | None], width: int, glyphs: Glyphs, *, low: float | None = None, high: float | None = None
) -> str:
    """The newest values at the right end of exactly `width` cells; more values than cells are averaged in groups.

    None, NaN and infinity are gaps. Without `low` and `high` the range is that of the values.
    """
    numbers = [math.nan if value is None or not math.isfinite(value) else value for value in values]
    grouped = _grouped(numbers, width)
    finite = [value for value in grouped if not math.isnan(value)]
    bottom = low if low is not None else min(finite, default=0.0)
    top = high if high is not None else max(finite, default=1.0)
    return "".join(_level(value, bottom, top, glyphs) for value in grouped).rjust(width)


def _grouped(values: list[float], width: int) -> list[float]:
    """Groups are counted from the first value: those that are full do not change when values are added."""
    if width <= 0:
        return []
    size = max(math.ceil(len(values) / width), 1)
    return [_mean(values[begin : begin + size]) for begin in range(0, len(values), size)]


def _mean(values: list[float]) -> float:
    finite = [value for value in values if not math.isnan(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _level(value: float, low: float, high: float, glyphs: Glyphs) -> str:
    if math.isnan(value):
        return " "
    share = (value - low) / (high - low) if high > low else 0.5
    last = len(glyphs.levels) - 1
    return glyphs.levels[min(max(round(share * last), 0), last)]
