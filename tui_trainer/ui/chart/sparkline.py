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
    # Groups are counted from the first value: those that are full do not change when values are added.
    size = max(math.ceil(len(values) / max(width, 1)), 1)
    means = [_mean(values[begin : begin + size]) for begin in range(0, len(values) if width > 0 else 0, size)]
    known = [mean for mean in means if mean is not None]
    bottom = min(known, default=0.0) if low is None else low
    top = max(known, default=1.0) if high is None else high
    last = len(glyphs.levels) - 1
    signs = ""
    for mean in means:
        share = 0.5 if mean is None or top <= bottom else (mean - bottom) / (top - bottom)
        signs += " " if mean is None else glyphs.levels[min(max(round(share * last), 0), last)]
    return signs.rjust(width)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None and math.isfinite(value)]
    return sum(finite) / len(finite) if finite else None
