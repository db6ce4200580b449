"""Jump mode: letters over everything on a screen that can be pressed."""

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

# The row below the fingers first.
_LETTERS = "asdfghjklqwertyuiopzxcvbnm"
_SIGNS = _LETTERS + _LETTERS.upper()


@runtime_checkable
class Pressable(Protocol):
    """A widget that knows where it can be clicked."""

    def spots(self) -> Iterator[tuple[int, int]]: ...


class Spot(NamedTuple):
    """A cell of the screen, and what a click there does."""

    x: int
    y: int
    press: Callable[[], object]


def spots_on(screen: Screen[Any]) -> list[Spot]:
    """Return the keys, screens, rows, titles of columns and fields that are in sight, line by line."""
    found: dict[tuple[int, int], Spot] = {}
    for widget in screen.query("*"):
        seen = widget.region.intersection(widget.parent.region) if isinstance(widget.parent, Widget) else widget.region
        if not widget.is_on_screen or not widget.visible or not seen or widget.is_disabled:
            continue
        for spot in _spots_of(widget):
            if seen.contains(spot.x, spot.y):
                found[spot.x, spot.y] = spot
    return sorted(found.values(), key=lambda spot: (spot.y, spot.x))


def _spots_of(widget: Widget) -> Iterator[Spot]:
    begin_x, begin_y = widget.content_region.offset
    if isinstance(widget, Pressable):
        for x, y in widget.spots():
            yield Spot(begin_x + x, begin_y + y, partial(_click, widget, begin_x + x, begin_y + y))
    elif isinstance(widget, Input):
        yield Spot(begin_x, begin_y, widget.focus)


def _click(widget: Widget, x: int, y: int) -> None:
    inside = x - widget.region.x, y - widget.region.y
    click = Click(widget, *inside, 0, 0, 1, False, False, False, x, y, widget.screen.get_style_at(x, y))
    # The application would take one that comes up to it for a new one, and hand it to the screen on top.
    widget.post_message(click.stop())


class JumpDialog(Dialog):
    """The letters. One presses what it stands over, anything else leaves."""

    DEFAULT_CSS = """
    JumpDialog { align: left top; background: $background 40%; }
    JumpDialog:ansi { background: transparent; }
    JumpDialog Static {
        position: absolute; width: auto; height: 1; background: $primary; color: $background; text-style: bold;
    }
    JumpDialog Static:ansi { background: ansi_default; color: ansi_default; text-style: bold reverse; }
    """
    keys = (("escape", "leave"),)

    def __init__(self, spots: list[Spot]) -> None:
        super().__init__()
        signs = list(_SIGNS) if len(spots) <= len(_SIGNS) else list(map("".join, product(_LETTERS, repeat=2)))
        self.spots = dict(zip(signs, spots, strict=False))
        self._typed = ""

    def takes(self, key: str) -> bool:
        return True

    def compose(self) -> ComposeResult:
        for sign, spot in self.spots.items():
            label = Static(sign, markup=False)
            label.styles.offset = (spot.x, spot.y)
            yield label

    def take_key(self, event: Key) -> bool:
        self._typed += event.character or ""
        left = [sign for sign in self.spots if event.is_printable and sign.startswith(self._typed)]
        for label in self.query(Static):
            label.display = label.content in left
        if len(left) != 1:
            if not left:
                self.close()
        elif left[0] == self._typed:
            self.close()
            self._press_below(self.spots[self._typed])
        return True

    def _press_below(self, spot: Spot) -> None:
        # A key goes to the screen that is on top.
        if self.app.screen is self:
            self.app.call_later(self._press_below, spot)
        else:
            spot.press()
