"""What stands around a plot: the axis at its left and the one below it. Pure text, without numpy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tui_trainer.ui.chart.scale import LABEL_CELLS, Bounds, Tick, ticks
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, Span, fit, width_of

GUTTER: Final = LABEL_CELLS + 1
_CELLS_PER_LABEL: Final = 13


def title_rule(title: Line, right: Line, width: int, glyphs: Glyphs) -> Line:
    """A rule of `width` cells with a title near its left end and, where there is room, a text near its right end."""
    begin: Line = [(glyphs.rule * 2 + " ", "rule"), *title, (" ", "rule")]
    end: Line = [(" ", "rule"), *right, (" " + glyphs.rule * 2, "rule")] if right else []
    room = width - width_of(begin) - width_of(end)
    if room < 0 and right:
        return title_rule(title, [], width, glyphs)
    return fit([*begin, (glyphs.rule * max(room, 0), "rule"), *end], width, glyphs.ellipsis)


def gutter(rows: int, bounds: Bounds, marks: Sequence[Tick], glyphs: Glyphs) -> list[Line]:
    """`GUTTER` cells for each row of the plot: the label of the tick that falls into it, and the axis."""
    labels = dict.fromkeys(range(rows), "")
    for tick in marks:
        labels[row_of(tick.at, bounds, rows)] = tick.label
    sign = {True: "+" if glyphs.ascii else "┤", False: glyphs.vertical}
    return [[(label.rjust(GUTTER - 1), "dim"), (sign[bool(label)], "rule")] for label in labels.values()]


def row_of(value: float, bounds: Bounds, rows: int) -> int:
    """The row of cells of a value, counted from the top; the first or the last one when it is out of bounds."""
    share = (bounds.high - value) / bounds.span
    return min(max(int(share * rows), 0), rows - 1)


def column_of(step: float, window: Bounds, columns: int) -> int:
    """The column of cells of a step; the first or the last one when it is not in the window."""
    return min(max(int((step - window.low) / window.span * columns), 0), columns - 1)


def x_axis(width: int, window: Bounds, bad_columns: Sequence[int], inline: bool, glyphs: Glyphs) -> list[Line]:
    """The axis with red marks, `width` cells with the gutter; the labels in a line of their own unless `inline`."""
    columns = width - GUTTER
    marks = [tick for tick in ticks(window, max(columns // _CELLS_PER_LABEL, 2)) if tick.at == int(tick.at)]
    places = {column_of(tick.at, window, columns): tick.label for tick in marks}
    words = _placed(places, bad_columns if inline else (), columns)
    down = "+" if glyphs.ascii else "┬"
    axis: list[Span] = [(down if place in places else glyphs.rule, "rule") for place in range(columns)]
    if inline:
        axis = [(word, "dim") if word != " " else (glyphs.rule, "rule") for word in words]
    for column in bad_columns:
        axis[column] = (glyphs.bad[0], "bad")
    corner = "+" if glyphs.ascii else "└"
    line: Line = [(" " * (GUTTER - 1), "text"), (corner, "rule"), *_merged(axis)]
    return [line] if inline else [line, [(" " * GUTTER, "text"), (words, "dim")]]


def _placed(places: dict[int, str], kept_free: Sequence[int], columns: int) -> str:
    """The labels around their columns, but none over `kept_free`; the word `step` at the end if it touches none."""
    row = [" "] * columns
    for column, label in places.items():
        begin = min(max(column - (len(label) - 1) // 2, 0), columns - len(label))
        if not any(begin <= column < begin + len(label) for column in kept_free):
            row[begin : begin + len(label)] = label
    if not "".join(row[-6:]).strip() and not any(column >= columns - 5 for column in kept_free):
        row[-4:] = "step"
    return "".join(row)


def _merged(cells: list[Span]) -> list[Span]:
    merged: list[Span] = []
    for sign, role in cells:
        if merged and merged[-1][1] == role:
            merged[-1] = (merged[-1][0] + sign, role)
        else:
            merged.append((sign, role))
    return merged


def message(lines: Sequence[str], width: int, height: int, glyphs: Glyphs, role: Role = "dim") -> list[Line]:
    """Text in the middle of `height` lines of `width` cells."""
    above = max((height - len(lines)) // 2, 0)
    rows = [*[""] * above, *(line.center(width) for line in lines)][:height]
    return [fit([(row, role)], width, glyphs.ellipsis) for row in [*rows, *[""] * (height - len(rows))]]
