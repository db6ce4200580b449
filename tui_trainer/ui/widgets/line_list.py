"""A list of lines of which one is chosen: a click chooses, the wheel scrolls, only what changed is sent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from textual.events import MouseMove
from textual.geometry import Region
from textual.reactive import reactive
from textual.strip import Strip
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from tui_trainer.ui.spans import Line, fit, harmless
from tui_trainer.ui.theme import role_styles
from tui_trainer.ui.widgets.pane import changed_stretches


class LineList(OptionList):
    """`draw_row(place, is_chosen, width)` gives the line of a place.

    A click posts `OptionSelected`. Keys are for the page, which calls `show` with another choice.
    """

    DEFAULT_CSS = """
    LineList { height: 1fr; border: none; padding: 0; background: transparent; scrollbar-size: 0 0; }
    """
    highlighted: reactive[int | None] = reactive(None, repaint=False)
    page_lines: reactive[int] = reactive(1, repaint=False)
    """Lines that are seen at once."""

    def __init__(self, draw_row: Callable[[int, bool, int], Line], *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.can_focus = False
        self._draw_row = draw_row
        self._rows: list[Line] = []

    def show(self, names: Sequence[str], chosen: int) -> None:
        """List these, with the choice on that place; nothing is sent where nothing changed."""
        if list(names) != [option.id for option in self.options]:
            self.clear_options()
            self.add_options(Option(" ", id=name) for name in names)
        self.highlighted = chosen if names else None
        self.redraw()

    def redraw(self) -> None:
        width, before = self.size.width, self._rows
        if not width:
            return
        drawn = [self._draw_row(place, place == self.highlighted, width) for place in range(self.option_count)]
        self._rows = [harmless(fit(row, width), width) for row in drawn]
        top = round(self.scroll_y)
        regions = [
            Region(x, place - top, length, 1)
            for place, (old, new) in enumerate(zip(before, self._rows, strict=False))
            if old != new
            for x, length in changed_stretches(old, new)
        ]
        if len(before) != len(self._rows):
            self.refresh()
        elif regions:
            self.refresh(*regions)

    def watch_highlighted(self, highlighted: int | None) -> None:
        super().watch_highlighted(highlighted)
        self.redraw()

    def on_resize(self) -> None:
        self.page_lines = max(self.size.height, 1)
        self.redraw()

    def on_mouse_move(self, event: MouseMove) -> None:
        # The line below the mouse would be drawn in another colour, and the whole list be sent for it.
        event.prevent_default()

    def render_line(self, y: int) -> Strip:
        styles, width, place = role_styles(self.app), self.size.width, round(self.scroll_y) + y
        if place >= len(self._rows):
            # Never without a style: Textual's filters for NO_COLOR read its colours.
            return Strip.blank(width, styles["text"])
        strip = Strip([Segment(text, styles[role]) for text, role in self._rows[place]])
        return strip.adjust_cell_length(width, styles["text"]).apply_meta({"option": place})


if __name__ == "__main__":
    from textual.app import App, ComposeResult

    class Demo(App[None]):
        """A list of made-up lines: click one."""

        def compose(self) -> ComposeResult:
            yield LineList(lambda place, is_chosen, _: [(f" line {place} ", "cursor" if is_chosen else "text")])

        def on_mount(self) -> None:
            self.query_one(LineList).show([f"line {number}" for number in range(100)], 3)

    Demo().run()
