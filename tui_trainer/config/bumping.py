"""More and less with one key: the value next to a value, in steps that suit the setting."""

import math
from collections.abc import Callable
from typing import Any, Literal

from tui_trainer.config.editing import choices
from tui_trainer.config.fields import Setting

Direction = Literal[1, -1]
# Where a series that never reaches zero gives way to it.
_SMALLEST_SHARE = 1e-3
_FIRST_COUNT, _FIRST_SHARE = 100, 0.01


def bump(setting: Setting, value: Any, direction: Direction) -> Any:
    """The next value up or down within the bounds, or the value itself where there is none.

    Choices and booleans go round. `auto` lies below the smallest number. A text stays.
    """
    if closed := choices(setting):
        place = closed.index(value) if value in closed else -direction
        return closed[(place + direction) % len(closed)]
    if not {int, float} & set(setting.kinds):
        return value
    whole = float not in setting.kinds
    if isinstance(value, str):
        return int(setting.limits.low or 1) if direction > 0 else value
    if value <= 0 and direction < 0:
        return value
    if value <= 0:
        moved: float = _first(setting, whole)
    else:
        moved = _SERIES[setting.step or ("+1" if whole else "1-2-5")](value, direction)
    least = 1 if whole else _SMALLEST_SHARE
    if setting.limits.low == 0 and moved < least * 0.999:
        moved = 0
    if setting.limits.complaint(moved):
        return setting.choices[0] if setting.choices and direction < 0 else _edge(setting, value, direction)
    return int(moved) if whole else float(moved)


def _first(setting: Setting, whole: bool) -> float:
    """What follows 0, which often means off: the default, else a usual beginning."""
    if isinstance(setting.default, int | float) and setting.default:
        return setting.default
    if setting.step in ("+1", "+0.05", "nines") or (whole and setting.step is None):
        return _SERIES[setting.step or "+1"](0, 1)
    return _FIRST_COUNT if whole else _FIRST_SHARE


def _edge(setting: Setting, value: Any, direction: Direction) -> Any:
    """The bound itself, where the next step would go beyond it."""
    edge = setting.limits.high if direction > 0 else setting.limits.low
    if edge is None or (edge - value) * direction <= 0:
        return value
    return int(edge) if float not in setting.kinds else float(edge)


def _one_two_five(value: float, direction: Direction) -> float:
    """The next of 1, 2, 5, 10 times a power of ten."""
    exponent = math.floor(math.log10(value) + 1e-9)
    series = [_scaled(digit, power) for power in (exponent - 1, exponent, exponent + 1) for digit in (1, 2, 5)]
    if direction > 0:
        return next(number for number in series if number > value * (1 + 1e-9))
    return next(number for number in reversed(series) if number < value * (1 - 1e-9))


def _tenfold(value: float, direction: Direction) -> float:
    exponent = math.log10(value)
    return _scaled(1, math.floor(exponent + 1e-9) + 1 if direction > 0 else math.ceil(exponent - 1e-9) - 1)


def _scaled(digit: int, power: int) -> float:
    # A product of floats would give 0.30000000000000004; the text gives the nearest float.
    return float(f"{digit}e{power}")


def _nines(value: float, direction: Direction) -> float:
    """Nearer to 1 or further away: 0.9, 0.95, 0.98, 0.99, 0.995; below 0.5 down to 0."""
    if value < 0.5 or (value == 0.5 and direction < 0):
        return 0.5 if direction > 0 else 0
    gap = _one_two_five(1 - value, 1 if direction < 0 else -1)
    return round(1 - gap, 9)


def _twentieth(value: float, direction: Direction) -> float:
    steps = value * 20
    return round((math.floor(steps + 1e-6) + 1 if direction > 0 else math.ceil(steps - 1e-6) - 1) / 20, 2)


_SERIES: dict[str, Callable[[float, Direction], float]] = {
    # The next power of two times the odd part: 32 gives 64 and 16, 24 gives 48 and 12, 3 gives 6 and 1.
    "x2": lambda value, direction: value * 2 if direction > 0 else value // 2,
    "1-2-5": _one_two_five,
    "x10": _tenfold,
    "+1": lambda value, direction: math.floor(value + 1) if direction > 0 else math.ceil(value - 1),
    "nines": _nines,
    "+0.05": _twentieth,
}
