"""Fields for text or a choice. A field with the focus gets all keys, so that no key does an action.

Keys other than text call the page's `action_choose(steps)`, `action_complete()`, `action_take()` and `action_cancel()`.
The application calls `take_key` directly instead of sending a message, so that keys are handled in their order.
"""

from collections.abc import Callable
from typing import Any, ClassVar

from textual.binding import BindingType
from textual.events import Key, Paste
from textual.widgets import Input

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.widgets.pane import Draw, Pane

LIMIT_CHARACTERS = 4096


class LineInput(Input):
    """A text field of one line. Its cursor does not blink, because that would send bytes to the terminal."""

    def __init__(self, text: str = "", **options: Any) -> None:
        super().__init__(one_line(text), max_length=LIMIT_CHARACTERS, select_on_focus=False, compact=True, **options)
        self.cursor_blink = False

    def on_mount(self) -> None:
        # Textual scrolls to the cursor only when the cursor moves.
        self.call_after_refresh(self._show_cursor)

    def _show_cursor(self) -> None:
        selection, self.cursor_position = self.selection, 0
        self.selection = selection

    def put(self, text: str) -> None:
        self.value = one_line(text)
        self.cursor_position = 0
        self.cursor_position = len(self.value)

    def take_key(self, event: Key) -> bool:
        """Insert a printable character. Return False for other keys, which the bindings handle."""
        if not event.is_printable or event.character is None:
            return False
        self.replace(event.character, *sorted(self.selection))
        return True

    def on_paste(self, event: Paste) -> None:
        event.stop()
        event.prevent_default()
        text = one_line(event.text.strip("\r\n"))
        self.replace(text[: max(LIMIT_CHARACTERS - len(self.value), 0)], *sorted(self.selection))


class LineField(LineInput):
    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,shift+tab", "screen.choose(-1)"), ("down", "screen.choose(1)"), ("tab", "screen.complete"),
        ("enter", "screen.take"), ("escape", "screen.cancel"),
    ]  # fmt: skip

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return True


class ChoiceField(Pane, can_focus=True):
    """A field with one of several choices. A typed letter calls `jump(letter)`, to go to a matching choice."""

    BINDINGS: ClassVar[list[BindingType]] = [
        ("up,left,shift+tab", "screen.choose(-1)"), ("down,right,space,tab", "screen.choose(1)"),
        ("enter", "screen.take"), ("escape", "screen.cancel"),
    ]  # fmt: skip

    def __init__(self, draw: Draw, jump: Callable[[str], None], *, classes: str | None = None) -> None:
        super().__init__(draw, classes=classes)
        self._jump = jump

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return True

    def take_key(self, event: Key) -> bool:
        if not event.is_printable or event.character is None or event.key == "space":
            return False
        self._jump(event.character)
        return True
