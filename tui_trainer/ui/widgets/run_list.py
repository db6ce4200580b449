"""A list of any length of which one line is chosen: only the lines that are seen are computed.

Keys are for the screen, which calls `choose`. A click chooses, a double click opens, the wheel scrolls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from textual.events import Click, MouseEvent, MouseScrollDown, MouseScrollUp
from textual.message import Message

from tui_trainer.ui.spans import Line
from tui_trainer.ui.widgets.pane import Pane

_WHEEL_LINES = 3


class RunList(Pane):
    """`draw_row(place, width)` gives the line of a place; `extent()` how many there are, and the chosen one."""

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        """A line was clicked; `opens` when it was clicked twice."""

        place: int
        opens: bool

    def __init__(
        self, draw_row: Callable[[int, int], Line], extent: Callable[[], tuple[int, int]], *, id: str | None = None
    ) -> None:
        super().__init__(self._seen, id=id)
        self._draw_row, self._extent = draw_row, extent
        self._top, self._followed = 0, -1

    def _seen(self, width: int, height: int) -> list[Line]:
        count, chosen = self._extent()
        if chosen != self._followed:
            # The wheel may leave the chosen line behind; a key brings it back.
            self._followed, self._top = chosen, min(max(self._top, chosen - height + 1), chosen)
        self._top = max(min(self._top, count - height), 0)
        return [self._draw_row(place, width) for place in range(self._top, min(self._top + height, count))]

    @property
    def seen_places(self) -> range:
        """The places that are on the screen."""
        return range(self._top, min(self._top + self.size.height, self._extent()[0]))

    def on_click(self, event: Click) -> None:
        if (place := self._top + event.y) < self._extent()[0]:
            self.post_message(self.Chosen(place, opens=event.chain > 1))

    class Scrolled(Message):
        """The wheel shows other lines."""

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
    from textual.app import App, ComposeResult

    class Demo(App[None]):
        """A thousand made-up lines: click one."""

        place = 3

        def compose(self) -> ComposeResult:
            yield RunList(
                lambda place, _: [(f"run {place}", "cursor" if place == self.place else "text")],
                lambda: (1_000, self.place),
            )

        def on_run_list_chosen(self, message: RunList.Chosen) -> None:
            self.place = message.place
            self.query_one(RunList).redraw()

    Demo().run()
