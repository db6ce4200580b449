"""Questions, texts and the help: screens that lie on another one and take the keys until they are closed."""

import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Click, Key, Resize
from textual.screen import ModalScreen
from textual.widget import Widget

from tui_trainer.safe_text import one_line
from tui_trainer.ui.actions import TITLES, Action, Place, key_sign
from tui_trainer.ui.frame import KeyHint, hint_at, hints_line
from tui_trainer.ui.keymap import Keymap, textual_key
from tui_trainer.ui.spans import Line, Span, folded, hanging, pad, paragraph, width_of
from tui_trainer.ui.theme import HasGlyphs
from tui_trainer.ui.tight_updates import tighten
from tui_trainer.ui.widgets.fields import LineInput
from tui_trainer.ui.widgets.pane import Pane

_KEYS_WIDTH = 16
_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]
_FRAME_AND_KEYS_LINES = 4
_VI_KEYS = {"k": "up", "j": "down", "g": "home", "G": "end"}
Answer = tuple[str, str, Callable[[], object]]
"""A key, what it does, and the doing."""
Row = str | Span | Line
"""A line of plain text, of one role, or of several."""


def lines_of(rows: Sequence[Row]) -> list[Line]:
    return [[(row, "text")] if isinstance(row, str) else [row] if isinstance(row, tuple) else row for row in rows]


class Dialog(HasGlyphs, ModalScreen[None], inherit_bindings=False):
    """A box with a heading, what is inside, and its keys in the last line. Escape and q close it."""

    HORIZONTAL_BREAKPOINTS = _BREAKPOINTS
    heading = ""
    keys: Sequence[tuple[str, str]] = (("escape", "close"),)
    """What the last line says: `(key, what it does)`."""

    def __init__(self) -> None:
        super().__init__()
        tighten(self)

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = one_line(self.heading).replace("[", r"\[")
            yield from self.inside()
            yield DialogKeys(self)

    def inside(self) -> Iterable[Widget]:
        """The widgets above the keys."""
        with VerticalScroll(id="inside", can_focus=False):
            yield Pane(lambda width, _: self.lines(width))

    def lines(self, width: int) -> list[Line]:
        raise NotImplementedError

    def press(self, key: str, character: str | None) -> bool:
        """A key that does not close; whether the dialog stays."""
        return True

    def by_clock(self) -> object:
        """As of a page: what changes without a key or an answer."""
        return ()

    def redraw(self) -> None:
        for pane in self.query(Pane):
            pane.redraw()

    def take_key(self, event: Key) -> bool:
        """Do what the key means; whether it is done with."""
        character = event.character if event.is_printable else None
        if self.scrolls(character or event.key) or self.scrolls(event.key):
            return True
        if event.key in ("escape", "q", "ctrl+q") or not self.press(event.key, character):
            self.close()
        else:
            self.redraw()
        return True

    def on_resize(self, event: Resize) -> None:
        """What is inside scrolls when there is no room for it beside the frame and the keys."""
        for inside in self.query("#inside"):
            inside.styles.max_height = event.size.height - _FRAME_AND_KEYS_LINES

    def close(self) -> None:
        if self.is_active:
            self.dismiss()

    def scrolls(self, key: str) -> bool:
        """Scroll what is inside; whether the key means that."""
        for inside in self.query(VerticalScroll):
            page, whole = inside.size.height, inside.virtual_size.height
            steps = {"up": -1, "down": 1, "pageup": -page, "pagedown": page, "home": -whole, "end": whole}
            if lines := steps.get(_VI_KEYS.get(key, key)):
                inside.scroll_relative(y=lines, animate=False)
                return True
        return False


class DialogKeys(Pane):
    """The keys of a dialog; a click on one is the key."""

    DEFAULT_CSS = "DialogKeys { height: 1; width: auto; min-width: 100%; margin-top: 1; }"
    ALLOW_SELECT = False

    def __init__(self, dialog: Dialog) -> None:
        super().__init__(lambda width, _: [hints_line(self._hints, width, self.glyphs)])
        self._dialog = dialog

    @property
    def _hints(self) -> list[KeyHint]:
        return [KeyHint(key, label) for key, label in self._dialog.keys]

    def get_content_width(self, container: object, viewport: object) -> int:
        # The heading on the frame has a blank and a piece of it on each side.
        heading = cell_len(one_line(self._dialog.heading)) + 2
        return max(sum(width_of(hint.line(self.glyphs)) for hint in self._hints), heading)

    def on_click(self, event: Click) -> None:
        if hint := hint_at(self._hints, event.x, self.size.width, self.glyphs):
            self.app.simulate_key(textual_key(hint.key.split()[0]))


class ChoiceDialog(Dialog):
    """A question with one key for each answer. Escape answers nothing."""

    def __init__(self, heading: str, rows: Sequence[Row], answers: Sequence[Answer]) -> None:
        super().__init__()
        self.heading, self._lines, self._answers = heading, lines_of(rows), list(answers)
        self.keys = [(key, label) for key, label, _ in answers] + [("escape", "back")]

    def lines(self, width: int) -> list[Line]:
        return [row for line in self._lines for row in folded(line, width)]

    def take_key(self, event: Key) -> bool:
        # Before everything else: an answer may have the key that closes other dialogs.
        for key, _, do in self._answers:
            if key in (event.key, event.character):
                self.close()
                do()
                return True
        return super().take_key(event)


class FieldDialog(Dialog):
    """A dialog with one line of text, which has all keys but those that scroll, take and close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @cached_property
    def field(self) -> LineInput:
        """Takes text before it is shown as well; Textual makes it in a running application only."""
        return LineInput(self._text)

    def take(self) -> None:
        raise NotImplementedError

    def take_key(self, event: Key) -> bool:
        if event.key == "enter":
            self.take()
        elif event.key == "escape":
            self.close()
        else:
            return self.field.take_key(event)
        return True


class TextDialog(FieldDialog):
    """Asks for one line of text. `accept` gives a sentence when the text will not do."""

    keys = (("enter", "ok"), ("escape", "back"))

    def __init__(self, heading: str, rows: Sequence[Row], text: str, accept: Callable[[str], str]) -> None:
        super().__init__(text)
        self.heading, self._above, self._accept = heading, lines_of(rows), accept
        self._refusal = ""

    def inside(self) -> Iterable[Widget]:
        yield Pane(lambda *_: self._above, classes="above")
        yield self.field
        yield Pane(lambda width, _: [[(row, "bad")] for row in textwrap.wrap(self._refusal, width)], classes="refusal")

    def take(self) -> None:
        self._refusal = self._accept(self.field.value)
        if self._refusal:
            self.redraw()
        else:
            self.close()


class HelpDialog(Dialog):
    """What every key does, on this screen and everywhere. A click on an action does it."""

    heading = "Keys"
    keys = (("up down", "scroll"), ("escape", "close"))

    def __init__(self, keymap: Keymap, place: Place) -> None:
        super().__init__()
        self._keymap, self._place = keymap, place

    def lines(self, width: int) -> list[Line]:
        return [line for _, line in self._rows(width)]

    def press(self, key: str, character: str | None) -> bool:
        found = self._keymap.find("app", key, character)
        return key != "enter" and (found is None or found.id != "app.help")

    def on_click(self, event: Click) -> None:
        pane, _ = self.get_widget_at(*event.screen_offset)
        rows = [action for action, _ in self._rows(pane.size.width)]
        if pane is self.query_one("#inside Pane") and (action := rows[event.screen_y - pane.region.y]):
            self.close()
            self.app.call_next(self.app.carry_out, action.id)

    def _rows(self, width: int) -> list[tuple[Action | None, Line]]:
        rows: list[tuple[Action | None, Line]] = []
        for place in (self._place, "app"):
            rows.append((None, [(TITLES[place], "title")]))
            for action in self._keymap.of(place):
                keys = " ".join(key_sign(key, ascii_only=self.glyphs.ascii) for key in action.keys)
                start: Line = [(pad(f"  {keys}", _KEYS_WIDTH), "key")]
                text = paragraph(action.help, max(width - _KEYS_WIDTH, 20))
                rows += [(action, line) for line in hanging(start, text)]
            rows.append((None, []))
        return rows[:-1]
