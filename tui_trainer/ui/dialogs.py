"""Dialogs, which are modal screens that take all keys, and the line of key hints at the bottom of every screen."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import Vertical, VerticalScroll
from textual.events import Click, Key, Resize
from textual.screen import ModalScreen
from textual.widget import Widget

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.keymap import Action, key_sign
from tui_trainer.ui.spans import Glyphs, Line, Span, both_ends_line, paragraph, text_of, width_of, wrap_if_long
from tui_trainer.ui.theme import HasGlyphs
from tui_trainer.ui.widgets.fields import LineInput
from tui_trainer.ui.widgets.lists import VI_KEYS, ChoiceList, LineList
from tui_trainer.ui.widgets.pane import KeyedPane, Pane

_WIDE = 120
_KEYS_NARROW, _KEYS_WIDE = 6, 10
_FRAME_LINES, _FRAME_CELLS = 3, 4
T = TypeVar("T")
Answer = tuple[str, str, Callable[[], object]]
"""An answer of a question: its key, its label, and the function to call."""
Row = str | Span | Line
"""One line: plain text, one span, or several spans."""


@dataclass(frozen=True, slots=True)
class KeyHint:
    """A key and its label. `key` may name several keys, separated by blanks."""

    key: str
    label: str
    at_end: bool = False

    def line(self, glyphs: Glyphs) -> Line:
        """Return a span for each key, so that each can be clicked, and one for the label."""
        signs = [key_sign(key, ascii_only=glyphs.ascii) for key in self.key.split()]
        separator: Span = ("/" if glyphs.ascii or max(map(len, signs)) > 1 else "", "bold")
        keys: Line = [span for sign in signs for span in ((sign, "key"), separator)][:-1]
        return [*keys, (f" {self.label}{'' if self.at_end else '  '}", "dim")]


def hints_line(hints: Sequence[KeyHint], width: int, glyphs: Glyphs) -> Line:
    """Return a line with as many hints as fit. A hint with `at_end` has precedence and is at the right end."""
    left, right = Line(), Line()
    for hint in sorted(hints, key=lambda hint: not hint.at_end):
        line = hint.line(glyphs)
        if hint.at_end:
            right = line
        elif width_of([*left, *line, *right]) <= width:
            left += line
    return both_ends_line(left, right, width)


class KeyLine(KeyedPane):
    """Line with key hints. `hints(width)` returns the hints to show. A click on a hint presses its key."""

    DEFAULT_CSS = "KeyLine { height: 1; }"
    ALLOW_SELECT = False

    def __init__(self, hints: Callable[[int], Sequence[KeyHint]]) -> None:
        super().__init__(lambda width, _: [hints_line(row, width, self.glyphs) for row in self.rows(width)])
        self.hints = hints

    def rows(self, width: int) -> list[Sequence[KeyHint]]:
        return [self.hints(width)]

    def on_click(self, event: Click) -> None:
        # The blanks between the hints, and those after them, press nothing.
        if not text_of(self.lines[event.y : event.y + 1])[event.x : event.x + 3].strip():
            event.prevent_default()


def footer_hints(actions: Sequence[Action], label_of: Callable[[Action], str], width: int) -> list[KeyHint]:
    """Return hints for the most useful actions, best rank first, and `? help` at the end of the line."""
    footer = [action for action in actions if action.footer_rank and action.keys]
    footer.sort(key=lambda action: action.footer_rank)
    del footer[_KEYS_NARROW if width < _WIDE else _KEYS_WIDE :]
    hints = [KeyHint(action.keys[0], label_of(action) + action.dots) for action in footer]
    help_actions = [action for action in actions if action.id == "app.help" and action.keys]
    return [*hints, *(KeyHint(action.keys[0], "help", at_end=True) for action in help_actions)]


def lines_of(rows: Sequence[Row]) -> list[Line]:
    return [[(row, "text")] if isinstance(row, str) else [row] if isinstance(row, tuple) else row for row in rows]


class Dialog(HasGlyphs, ModalScreen[None], inherit_bindings=False):
    """A box with a heading, its content, and a last line of key hints. Escape and q close the box."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-wide")]  # noqa: RUF012
    heading = ""
    keys: Sequence[tuple[str, str]] = (("escape", "close"),)
    """Pairs of key and label for the last line."""
    is_closed = False
    command_words: Sequence[str] = ()
    """Arguments of the equivalent `tui-trainer` command; empty if there is no such command."""

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title = one_line(self.heading).replace("[", r"\[")
            yield from self.compose_content()
            yield DialogKeys(self)

    def compose_content(self) -> Iterable[Widget]:
        with VerticalScroll(id="inside", can_focus=False):
            yield KeyedPane(lambda width, _: self.lines(width))

    def lines(self, width: int) -> list[Line]:
        raise NotImplementedError

    def press(self, key: str, character: str | None) -> bool:
        """Handle a key that does not scroll or close every dialog. Return False to close this dialog."""
        return True

    def needs_key(self, key: str) -> bool:
        """Return whether the dialog needs this key, so that the key must not do its action for all screens."""
        return self.focused is not None and self.focused.check_consume_key(key, key)

    def live_state(self) -> object:
        """Return state that changes without a key or an answer: see `Page.live_state`."""
        return ()

    def redraw(self) -> None:
        """Draw the content again, if the dialog is shown."""
        if self.is_attached:
            for pane in self.query(Pane):
                pane.redraw()

    def take_key(self, event: Key) -> bool:
        """Handle a key. Return whether the dialog used it."""
        character = event.character if event.is_printable else None
        if self.scroll_by_key(character or event.key) or self.scroll_by_key(event.key):
            return True
        if event.key in ("escape", "q", "ctrl+q") or not self.press(event.key, character):
            self.close()
        else:
            self.redraw()
        return True

    def on_resize(self, event: Resize) -> None:
        for content in self.query("#inside"):
            keys = self.query_one(DialogKeys).rows(event.size.width - _FRAME_CELLS)
            content.styles.max_height = event.size.height - _FRAME_LINES - len(keys)

    def close(self) -> None:
        self.is_closed = True
        if self.is_active:
            self.dismiss()

    def scroll_by_key(self, key: str) -> bool:
        for content in self.query(VerticalScroll):
            page_rows, total = content.size.height, content.virtual_size.height
            steps = {"up": -1, "down": 1, "pageup": -page_rows, "pagedown": page_rows, "home": -total, "end": total}
            if lines := steps.get(VI_KEYS.get(key, key)):
                content.scroll_relative(y=lines, animate=False)
                return True
        return False


class DialogKeys(KeyLine):
    """The key hints of a dialog, on several lines if one line is too short."""

    DEFAULT_CSS = "DialogKeys { width: auto; min-width: 100%; max-width: 100%; height: auto; margin-top: 1; }"

    def __init__(self, dialog: Dialog) -> None:
        super().__init__(lambda _: [KeyHint(key, label) for key, label in dialog.keys])
        self._dialog = dialog

    def rows(self, width: int) -> list[Sequence[KeyHint]]:
        rows: list[list[KeyHint]] = [[]]
        for hint in self.hints(width):
            if rows[-1] and sum(width_of(item.line(self.glyphs)) for item in [*rows[-1], hint]) > width:
                rows.append([])
            rows[-1].append(hint)
        return list(rows)

    def get_content_width(self, container: object, viewport: object) -> int:
        # The frame has a blank on each side of the heading.
        heading_cells = cell_len(one_line(self._dialog.heading)) + 2
        return max(sum(width_of(hint.line(self.glyphs)) for hint in self.hints(0)), heading_cells)


class ChoiceDialog(Dialog):
    """A question with one key for each answer. Escape goes back, and so does Enter unless it is an answer.

    `rows` may be a function of the width.
    """

    def __init__(
        self, heading: str, rows: Sequence[Row] | Callable[[int], list[Line]], answers: Sequence[Answer]
    ) -> None:
        super().__init__()
        back_keys = "escape" if any(key == "enter" for key, _, _ in answers) else "enter escape"
        self.heading, self._rows, self._answers = heading, rows, [*answers, (back_keys, "back", lambda: None)]
        self.keys = [(key, label) for key, label, _ in self._answers]

    def lines(self, width: int) -> list[Line]:
        lines = self._rows(width) if callable(self._rows) else lines_of(self._rows)
        return [row for line in lines for row in wrap_if_long(line, width)]

    def needs_key(self, key: str) -> bool:
        return any(key in keys.split() for keys, _, _ in self._answers)

    def take_key(self, event: Key) -> bool:
        # The answers are checked first, because an answer may have a key that closes other dialogs.
        for keys, _, do in self._answers:
            if not {event.key, event.character}.isdisjoint(keys.split()):
                self.close()
                do()
                return True
        return super().take_key(event)


class FieldDialog(Dialog):
    """A dialog with a text field. The field gets all keys except those that scroll, accept and close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    @cached_property
    def field(self) -> LineInput:
        """Text field, created on first access, because Textual can create it only in a running application."""
        return LineInput(self._text)

    def accept_input(self) -> None:
        raise NotImplementedError

    def needs_key(self, key: str) -> bool:
        return True

    def take_key(self, event: Key) -> bool:
        if event.key == "enter":
            self.accept_input()
        elif event.key == "escape":
            self.close()
        else:
            return self.field.take_key(event)
        return True


class SearchDialog(FieldDialog, Generic[T]):
    """A text field that filters a list, the list, and details of the chosen row."""

    def __init__(self, *, is_heading: Callable[[T], bool] = lambda _: False, wraps: bool = False) -> None:
        super().__init__("")
        self.list: ChoiceList[T] = ChoiceList(self.row, is_heading=is_heading, wraps=wraps, empty=self.empty_words)

    def row(self, row: T, width: int) -> Line:
        """Return the line of a row, without the pointer that marks the chosen row."""
        raise NotImplementedError

    def about(self, width: int, height: int) -> list[Line]:
        raise NotImplementedError

    def list_matches(self) -> None:
        """List the rows that match the text."""
        raise NotImplementedError

    def empty_words(self) -> str:
        return "No matches"

    def on_choice(self) -> None:
        """Handle a choice in the list. The chosen row may be the same as before."""

    def compose_content(self) -> Iterable[Widget]:
        yield self.field
        yield self.list
        yield Pane(self.about, classes="about")

    def on_input_changed(self) -> None:
        self.list.place = 0
        self.list_matches()
        self.choose(self.list.place)

    def choose(self, place: int) -> None:
        self.list.show(self.list.rows, place)
        self.on_choice()
        self.redraw()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        self.choose(message.place)
        self.click_row(message.is_double_click)

    def click_row(self, is_double_click: bool) -> None:
        if is_double_click:
            self.accept_input()

    def take_key(self, event: Key) -> bool:
        # Home and End are left to the text field.
        if event.key in ("up", "down", "pageup", "pagedown"):
            self.list.takes_key(event.key)
            self.choose(self.list.place)
            return True
        return super().take_key(event)


class TextDialog(FieldDialog):
    """Question for one line of text.

    `accept(text)` returns the reason for refusing the text, or an empty string to accept it. If `accept` needs more
    time, it returns None, and its caller later passes the reason to `finish_or_refuse`.
    """

    keys = (("enter", "ok"), ("escape", "back"))

    def __init__(self, heading: str, rows: Sequence[Row], text: str, accept: Callable[[str], str | None]) -> None:
        super().__init__(text)
        self.heading, self._above, self._accept = heading, lines_of(rows), accept
        self._refusal, self._waits = "", False

    def compose_content(self) -> Iterable[Widget]:
        yield Pane(lambda width, _: [line for row in self._above for line in wrap_if_long(row, width)], classes="above")
        yield self.field
        yield Pane(lambda width, _: paragraph(self._refusal, width, "bad") if self._refusal else [], classes="refusal")

    def accept_input(self) -> None:
        if self._waits:
            return
        self._waits = True
        if (refusal := self._accept(self.field.value)) is not None:
            self.finish_or_refuse(refusal)

    def finish_or_refuse(self, refusal: str) -> None:
        """Show why the text was refused. An empty `refusal` accepts the text and closes the dialog."""
        self._refusal, self._waits = refusal, False
        if not refusal:
            self.close()
        else:
            self.redraw()
