"""Widgets that are higher than the screen: scrolled by the wheel and by the keys of the page."""

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.widget import Widget

from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.widgets.section import Area


class _Scrolled(VerticalScroll, Area, can_focus=False):
    DEFAULT_CSS = "_Scrolled { scrollbar-size: 0 0; }"


class Scroller(Area):
    """Its content below one another; where it does not fit, the last line says how much is above and below.

    A line of words instead of a scroll bar: it is seen without colours and in ASCII too.
    """

    DEFAULT_CSS = """
    Scroller { width: 1fr; height: 1fr; overflow: hidden; }
    Scroller > .position { height: 1; display: none; }
    Scroller.-overflowing > .position { display: block; }
    """

    def __init__(self, *content: Widget, id: str | None = None) -> None:
        super().__init__(id=id)
        self.scrolled = _Scrolled(*content)
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
        """Down by so many lines, up when negative; stops at both ends."""
        self.scrolled.scroll_relative(y=lines, animate=False, immediate=True)

    def _moved(self) -> None:
        self.set_class(self.is_overflowing, "-overflowing")
        self._position.redraw()

    def _position_line(self) -> Line:
        above = round(self.scrolled.scroll_y)
        below = self.scrolled.virtual_size.height - above - self.scrolled.size.height
        up, down = ("Up", "Down") if self._position.glyphs.ascii else ("\u2191", "\u2193")
        words = [f"{up} {above} above"] * (above > 0) + [f"{down} {below} more below"] * (below > 0)
        return [("   ".join(words), "dim")]
