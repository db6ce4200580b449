"""Widgets that show lines of styled text, and containers for them. Only changed parts are sent to the terminal."""

from collections.abc import Callable, Iterator
from itertools import zip_longest

from rich.cells import cell_len, split_graphemes
from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Click
from textual.geometry import Region, Size
from textual.selection import Selection
from textual.strip import Strip
from textual.widget import Widget

from tui_trainer.ui.keymap import key_of_sign
from tui_trainer.ui.spans import Line, both_ends_line, fit, make_safe, text_of, title_rule, width_of
from tui_trainer.ui.theme import HasGlyphs, role_styles

# Changed parts of a line with fewer cells between them are sent together: moving the cursor costs as many bytes.
_GAP_CELLS = 6
# Size that is passed to `draw` if the pane's height or width depends on its lines.
_ANY_SIZE = 10_000
_Cell = tuple[str, str]
Draw = Callable[[int, int], list[Line]]
"""Function that returns the lines for a width and a height, both in cells."""


class Area(Widget):
    """A container whose children decide their height."""


class Pane(HasGlyphs, Widget):
    """A widget that shows the lines of `draw(width, height)`.

    With `height: auto` the pane is as high as its lines; with `width: auto` it is as wide as its longest line.
    """

    DEFAULT_CSS = "Pane { width: 1fr; height: 1fr; }"

    def __init__(self, draw: Draw, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._draw = draw
        self.lines: list[Line] = []
        self._asked_height = 0
        self._widest: int | None = None
        """Width of the longest line at the last layout; None if the pane's width does not depend on its lines."""
        self._strips: list[Strip] = []
        self._look: tuple[int, int, dict[str, Style]] = (0, 0, {})
        """Width, height and styles of the last drawing."""

    def redraw(self) -> None:
        width, height = self.size
        if not width or not self.is_attached or not self.display:
            return
        style_height = self.styles.height
        if style_height is not None and style_height.is_auto:
            lines = self._computed(width, _ANY_SIZE)
            if len(lines) not in (height, self._asked_height):
                self.refresh(layout=True)
            elif len(lines) > height:
                # The pane may get less height than its lines need, and `draw` may depend on the height.
                lines = self._computed(width, height)[:height]
        else:
            lines = self._computed(width, height)[:height]
            lines += [fit([], width)] * (height - len(lines))
        if self._widest is not None and self._width_of_lines() != self._widest:
            self.refresh(layout=True)
        old_lines, self.lines = self.lines, lines
        appearance = width, len(lines), role_styles(self.app)
        if appearance != self._look:
            self._look = appearance
            self._strips = [self._strip(line) for line in lines]
            self.refresh()
            return
        regions: list[Region] = []
        for y, (old_line, new_line) in enumerate(zip(old_lines, lines, strict=True)):
            if old_line != new_line:
                self._strips[y] = self._strip(new_line)
                regions += [Region(x, y, length, 1) for x, length in changed_stretches(old_line, new_line)]
        if regions:
            self.refresh(*regions)

    def _computed(self, width: int, height: int) -> list[Line]:
        return [make_safe(fit(line, width), width) for line in self._draw(width, height)]

    def on_resize(self) -> None:
        self.redraw()

    def get_content_width(self, container: Size, viewport: Size) -> int:
        self._widest = self._width_of_lines()
        return self._widest

    def _width_of_lines(self) -> int:
        return max(map(width_of, self._draw(_ANY_SIZE, _ANY_SIZE)), default=0)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        self._asked_height = len(self._draw(width, _ANY_SIZE))
        return self._asked_height

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        return selection.extract(text_of(self.lines)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self.refresh()

    def render_line(self, y: int) -> Strip:
        if y >= len(self._strips):
            return self._strip([])
        strip = self._strips[y]
        if self.text_selection is not None and (span := self.text_selection.get_span(y)) is not None:
            start, end = span[0], strip.cell_length if span[1] == -1 else span[1]
            selected_strip = strip.crop(start, end).apply_style(role_styles(self.app)["cursor"])
            strip = Strip.join([strip.crop(0, start), selected_strip, strip.crop(end)])
        return strip.apply_offsets(0, y)

    def _strip(self, line: Line) -> Strip:
        styles = role_styles(self.app)
        strip = Strip([Segment(text, styles[role]) for text, role in line if text])
        strip = strip.adjust_cell_length(self.size.width, styles["text"])
        # With a theme, cells need its background. The terminal's own background needs no escape code.
        return strip if self.app.native_ansi_color else strip.apply_style(Style(bgcolor=self.rich_style.bgcolor))


def changed_stretches(before: Line, now: Line) -> list[tuple[int, int]]:
    """Return `(first cell, number of cells)` of each changed part of a line. Parts with a small gap are joined."""
    cells = zip_longest(_cells(before), _cells(now), fillvalue=(" ", "text"))
    stretches: list[tuple[int, int]] = []
    for x in (x for x, (old, new) in enumerate(cells) if old != new):
        start, length = stretches[-1] if stretches else (x, 0)
        if x - (start + length) < _GAP_CELLS:
            stretches[-1:] = [(start, x + 1 - start)]
        else:
            stretches.append((x, 1))
    return stretches


def _cells(line: Line) -> list[_Cell]:
    """Return one (text, role) per cell. The further cells of a wide character get a role of their own."""
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


class KeyedPane(Pane):
    """A pane whose text contains keys. A click on a key, or on the words after it, presses the key.

    With `from_left`, a click to the left of a line's first key presses that key.
    """

    def __init__(self, draw: Draw, *, id: str | None = None, from_left: bool = True) -> None:
        super().__init__(draw, id=id)
        self._from_left = from_left

    def _keys_of(self, line: Line) -> list[tuple[int, str]]:
        """Return `(cell, key)` of each key in the line. A span may have words before the key, as in `press p`."""
        keys, x = [], 0
        for text, role in line:
            words = text.split() if role == "key" else ()
            if words and (key := key_of_sign(words[-1])):
                keys.append((x + cell_len(text[: text.rindex(words[-1])]), key))
            x += cell_len(text)
        return keys

    def spots(self) -> Iterator[tuple[int, int]]:
        yield from ((x, y) for y, line in enumerate(self.lines) for x, _ in self._keys_of(line))

    def on_click(self, event: Click) -> None:
        for line in self.lines[event.y : event.y + 1]:
            keys = self._keys_of(line)
            if matches := [key for x, key in keys if x <= event.x] or [key for _, key in keys[:1] if self._from_left]:
                self.app.simulate_key(matches[-1])


class Section(KeyedPane):
    """A rule with the title and the note that `heading()` returns, above the lines of `draw(width, height)`.

    If not all lines fit, the last line says how many are missing.
    """

    DEFAULT_CSS = "Section { height: auto; }"

    def __init__(self, heading: Callable[[], tuple[str, str | Line]], draw: Draw, *, id: str | None = None) -> None:
        def with_heading(width: int, height: int) -> list[Line]:
            title, note = heading()
            lines = [title_rule(title, width, self.glyphs, note), *draw(width, height - 1)]
            if missing_count := len(lines[height:]):
                more_spans: Line = [(f" {self.glyphs.ellipsis} {missing_count} more", "dim")]
                lines[height - 1] = both_ends_line(lines[height - 1], more_spans, width)
            return lines

        super().__init__(with_heading, id=id)


class Scroller(Area):
    """A vertical container. If its content does not fit, a line says how many lines are above and below.

    Unlike a scroll bar, this line is readable without colours and in ASCII.
    """

    DEFAULT_CSS = """
    Scroller { width: 1fr; height: 1fr; overflow: hidden; }
    Scroller > VerticalScroll { scrollbar-size: 0 0; }
    Scroller > .position { height: 1; display: none; }
    """

    def __init__(self, *content: Widget, id: str | None = None) -> None:
        super().__init__(id=id)
        self.scrolled = VerticalScroll(*content, can_focus=False)
        self._position = Pane(lambda *_: [self._position_line()], classes="position")

    def compose(self) -> ComposeResult:
        yield self.scrolled
        yield self._position

    def on_mount(self) -> None:
        self.watch(self.scrolled, "scroll_y", self._moved, init=False)
        self.watch(self.scrolled, "virtual_size", self._moved, init=False)

    def on_resize(self) -> None:
        self._moved()

    @property
    def is_overflowing(self) -> bool:
        return self.scrolled.virtual_size.height > self.size.height

    def scroll_lines(self, lines: int) -> None:
        self.scrolled.scroll_relative(y=lines, animate=False, immediate=True)

    def _moved(self) -> None:
        # Changing a CSS class instead would style the whole content again.
        self._position.display = self.is_overflowing
        self._position.redraw()

    def _position_line(self) -> Line:
        above = round(self.scrolled.scroll_y)
        below = self.scrolled.virtual_size.height - above - self.scrolled.size.height
        up, down = "^v" if self._position.glyphs.ascii else "\u2191\u2193"
        texts = [f"{up} {above} above"] * (above > 0) + [f"{down} {below} more below"] * (below > 0)
        return [("   ".join(texts), "dim")]
