"""The table of settings under headings. While a setting is edited, a field covers its value."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from tui_trainer.ui.spans import Glyphs, Line, Role, fit, pad, title_rule
from tui_trainer.ui.widgets.lists import MARK_CELLS, LineList
from tui_trainer.ui.widgets.pane import Area

# Pairs of a least table width and the width of the column of presets. A narrower table has no such column.
_PRESET_CELLS = ((96, 23), (76, 12))
_MOST_SIGNS_A_CELL = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class ListRow:
    """A setting, or a heading if `key` is empty. All texts are safe to show.

    `matched` has the positions of the letters of `name` that a filter found.
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
    """Return the width of the column of values. At least 3 cells, because a resize may leave less for a moment."""
    return max(width - MARK_CELLS - name_cells - 1 - 1 - preset_cells(width), 3)


def preset_cells(width: int) -> int:
    """Return the width of the column of presets; 0 if the table is too narrow for it."""
    return next((cells for min_width, cells in _PRESET_CELLS if width >= min_width), 0)


def value_room(width: int, name_cells: int, preset: str = "") -> int:
    """Return the largest width of a value in a row. The value may use cells that the row's preset does not need."""
    preset_room = preset_cells(width)
    cells = value_cells(width, name_cells)
    return cells + preset_room - min(cell_len(preset), preset_room) + (preset_room > 0 and not preset)


def row_line(row: ListRow, width: int, name_cells: int, glyphs: Glyphs, *, here: bool, edited: bool) -> Line:
    """Return the line of a row. `here`: the cursor is on the row. `edited`: a field covers its value."""
    if not row.key:
        return title_rule(row.name, width, glyphs)
    room_cells, preset_room = value_room(width, name_cells, "" if edited else row.preset), preset_cells(width)
    value_width = max(value_cells(width, name_cells), min(cell_len(row.value), room_cells))
    role: Role = "bold" if row.is_changed else "dim" if row.is_placeholder else "text"
    value = f"[{' ' * (room_cells - 2)}]" if edited else pad(shortened(row.value, value_width, glyphs), value_width)
    name_role: Role = "dim" if row.is_advanced else "text"
    name: Line = [(letter, "accent" if index in row.matched else name_role) for index, letter in enumerate(row.name)]
    line: Line = [
        (glyphs.pointer if here else " ", "accent"),
        (glyphs.bad, "bad") if row.has_problem else (glyphs.changed if row.is_changed else " ", "accent"),
        (" ", "text"),
        *(name if row.matched else [(row.name, name_role)]),
        (" " * (name_cells + 1 - len(row.name)), name_role),
        (value, "edit" if edited else role),
    ]
    if row.preset and preset_room and not edited:
        line.append((f" {shortened(row.preset, preset_room, glyphs)}", "dim"))
    line = fit(line, width)
    return [(text, role if role == "edit" else "cursor") for text, role in line] if here else line


def shortened(text: str, cells: int, glyphs: Glyphs) -> str:
    """Return the text in at most `cells` cells. The beginning is cut, because paths differ at their end."""
    if cell_len(text) <= cells:
        return text
    # Measuring a very long text is slow, so it is cut roughly first.
    text = text[-_MOST_SIGNS_A_CELL * cells :]
    while cell_len(text) > cells - 1:
        text = text[1:]
    return glyphs.ellipsis + text


class _Rows(LineList):
    ALLOW_SELECT = True


class SettingsTable(Area):
    """Table of settings with a cursor. `lay` puts a field over the value of the cursor's row."""

    DEFAULT_CSS = """
    SettingsTable { width: 1fr; height: 1fr; layers: base above; overflow: hidden; }
    SettingsTable > .field { layer: above; position: absolute; height: 1; display: none; }
    """

    @dataclass
    class Clicked(Message):
        """Sent when a row is clicked. If no field is open, the cursor moves to a clicked setting."""

        key: str
        """Key of the clicked setting; empty for a heading or the row below the last setting."""
        is_double: bool

    name_cells = 0
    """Width of the longest name among all settings. A filter does not change it, so columns do not move."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: Sequence[ListRow] = ()
        self.key, self.empty = "", ""
        self._place = 0
        self._list = _Rows(
            self._line,
            # When the cursor is on the last setting, rows below it are scrolled into view too.
            lambda: (len(self.rows), len(self.rows) - 1 if self._place == self._last else self._place),
            is_heading=lambda place: not self.rows[place].key and place < self._last,
            empty=lambda: self.empty,
        )
        self._field: Widget | None = None

    def compose(self) -> ComposeResult:
        yield self._list

    def _line(self, place: int, width: int) -> Line:
        is_current = bool(self.rows[place].key) and place == self._place
        edited = is_current and self._field is not None
        return row_line(self.rows[place], width, self.name_cells, self._list.glyphs, here=is_current, edited=edited)

    def show(self, rows: Sequence[ListRow], key: str = "", empty: str = "") -> None:
        """Show these rows, or the text `empty`. The cursor goes to `key`, or to the setting nearest to its place."""
        if len(rows) != len(self.rows):
            self._list.follow()
        self.rows, self.empty = rows, empty
        cursor, self.key = self._place, key or self.key
        if places := self._settings:
            # If two settings are equally near, the cursor moves to the lower one.
            self._place = min(places, key=lambda row: (rows[row].key != self.key, abs(row - cursor), cursor - row))
            self.key = rows[self._place].key
        self.on_line_list_scrolled()

    def move(self, steps: int) -> None:
        if places := self._settings:
            index = places.index(self._place) if self._place in places else 0
            self._go(places[min(max(index + steps, 0), len(places) - 1)])

    def move_group(self, direction: int) -> None:
        """Move to the first setting of the next group (1), or to the nearest first setting above the cursor (-1)."""
        group_starts = [place for place in self._settings if place and not self.rows[place - 1].key]
        candidates = [place for place in group_starts if (place - self._place) * direction > 0]
        if candidates:
            self._go(min(candidates) if direction > 0 else max(candidates))

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
            self.post_message(self.Clicked(key, message.is_double_click))

    def lay(self, field: Widget | None) -> None:
        """Put `field`, a child of the table, over the value of the cursor's row; None hides the present field."""
        if self._field is not None:
            self._field.display = False
        self._field = field
        self.on_line_list_scrolled()
        self._list.redraw()

    def on_line_list_scrolled(self) -> None:
        if self._field is not None:
            # The field is displayed even if its row is scrolled away: hidden, it would lose the focus and the keys.
            row = self._place - self._list.visible_indices.start
            self._field.styles.offset = (MARK_CELLS + self.name_cells + 2, row)
            self._field.styles.width = value_room(self.size.width, self.name_cells) - 2
            self._field.display = True
