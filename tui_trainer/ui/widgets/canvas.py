"""The one widget: it shows lines of spans, and sends only the cells that changed.

Textual sends a widget that was refreshed again as a whole. A live screen over SSH must not cost that, so the canvas
compares each new picture with the one on the screen and refreshes only the stretches that differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.cells import split_graphemes
from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tui_trainer.ui.spans import Line, harmless

# Changed cells that lie nearer than this are sent as one stretch: to move the cursor costs about as many bytes.
_GAP_CELLS = 6
_Cell = tuple[str, str]


class Canvas(Widget):
    """A picture of exactly `size.height` lines of `size.width` cells."""

    DEFAULT_CSS = "Canvas { width: 100%; height: 100%; }"

    class Sized(Message):
        """The canvas has got a size, or another one."""

    def __init__(self, styles: Mapping[str, Style]) -> None:
        super().__init__()
        self._styles = styles
        self._lines: list[Line] = []
        self._strips: list[Strip] = []

    @property
    def lines(self) -> Sequence[Line]:
        """The picture that is shown."""
        return self._lines

    def show(self, lines: list[Line]) -> None:
        """Draw a new picture over the old one."""
        width = self.size.width
        lines = [harmless(line, width) for line in lines]
        if len(lines) != len(self._lines) or any(strip.cell_length != width for strip in self._strips):
            self._lines = lines
            self._strips = [self._strip(line, width) for line in lines]
            self.refresh()
            return
        regions: list[Region] = []
        for y, (before, now) in enumerate(zip(self._lines, lines, strict=True)):
            if before != now:
                self._strips[y] = self._strip(now, width)
                regions += [Region(x, y, length, 1) for x, length in changed_stretches(before, now)]
        self._lines = lines
        if regions:
            self.refresh(*regions)

    def on_resize(self) -> None:
        self.post_message(self.Sized())

    def repaint(self) -> None:
        """Send the whole picture again: something else may have written on the terminal."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        # Never without a style: Textual's filters for NO_COLOR read its colours.
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self._styles["text"])

    def _strip(self, line: Line, width: int) -> Strip:
        segments = [Segment(text, self._styles[role]) for text, role in line if text]
        return Strip(segments).adjust_cell_length(width, self._styles["text"])


def changed_stretches(before: Line, now: Line) -> list[tuple[int, int]]:
    """`(first cell, cells)` of each part of a line that differs; parts that nearly touch are one."""
    old, new = _cells(before), _cells(now)
    length = max(len(old), len(new))
    blank: _Cell = (" ", "text")
    old += [blank] * (length - len(old))
    new += [blank] * (length - len(new))
    stretches: list[tuple[int, int]] = []
    x = 0
    for differs, run in groupby(zip(old, new, strict=True), key=lambda pair: pair[0] != pair[1]):
        cells = len(list(run))
        if differs:
            start, taken = stretches[-1] if stretches else (0, 0)
            if stretches and x - (start + taken) < _GAP_CELLS:
                stretches[-1] = (start, x + cells - start)
            else:
                stretches.append((x, cells))
        x += cells
    return stretches


def _cells(line: Line) -> list[_Cell]:
    """One entry a cell; a wide sign is followed by empty ones, which differ when it does."""
    cells: list[_Cell] = []
    for text, role in line:
        if text.isascii():
            cells += [(sign, role) for sign in text]
            continue
        for start, end, width in split_graphemes(text)[0]:
            sign = text[start:end]
            if width:
                cells.append((sign, role))
                cells += [(sign, f"{role} continued")] * (width - 1)
            elif cells:
                cells[-1] = (cells[-1][0] + sign, role)
    return cells
