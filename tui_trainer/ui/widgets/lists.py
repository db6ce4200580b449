"""Lists of any length of which one line is chosen, and the table of settings under headings."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Click, Key, MouseEvent, MouseScrollDown, MouseScrollUp, Paste
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.spans import Glyphs, Line, Role, fit, pad, title_rule
from tui_trainer.ui.widgets.pane import Area, Pane

_WHEEL_LINES = 3
MARK_CELLS = 3
# Of a table that is at least so wide: the values go first.
_PRESET_CELLS = ((96, 23), (76, 12))
_MOST_SIGNS_A_CELL = 4


class LineList(Pane):
    """`draw_row(place, width)` gives the line of a place; `extent()` how many there are, and which is chosen; `lead`
    says of a place whether the line above is to be in sight with it; `is_heading` that it cannot be chosen; `empty()`
    is shown where there is none.

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
        lead: Callable[[int], bool] = lambda _: False, is_heading: Callable[[int], bool] = lambda _: False,
        empty: Callable[[], str] = str, id: str | None = None,
    ) -> None:  # fmt: skip
        def draw(width: int, _: int) -> list[Line]:
            rows = [draw_row(place, width) for place in self.seen_places]
            return rows or [[(" " * MARK_CELLS + empty(), "dim")]]

        super().__init__(draw, id=id)
        self._extent, self._lead, self._is_heading = extent, lead, is_heading
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

    def spots(self) -> Iterator[tuple[int, int]]:
        yield from ((0, y) for y, place in enumerate(self.seen_places) if not self._is_heading(place))

    def on_click(self, event: Click) -> None:
        if event.y < len(self.seen_places) and not self._is_heading(self._top + event.y):
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


@dataclass(frozen=True, kw_only=True, slots=True)
class ListRow:
    """A setting, or without a `key` the heading of a group; `matched` are places in the name that a filter found.

    Texts were made safe before.
    """

    name: str
    key: str = ""
    value: str = ""
    preset: str = ""
    is_changed: bool = False
    has_problem: bool = False
    is_advanced: bool = False
    is_placeholder: bool = False
    matched: tuple[int, ...] = ()


def value_cells(width: int, name_cells: int) -> int:
    """Cells of the values in a table of this width; while the screen is resized it may be too narrow for them."""
    return max(width - MARK_CELLS - name_cells - 1 - 1 - preset_cells(width), 3)


def preset_cells(width: int) -> int:
    """Of what the preset has; none where there is no room, and the help of the setting says it."""
    return next((cells for least, cells in _PRESET_CELLS if width >= least), 0)


def value_room(width: int, name_cells: int, preset: str = "") -> int:
    """The most cells of a value: what the preset of its own row needs not is free for it."""
    presets = preset_cells(width)
    cells = value_cells(width, name_cells)
    return cells + presets - min(cell_len(preset), presets) + (presets > 0 and not preset)


def row_line(
    row: ListRow, width: int, name_cells: int, glyphs: Glyphs, *, here: bool = False, edited: bool = False
) -> Line:
    """One row. `here`: the cursor is on it; `edited`: a field lies between the brackets in the place of its value."""
    if not row.key:
        return title_rule(row.name, width, glyphs)
    room, presets = value_room(width, name_cells, "" if edited else row.preset), preset_cells(width)
    cells = max(value_cells(width, name_cells), min(cell_len(row.value), room))
    role: Role = "bold" if row.is_changed else "dim" if row.is_placeholder else "text"
    value = f"[{' ' * (room - 2)}]" if edited else pad(shortened(row.value, cells, glyphs), cells)
    plain: Role = "dim" if row.is_advanced else "text"
    name: Line = [(letter, "accent" if at in row.matched else plain) for at, letter in enumerate(row.name)]
    line: Line = [
        (glyphs.pointer if here else " ", "accent"),
        (glyphs.bad, "bad") if row.has_problem else (glyphs.changed if row.is_changed else " ", "accent"),
        (" ", "text"),
        *(name if row.matched else [(row.name, plain)]),
        (" " * (name_cells + 1 - len(row.name)), plain),
        (value, "edit" if edited else role),
    ]
    if row.preset and presets and not edited:
        line.append((f" {shortened(row.preset, presets, glyphs)}", "dim"))
    line = fit(line, width)
    return [(text, role if role == "edit" else "cursor") for text, role in line] if here else line


def shortened(text: str, cells: int, glyphs: Glyphs) -> str:
    """A text that is too long keeps its end, which tells paths apart."""
    if cell_len(text) <= cells:
        return text
    # What is far longer is first cut to a length that is measured quickly.
    text = text[-_MOST_SIGNS_A_CELL * cells :]
    while cell_len(text) > cells - 1:
        text = text[1:]
    return glyphs.ellipsis + text


class _Rows(LineList):
    ALLOW_SELECT = True


class SettingsTable(Area):
    """The rows, with a cursor on one of the settings. A field laid into it lies over the value of that row."""

    DEFAULT_CSS = """
    SettingsTable { width: 1fr; height: 1fr; layers: base above; overflow: hidden; }
    SettingsTable > .field { layer: above; position: absolute; height: 1; display: none; }
    """

    @dataclass
    class Clicked(Message):
        """A setting was clicked on, once or twice; the cursor goes there unless a field is open."""

        key: str
        """Empty: of what stands below the last setting."""
        is_double: bool

    name_cells = 0
    """Of the longest name there may be, so that a filter moves no column."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[ListRow] = ()
        self.key, self.empty = "", ""
        self._place = 0
        self._list = _Rows(
            self._line,
            # What stands below the last setting is in sight with it.
            lambda: (len(self.rows), len(self.rows) - 1 if self._place == self._last else self._place),
            # The heading is to be in sight with the first setting of its group.
            lead=lambda place: 0 < place <= len(self.rows) and not self.rows[place - 1].key,
            is_heading=lambda place: not self.rows[place].key and place < self._last,
            empty=lambda: self.empty,
        )
        self._field: Widget | None = None

    def compose(self) -> ComposeResult:
        yield self._list

    def _line(self, place: int, width: int) -> Line:
        here = bool(self.rows[place].key) and place == self._place
        edited = here and self._field is not None
        return row_line(self.rows[place], width, self.name_cells, self._list.glyphs, here=here, edited=edited)

    def show(self, rows: Sequence[ListRow], key: str = "", empty: str = "") -> None:
        """Other rows, or words instead. The cursor goes to this key, stays, or goes to the nearest setting left."""
        if len(rows) != len(self.rows):
            self._list.follow()
        self.rows, self.empty = rows, empty
        before, self.key = self._place, key or self.key
        if places := self._settings:
            # Of settings that are as near, the one below.
            self._place = min(places, key=lambda at: (rows[at].key != self.key, abs(at - before), before - at))
            self.key = rows[self._place].key
        # The field goes with its row.
        self.on_line_list_scrolled()

    def move(self, steps: int) -> None:
        if places := self._settings:
            at = places.index(self._place) if self._place in places else 0
            self._go(places[min(max(at + steps, 0), len(places) - 1)])

    def move_group(self, direction: int) -> None:
        """To the first setting of the next group, or of this one and then of the one before it."""
        starts = [place for place in self._settings if place and not self.rows[place - 1].key]
        further = [place for place in starts if (place - self._place) * direction > 0]
        if further:
            self._go(min(further) if direction > 0 else max(further))

    @property
    def _settings(self) -> list[int]:
        return [place for place, row in enumerate(self.rows) if row.key]

    @property
    def _last(self) -> int:
        return max(self._settings, default=0)

    def _go(self, place: int) -> None:
        self._place, self.key = place, self.rows[place].key
        self._list.redraw()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        is_in_field = self._field is not None and message.place == self._place
        if not is_in_field and message.place < len(self.rows):
            key = self.rows[message.place].key
            if key and self._field is None:
                self._go(message.place)
            self.post_message(self.Clicked(key, message.opens))

    def lay(self, field: Widget | None) -> None:
        """Lay one of the children over the value of the cursor's row; None takes it away."""
        if self._field is not None:
            self._field.display = False
        self._field = field
        self.on_line_list_scrolled()
        self._list.redraw()

    def on_line_list_scrolled(self) -> None:
        if self._field is not None:
            # Out of sight as well: what is not displayed loses the focus, and with it the keys.
            row = self._place - self._list.seen_places.start
            self._field.styles.offset = (MARK_CELLS + self.name_cells + 2, row)
            self._field.styles.width = value_room(self.size.width, self.name_cells) - 2
            self._field.display = True


# Fields of a screen that take text or a choice. While one has the focus every key is its own, and no action's.
#
# What the keys beyond editing mean is for the screen: its `action_choose(steps)`, `action_complete()`, `action_take()`
# and `action_cancel()`. The application hands each key to `take_key` itself, not by a message: what a key does has
# been
# done before the next key is looked at.

LIMIT_CHARACTERS = 4096


class LineInput(Input):
    """One line of text, the cursor behind it and still: a blinking one would send bytes for as long as it is shown."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(
            one_line(text), max_length=LIMIT_CHARACTERS, select_on_focus=False, compact=True, id=id, classes=classes
        )
        self.cursor_blink = False

    def on_mount(self) -> None:
        # Its end is in sight from the first: Textual scrolls only when the cursor moves.
        self.call_after_refresh(self._show_cursor)

    def _show_cursor(self) -> None:
        at, self.cursor_position = self.cursor_position, 0
        self.cursor_position = at

    def put(self, text: str) -> None:
        self.value = one_line(text)
        self.cursor_position = 0
        self.cursor_position = len(self.value)

    def take_key(self, event: Key) -> bool:
        """Put a character in; whether it was one. Every other key is in the bindings."""
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
        Binding("up", "screen.choose(-1)"),
        Binding("down", "screen.choose(1)"),
        Binding("tab", "screen.complete"),
        Binding("shift+tab", "screen.choose(-1)"),
        Binding("enter", "screen.take"),
        Binding("escape", "screen.cancel"),
    ]

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return True


class ChoiceField(Pane, can_focus=True):
    """One of several choices. `jump` gets the letters that are typed, to go to a choice that begins with them."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,left,shift+tab", "screen.choose(-1)"),
        Binding("down,right,space,tab", "screen.choose(1)"),
        Binding("enter", "screen.take"),
        Binding("escape", "screen.cancel"),
    ]

    def __init__(
        self, draw: Callable[[int, int], list[Line]], jump: Callable[[str], None], *, classes: str | None = None
    ) -> None:
        super().__init__(draw, classes=classes)
        self._jump = jump

    def check_consume_key(self, key: str, character: str | None) -> bool:
        return True

    def take_key(self, event: Key) -> bool:
        if not event.is_printable or event.character is None or event.key == "space":
            return False
        self._jump(event.character)
        return True
