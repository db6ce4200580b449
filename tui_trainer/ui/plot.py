"""Axes and dots in cells: braille with 2 x 4 dots per cell, or ASCII with 1 x 2.

Drawn columns do not move while steps are added: the x axis doubles when it is full, and the y axis changes only when
the values leave it or use little of it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tui_trainer.ui.spans import Glyphs, Line, Role, Span

FIRST_DOMAIN_STEPS: Final = 32
LABEL_CELLS: Final = 7
GUTTER: Final = LABEL_CELLS + 1
_PADDING: Final = 0.08
# The range is narrowed when the values fill less than this share of the range.
_KEPT_FILL: Final = 0.6
_NEARLY: Final = 1e-9
_CELLS_PER_LABEL: Final = 13
# The bit of each dot in the code points from U+2800 on, by the row and column of the dot in its cell.
_BRAILLE_BITS: Final = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])
_BRAILLE: Final = np.array([chr(0x2800 + bits) for bits in range(256)])
_ASCII_BITS: Final = np.array([[1], [2]])
_ASCII_THIN: Final = np.array([" ", "'", ".", ":"])
_ASCII_THICK: Final = np.array([" ", "*", "*", "*"])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Range of an axis. On a logarithmic axis, both ends are exponents of ten."""

    low: float
    high: float

    @property
    def span(self) -> float:
        return self.high - self.low


def stable_bounds(present: Bounds | None, low: float, high: float) -> Bounds:
    """Return the range of the axis for values from `low` to `high`. `present` stays while they fill most of it."""
    is_inside = present is not None and present.low <= low and high <= present.high
    if present is not None and is_inside and high - low >= _KEPT_FILL * present.span:
        return present
    # A range as small as the rounding error of its ends cannot be divided into rows.
    padding = (high - low) * _PADDING if high - low > 1e-12 * max(abs(low), abs(high)) else abs(low) * 0.1 or 1.0
    return Bounds(low - padding, high + padding)


def domain_steps(last_step: int, total_steps: int) -> int:
    """Return the length of the x axis in steps: a power of two from `last_step` on, at most the run's last step."""
    # The next power of two, so that the axis doubles when it is full.
    steps = max(1 << (last_step - 1).bit_length(), FIRST_DOMAIN_STEPS)
    return total_steps if last_step <= total_steps < steps else steps


def window(domain_steps: int, last_step: int, halvings: int, around: int | None) -> Bounds:
    """Return the steps to show: all, or after `halvings` a shorter range with `around` or with the newest step.

    A shorter range starts at a multiple of half its length: it jumps now and then instead of sliding at each step.
    """
    length = domain_steps / 2**halvings
    if not halvings:
        return Bounds(0, domain_steps)
    half_length = length / 2
    target_step = last_step if around is None else around
    first_step = max(math.floor(target_step / half_length) - (around is None), 0) * half_length
    if around is not None and first_step > 0 and target_step - first_step < half_length / 2:
        first_step -= half_length / 2
    return Bounds(first_step, first_step + length)


def ticks(bounds: Bounds, max_ticks: int) -> dict[float, str]:
    """Return the labels of at most `max_ticks` round values within the bounds, by value, from low to high."""
    for parts in range(max_ticks + 1, 0, -1):
        min_step = bounds.span / parts
        base = 10.0 ** math.floor(math.log10(min_step))
        step = next(factor * base for factor in (1, 2, 5, 10) if min_step <= factor * base * (1 + _NEARLY))
        first_multiple = math.ceil(bounds.low / step - _NEARLY)
        last_multiple = math.floor(bounds.high / step + _NEARLY)
        values = [number * step for number in range(first_multiple, last_multiple + 1)]
        if len(values) <= max_ticks:
            return dict(zip(values, labels(values, step), strict=True))
    return {}


def log_ticks(bounds: Bounds, max_ticks: int) -> dict[float, str]:
    """Return at most `max_ticks` labels by exponent: 1, 2 and 5 times powers of ten, powers of ten, or round values."""

    def label_of(value: float) -> str:
        return labels([value], 10.0 ** math.floor(math.log10(value)))[0]

    low, high = 10.0**bounds.low, 10.0**bounds.high
    powers = range(math.floor(bounds.low), math.ceil(bounds.high) + 1)
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10.0**power for power in powers for factor in factors if low <= factor * 10.0**power <= high]
        if 2 <= len(values) <= max_ticks:
            return {math.log10(value): label_of(value) for value in values}
    if high / low > 100:
        stride = math.ceil(len(powers) / max_ticks)
        return {power: label_of(10.0**power) for power in powers[::stride] if bounds.low <= power <= bounds.high}
    return {math.log10(value): label for value, label in ticks(Bounds(low, high), max_ticks).items() if value > 0}


def labels(values: Sequence[float], step: float) -> list[str]:
    """Return values as texts of at most 7 characters, with one unit and enough digits for values `step` apart."""
    largest_value = max(map(abs, values), default=0.0)
    if largest_value and (largest_value < 1e-2 or largest_value >= 1e12):
        digits = 1 if all(len(f"{value:.1e}") <= LABEL_CELLS for value in values) else 0
        return [f"{value:.{digits}e}" if value else "0" for value in values]
    units = (("G", 1e9), ("M", 1e6), ("k", 1e3))
    unit, unit_size = next((pair for pair in units if largest_value >= 10 * pair[1]), ("", 1.0))
    decimals = min(max(0, -math.floor(math.log10(step / unit_size) + _NEARLY)), 5)
    return [f"{value / unit_size:.{decimals}f}{unit}" for value in values]


def row_of(value: float, bounds: Bounds, rows: int) -> int:
    """Return the row in which to draw a value, counted from the top. Values out of bounds get the first or last row."""
    return min(max(int((bounds.high - value) / bounds.span * rows), 0), rows - 1)


def column_of(step: float, window: Bounds, columns: int) -> int:
    """Return the column in which to draw a step. Steps outside the window get the first or the last column."""
    return min(max(int((step - window.low) / window.span * columns), 0), columns - 1)


def _labelled_rows(bounds: Bounds, rows: int, max_ticks: int, *, log: bool) -> dict[int, str]:
    """Return the y labels by row: round values at even distances if possible, or only the values at both ends."""
    options: list[tuple[bool, dict[int, str]]] = []
    for tick_count in range(max_ticks, 1, -1):
        axis_ticks = (log_ticks if log else ticks)(bounds, tick_count)
        tick_rows = [row_of(value, bounds, rows) for value in axis_ticks]
        row_gaps = [low - high for low, high in pairwise(tick_rows)]
        if row_gaps and min(row_gaps) > 1:
            # On a tall chart, a difference of one row is not visible.
            is_uneven = max(row_gaps) - min(row_gaps) > min(row_gaps) // 3
            options.append((is_uneven, dict(zip(tick_rows, axis_ticks.values(), strict=True))))
    if options:
        return min(options, key=itemgetter(0))[1]
    end_values = [10.0**end if log else end for end in (bounds.high, bounds.low)]
    return dict(zip((0, rows - 1), labels(end_values, (end_values[0] - end_values[1]) / 10), strict=True))


def with_y_axis(plot: Sequence[Line], bounds: Bounds, max_ticks: int, glyphs: Glyphs, *, log: bool) -> list[Line]:
    """Return the rows of a plot, each after its part of the y axis: a label or blanks, and the axis line."""
    row_labels = _labelled_rows(bounds, len(plot), max_ticks, log=log)
    signs = [glyphs.tick_left if row in row_labels else glyphs.vertical for row in range(len(plot))]
    return [[(row_labels.get(row, "").rjust(LABEL_CELLS), "dim"), (signs[row], "rule"), *plot[row]]
            for row in range(len(plot))]  # fmt: skip


def x_axis(
    columns: int, window: Bounds, unit: str, glyphs: Glyphs, *,
    keeps_unit: bool = True, bad_columns: Sequence[int] = (), inline: bool = False,
) -> list[Line]:  # fmt: skip
    """Return the x axis as one line with its labels in it (`inline`), or as two lines with the labels below.

    `bad_columns` get red marks. The unit is at the right end; without `keeps_unit`, a label there replaces the unit.
    """
    axis_ticks = ticks(window, max(columns // _CELLS_PER_LABEL, 2))
    label_of = {column_of(step, window, columns): label for step, label in axis_ticks.items() if step == int(step)}
    label_line = _place_labels(label_of, bad_columns if inline else (), columns, unit, keeps_unit)
    axis: list[Span] = [(glyphs.tick_down if column in label_of else glyphs.rule, "rule") for column in range(columns)]
    if inline:
        axis = [(sign, "dim") if sign != " " else (glyphs.rule, "rule") for sign in label_line]
    for column in bad_columns:
        axis[column] = (glyphs.bad[0], "bad")
    line: Line = [(" " * LABEL_CELLS, "text"), (glyphs.corner, "rule"), *_merged(axis)]
    return [line] if inline else [line, [(" " * GUTTER, "text"), (label_line, "dim")]]


def _merged(cells: Iterable[Span]) -> Line:
    """Return a line of the cells, in which neighbouring cells of the same role are one span."""
    return [("".join(sign for sign, _ in run), role) for role, run in groupby(cells, key=itemgetter(1))]


def _place_labels(label_of: dict[int, str], kept_free: Sequence[int], columns: int, unit: str, keeps_unit: bool) -> str:
    """Return a line with the labels around their columns. A label that overlaps others or `kept_free` is left out."""
    cells, end = [" "] * columns, columns - (len(unit) + 1) * keeps_unit
    for column, label in label_of.items():
        begin = max(min(column - (len(label) - 1) // 2, end - len(label)), 0)
        behind = begin + len(label)
        if "".join(cells[max(begin - 1, 0) : behind]).isspace() and not any(begin <= bad < behind for bad in kept_free):
            cells[begin:behind] = label
    unit_column = columns - len(unit)
    is_free = "".join(cells[unit_column - 2 :]).isspace() and not any(bad >= unit_column - 1 for bad in kept_free)
    if keeps_unit or is_free:
        cells[unit_column:] = unit
    return "".join(cells)


class Raster:
    """Drawing area of `width` x `height` cells. Dots are counted by row from the top and by column from the left."""

    def __init__(self, width: int, height: int, glyphs: Glyphs) -> None:
        self.width, self.height, self.glyphs = width, height, glyphs
        self._bits = _ASCII_BITS if glyphs.ascii else _BRAILLE_BITS
        self.cell_rows, self.cell_columns = self._bits.shape
        self.dot_columns, self.dot_rows = width * self.cell_columns, height * self.cell_rows
        self._signs = np.full((height, width), " ")
        self._roles = np.full((height, width), "text", object)

    def draw_curve(self, low: NDArray[np.float64], high: NDArray[np.float64], bounds: Bounds, role: Role) -> None:
        """Draw a curve that goes from `low` to `high` in each dot column, connected with the column before."""
        top, bottom = (np.rint((bounds.high - values) / bounds.span * (self.dot_rows - 1)) for values in (high, low))
        before_top, before_bottom = np.roll(top, 1), np.roll(bottom, 1)
        before_top[0] = before_bottom[0] = np.nan
        top = np.fmin(top, before_bottom + 1, where=~np.isnan(top), out=top.copy())
        bottom = np.fmax(bottom, before_top - 1, where=~np.isnan(bottom), out=bottom.copy())
        rows = np.arange(self.dot_rows)[:, None]
        has_dots = (rows >= top) & (rows <= bottom)
        cells = has_dots.reshape(self.height, self.cell_rows, self.width, self.cell_columns)
        bits = np.einsum("hrwc,rc->hw", cells.astype(np.int64), self._bits)
        dot_signs = _BRAILLE if not self.glyphs.ascii else _ASCII_THICK if role == "chart_smooth" else _ASCII_THIN
        has_dot = bits > 0
        self._signs[has_dot] = dot_signs[bits[has_dot]]
        self._roles[has_dot] = role

    def draw_mark(self, column: int, row: int, sign: str, role: Role) -> None:
        self._signs[row, column], self._roles[row, column] = sign, role

    def draw_vertical_line(self, column: int, sign: str) -> None:
        """Draw a vertical line through a column of cells. Only empty cells get the sign of the line."""
        is_empty = self._signs[:, column] == " "
        self._signs[is_empty, column] = sign
        self._roles[:, column] = "chart_cross"

    def draw_label(self, row: int, text: str, role: Role) -> None:
        """Write a text at the right end of a row, if the cells there are empty."""
        first_column = self.width - len(text)
        if first_column >= 0 and (self._signs[row, max(first_column - 1, 0) :] == " ").all():
            self._signs[row, first_column:], self._roles[row, first_column:] = list(text), role

    def lines(self) -> list[Line]:
        rows = zip(self._signs.tolist(), self._roles.tolist(), strict=True)
        return [_merged(zip(signs, roles, strict=True)) for signs, roles in rows]
