"""Lines of styled text as plain data, so that a view can be computed and tested without a terminal.

A span is a text and a role; what a role looks like is decided once, in `theme.py`. Widths are in terminal cells.
Foreign text passes `safe_text` before it becomes a span.
"""

from collections.abc import Iterable
from typing import Literal

from rich.cells import cell_len, chop_cells, set_cell_size

from tui_trainer.safe_text import one_line, visible
from tui_trainer.ui.glyphs import Glyphs

Role = Literal[
    "text", "dim", "bold", "accent", "good", "warn", "bad", "rule",
    "title",  # the heading of a part of a screen
    "key",  # a key that can be pressed
    "cursor",  # the chosen row
    "edit",  # a field that is being typed into
    "chart_raw", "chart_smooth", "chart_eval", "chart_cross",
]  # fmt: skip
Span = tuple[str, Role]
Line = list[Span]


def width_of(line: Line) -> int:
    return sum(cell_len(text) for text, _ in line)


def fit(line: Line, width: int, ellipsis: str = "\u2026") -> Line:
    """The line in exactly `width` cells: padded with blanks, or cut with an ellipsis as its last sign."""
    taken = width_of(line)
    if taken <= width:
        return line if taken == width else [*line, (" " * (width - taken), "text")]
    left, cut = max(width - cell_len(ellipsis), 0), []
    role: Role = "text"
    for text, role in line:
        if cell_len(text) > left:
            cut.append((set_cell_size(text, left), role))
            break
        cut.append((text, role))
        left -= cell_len(text)
    return [*cut, (set_cell_size(ellipsis, min(width, cell_len(ellipsis))), role)]


def pad(text: str, width: int) -> str:
    """The text in exactly `width` cells, cut without a sign when it is longer."""
    return set_cell_size(text, width)


def beside(left: Line, right: Line, width: int) -> Line:
    """One line with `left` at its beginning and `right` at its end; `left` is cut when both do not fit."""
    room = width - width_of(right)
    return [*fit(left, room), *right] if room > 0 else fit(right, width)


def title_rule(title: str | Line, width: int, glyphs: Glyphs, note: str | Line = "") -> Line:
    """A rule of `width` cells with a title near its left end and, where there is room, a note near its right end."""
    if not title:
        return [(glyphs.rule * width, "rule")]
    begin: Line = [(f"{glyphs.rule * 2} ", "rule"), *([(title, "title")] if isinstance(title, str) else title)]
    begin.append((" ", "rule"))
    end: Line = [(" ", "rule"), *([(note, "dim")] if isinstance(note, str) else note), (f" {glyphs.rule * 2}", "rule")]
    between = width - width_of(begin) - width_of(end)
    if not note or between < 0:
        end, between = [], width - width_of(begin)
    return fit([*begin, (glyphs.rule * max(between, 0), "rule"), *end], width, glyphs.ellipsis)


def wrapped(text: str, width: int) -> list[str]:
    """The words in lines of at most `width` cells; a word that is longer is broken. One empty line for no words."""
    lines, line = list[str](), ""
    for word in text.split():
        if line and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line = ""
        # No line is narrower than one wide sign.
        *whole, line = chop_cells(f"{line} {word}" if line else word, max(width, 2)) or [""]
        lines += whole
    return [*lines, line] if line or not lines else lines


def paragraph(text: str, width: int, role: Role = "text") -> list[Line]:
    return [[(row, role)] for row in wrapped(text, width)]


def hanging(start: Line, rows: Iterable[Line]) -> list[Line]:
    """The rows of a text behind `start`, the later ones below the first."""
    indent: Line = [(" " * width_of(start), "text")]
    return [[*(indent if at else start), *row] for at, row in enumerate(rows)]


def labelled(label: str, text: str, cells: int, width: int, role: Role = "text") -> list[Line]:
    """A word in so many cells, and the text beside it."""
    return hanging([(pad(label, cells), "dim")], paragraph(text, width - cells, role))


def folded(line: Line, width: int) -> list[Line]:
    """A line of one span that is too long in several, at its words; another one as it is."""
    if len(line) != 1 or width_of(line) <= width:
        return [line]
    return paragraph(line[0][0], width, line[0][1])


def harmless(line: Line, width: int) -> Line:
    """The line as it is, or, where a span was not made safe before, with visible signs for what a terminal obeys."""
    if all(visible(text) == text and "\n" not in text and "\t" not in text for text, _ in line):
        return line
    return fit([(one_line(text), role) for text, role in line], width)


def text_of(lines: Iterable[Line]) -> str:
    """The plain text of lines, without blanks at their ends: for tests and for saving a screen."""
    return "\n".join("".join(text for text, _ in line).rstrip() for line in lines)
