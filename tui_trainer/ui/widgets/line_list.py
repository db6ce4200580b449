"""A list of any length of which one line is chosen: only the lines that are seen are computed."""

from collections.abc import Callable
from dataclasses import dataclass

from textual.events import Click, MouseEvent, MouseScrollDown, MouseScrollUp
from textual.message import Message

from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane

_WHEEL_LINES = 3


class LineList(Pane):
    """`draw_row(place, width)` gives the line of a place; `extent()` how many there are, and which is chosen; `lead`
    says of a place whether the line above is to be in sight with it.

    Keys are for the page, which chooses. A click chooses, a double click opens, the wheel scrolls.
    """

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        """A line was clicked; `opens` when it was clicked twice."""

        place: int
        opens: bool

    class Scrolled(Message):
        """The wheel or another size shows other lines."""

    def __init__(
        self, draw_row: Callable[[int, int], Line], extent: Callable[[], tuple[int, int]], *,
        lead: Callable[[int], bool] = lambda _: False, id: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(lambda width, _: [draw_row(place, width) for place in self.seen_places], id=id)
        self._extent, self._lead = extent, lead
        self._top, self._followed = 0, -1

    @property
    def seen_places(self) -> range:
        (count, chosen), height = self._extent(), self.size.height
        if chosen != self._followed and height:
            # The wheel may leave the chosen line behind; a key brings it back.
            self._followed = chosen
            self._top = min(max(self._top, chosen - height + 1), chosen - self._lead(chosen))
        self._top = max(min(self._top, count - height), 0)
        return range(self._top, min(self._top + height, count))

    def follow(self) -> None:
        """The chosen line comes in sight again with the next picture."""
        self._followed = -1

    def on_resize(self) -> None:
        self.follow()
        super().on_resize()
        self.post_message(self.Scrolled())

    def on_click(self, event: Click) -> None:
        if event.y < len(self.seen_places):
            self.post_message(self.Chosen(self._top + event.y, opens=event.chain > 1))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll(event, _WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll(event, -_WHEEL_LINES)

    def _scroll(self, event: MouseEvent, lines: int) -> None:
        event.stop()
        self._top += lines
        self.redraw()
        self.post_message(self.Scrolled())


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    def draw_row(place: int, width: int) -> Line:
        return [(f"line {place}", "text" if place else "cursor")]

    Demo(lambda: [LineList(draw_row, lambda: (1_000, 0))]).run()
