"""Lists of any length with one chosen row, which all pages and dialogs use."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from textual.events import Click, MouseEvent, MouseScrollDown, MouseScrollUp
from textual.message import Message

from tui_trainer.ui.spans import Line, Span, cursor_line, fit, hanging, paragraph, width_of
from tui_trainer.ui.widgets.pane import Pane

T = TypeVar("T")
_WHEEL_LINES = 3
MARK_CELLS = 3
VI_KEYS = {"k": "up", "j": "down", "g": "home", "G": "end"}


class LineList(Pane):
    """A list that draws only its visible rows. `extent()` returns the number of rows and the index of the chosen one.

    A heading cannot be chosen; it is visible with the row below it. `titles(width)` returns column names and spans,
    `empty()` the text of an empty list. The page handles keys. A click chooses a row; a double click opens it.
    """

    ALLOW_SELECT = False

    @dataclass
    class Chosen(Message):
        """Sent when a row is clicked. `is_double_click` is True for a double click."""

        place: int
        is_double_click: bool

    @dataclass
    class TitleClicked(Message):
        name: str

    class Scrolled(Message):
        """Sent when the wheel or a new size has changed the visible rows."""

    def __init__(
        self, draw_row: Callable[[int, int], Line], extent: Callable[[], tuple[int, int]], *,
        is_heading: Callable[[int], bool] = lambda _: False,
        titles: Callable[[int], Sequence[tuple[str, Span]]] | None = None, empty: Callable[[], str] = str,
        id: str | None = None,
    ) -> None:  # fmt: skip
        def draw(width: int, _: int) -> list[Line]:
            rows = [draw_row(place, width) for place in self.visible_indices]
            if not rows:
                return hanging([(" " * MARK_CELLS, "dim")], paragraph(empty(), width - MARK_CELLS, "dim"))
            return [*([[span for _, span in titles(width)]] if titles else []), *rows]

        super().__init__(draw, id=id)
        self._extent, self._is_heading, self._titles = extent, is_heading, titles
        self._first_row = int(titles is not None)
        self._top, self._followed = 0, -1

    @property
    def visible_indices(self) -> range:
        (count, chosen_place), height = self._extent(), self.size.height - self._first_row
        if chosen_place != self._followed and height > 0:
            # The mouse wheel may scroll the chosen row out of view. Choosing another row scrolls back.
            self._followed = chosen_place
            has_heading = 0 < chosen_place < count and self._is_heading(chosen_place - 1)
            self._top = min(max(self._top, chosen_place - height + 1), chosen_place - has_heading)
        self._top = max(min(self._top, count - height), 0)
        return range(self._top, min(self._top + max(height, 0), count))

    def follow(self) -> None:
        """Scroll to the chosen row when the list is drawn next."""
        self._followed = -1

    def on_resize(self) -> None:
        self.follow()
        super().on_resize()
        self.post_message(self.Scrolled())

    def _title_cells(self) -> Iterator[tuple[int, str]]:
        """Yield `(first cell, name)` of each column title."""
        x = 0
        for name, span in self._titles(self.size.width) if self._titles and self._extent()[0] else ():
            yield x, name
            x += width_of([span])

    def spots(self) -> Iterator[tuple[int, int]]:
        yield from ((x, 0) for x, _ in self._title_cells())
        rows = enumerate(self.visible_indices, self._first_row)
        yield from ((0, y) for y, place in rows if not self._is_heading(place))

    def on_click(self, event: Click) -> None:
        row = event.y - self._first_row
        if row < 0:
            for name in [name for x, name in self._title_cells() if x <= event.x][-1:]:
                self.post_message(self.TitleClicked(name))
        elif row < len(self.visible_indices) and not self._is_heading(self._top + row):
            self.choose(self._top + row, opens=event.chain > 1)

    def choose(self, place: int, *, opens: bool) -> None:
        self.post_message(self.Chosen(place, opens))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        self._scroll(event, _WHEEL_LINES)

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        self._scroll(event, -_WHEEL_LINES)

    def _scroll(self, event: MouseEvent, lines: int) -> None:
        event.stop()
        self._top += lines
        self.redraw()
        self.post_message(self.Scrolled())


class ChoiceList(LineList, Generic[T]):
    """A list that stores its rows and the chosen row, and handles the keys that choose another row.

    `draw(row, width)` returns a row without the pointer. If the list `wraps`, the first row follows the last.
    """

    def __init__(
        self, draw: Callable[[T, int], Line], *, is_heading: Callable[[T], bool] = lambda _: False,
        titles: Callable[[int], Sequence[tuple[str, Span]]] | None = None, wraps: bool = False,
        empty: Callable[[], str] = str, id: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            self._line, lambda: (len(self.rows), self.place), is_heading=lambda place: is_heading(self.rows[place]),
            titles=titles, empty=empty, id=id,
        )  # fmt: skip
        self.rows: Sequence[T] = ()
        self.place = 0
        self._draw_choice, self._wraps = draw, wraps

    @property
    def chosen(self) -> T | None:
        """The chosen row; None if the list is empty or a heading is at the chosen place."""
        is_choice = self.place < len(self.rows) and not self._is_heading(self.place)
        return self.rows[self.place] if is_choice else None

    def show(self, rows: Sequence[T], place: int = 0) -> None:
        self.rows, self.place = rows, max(min(place, len(rows) - 1), 0)

    def _line(self, place: int, width: int) -> Line:
        if self._is_heading(place):
            return self._draw_choice(self.rows[place], width)
        pointer = self.glyphs.pointer if place == self.place else " "
        line = fit([(pointer, "accent"), *self._draw_choice(self.rows[place], width - 1)], width, self.glyphs.ellipsis)
        return cursor_line(line) if place == self.place else line

    def choose(self, place: int, *, opens: bool) -> None:
        self.place = place
        super().choose(place, opens=opens)

    def move(self, steps: int) -> None:
        places = [place for place in range(len(self.rows)) if not self._is_heading(place)]
        if places:
            index = places.index(self.place) + steps if self.place in places else 0
            is_wrapping = self._wraps and abs(steps) == 1
            self.place = places[index % len(places) if is_wrapping else min(max(index, 0), len(places) - 1)]

    def takes_key(self, key: str) -> bool:
        """Choose another row if `key` moves the choice. Return whether it does."""
        page_rows, row_count = max(self.size.height - 1, 1), len(self.rows)
        steps = {"up": -1, "down": 1, "pageup": -page_rows, "pagedown": page_rows, "home": -row_count, "end": row_count}
        if key in steps:
            self.move(steps[key])
        return key in steps
