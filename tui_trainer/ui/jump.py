"""Jump mode, which shows a letter over everything on a screen that can be pressed."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Protocol, runtime_checkable

from textual.app import ComposeResult
from textual.events import Click, Key
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input, Static

from tui_trainer.ui.dialogs import Dialog

# The letters of the keyboard's middle row come first.
_LETTERS = "asdfghjklqwertyuiopzxcvbnm"
_SIGNS = _LETTERS + _LETTERS.upper()


@runtime_checkable
class Pressable(Protocol):
    """A widget that knows the cells where it can be clicked. `spots()` returns their (x, y)."""

    def spots(self) -> Iterator[tuple[int, int]]: ...


class Spot(NamedTuple):
    """A cell of the screen that can be clicked. `press` does what a click there does."""

    x: int
    y: int
    press: Callable[[], object]


def spots_on(screen: Screen[Any]) -> list[Spot]:
    """Return a spot for each visible key, tab, row, column title and field, sorted from top to bottom."""
    spots: dict[tuple[int, int], Spot] = {}
    for widget in screen.query("*"):
        region = widget.region
        if isinstance(widget.parent, Widget):
            region = region.intersection(widget.parent.region)
        if widget.is_on_screen and widget.visible and not widget.is_disabled:
            spots |= {(spot.x, spot.y): spot for spot in _spots_of(widget) if region.contains(spot.x, spot.y)}
    return sorted(spots.values(), key=lambda spot: (spot.y, spot.x))


def _spots_of(widget: Widget) -> Iterator[Spot]:
    begin_x, begin_y = widget.content_region.offset
    if isinstance(widget, Pressable):
        for x, y in widget.spots():
            yield Spot(begin_x + x, begin_y + y, partial(_click, widget, begin_x + x, begin_y + y))
    elif isinstance(widget, Input):
        yield Spot(begin_x, begin_y, widget.focus)


def _click(widget: Widget, x: int, y: int) -> None:
    offset = x - widget.region.x, y - widget.region.y
    click = Click(widget, *offset, 0, 0, 1, False, False, False, x, y, widget.screen.get_style_at(x, y))
    # If the click also reached the application, the screen on top would handle it again.
    widget.post_message(click.stop())


class JumpDialog(Dialog):
    """Letters above everything that can be pressed. Typing a letter presses it; any other key closes the dialog."""

    keys = (("escape", "leave"),)

    def __init__(self, spots: list[Spot]) -> None:
        super().__init__()
        signs = list(_SIGNS) if len(spots) <= len(_SIGNS) else list(map("".join, product(_LETTERS, repeat=2)))
        self.spots = dict(zip(signs, spots, strict=False))
        self._typed = ""

    def needs_key(self, key: str) -> bool:
        return True

    def compose(self) -> ComposeResult:
        for sign, spot in self.spots.items():
            label = Static(sign, markup=False)
            label.styles.offset = (spot.x, spot.y)
            yield label

    def take_key(self, event: Key) -> bool:
        self._typed += event.character or ""
        signs = [sign for sign in self.spots if event.is_printable and sign.startswith(self._typed)]
        for label in self.query(Static):
            label.display = label.content in signs
        if not signs or signs == [self._typed]:
            self.close()
        if signs == [self._typed]:
            self._press_below(self.spots[self._typed])
        return True

    def _press_below(self, spot: Spot) -> None:
        # The screen on top gets all keys, so this dialog must be closed first.
        if self.app.screen is self:
            self.app.call_later(self._press_below, spot)
        else:
            spot.press()
