"""A table of settings under headings: mark, name, value, and the preset where it differs.

`python -m tui_trainer.ui.widgets.settings_table` shows one with made-up data.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.message import Message
from textual.widget import Widget

from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, pad, title_rule
from tui_trainer.ui.widgets.line_list import LineList
from tui_trainer.ui.widgets.section import Area

MARK_CELLS = 3
PRESET_CELLS = 23
WIDEST_VALUE = 44
_MOST_SIGNS_A_CELL = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
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
    return min(max(width - MARK_CELLS - name_cells - 1 - 1 - PRESET_CELLS, 3), WIDEST_VALUE)


def row_line(
    row: Row, width: int, name_cells: int, glyphs: Glyphs, *, here: bool = False, edited: bool = False
) -> Line:
    """One row. `here`: the cursor is on it; `edited`: a field lies between the brackets in the place of its value."""
    if not row.key:
        return title_rule(row.name, width, glyphs)
    cells = value_cells(width, name_cells)
    role: Role = "bold" if row.is_changed else "dim" if row.is_placeholder else "text"
    value = f"[{' ' * (cells - 2)}]" if edited else pad(shortened(row.value, cells, glyphs), cells)
    plain: Role = "dim" if row.is_advanced else "text"
    name: Line = [(letter, "accent" if at in row.matched else plain) for at, letter in enumerate(row.name)]
    line: Line = [
        (glyphs.pointer if here else " ", "accent"),
        (glyphs.bad, "bad") if row.has_problem else (glyphs.changed if row.is_changed else " ", "accent"),
        (" ", "text"),
        *(name if row.matched else [(row.name, plain)]),
        (" " * (name_cells + 1 - len(row.name)), plain),
        (value, "edit" if edited else role),
        (f" {pad(shortened(row.preset, PRESET_CELLS, glyphs), PRESET_CELLS)}", "dim"),
    ]
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
        is_double: bool

    def __init__(self, name_cells: int = 0, id: str | None = None) -> None:
        """`name_cells`: of the longest name there may be, so that a filter moves no column."""
        super().__init__(id=id)
        self.rows: Sequence[Row] = ()
        self.key, self.empty, self.name_cells = "", "", name_cells
        self._place = 0
        self._list = _Rows(
            self._line,
            lambda: (max(len(self.rows), 1), self._place),
            # The heading is to be in sight with the first setting of its group.
            lead=lambda place: 0 < place <= len(self.rows) and not self.rows[place - 1].key,
        )
        self._field: Widget | None = None

    def compose(self) -> ComposeResult:
        yield self._list

    def _line(self, place: int, width: int) -> Line:
        if not self.rows:
            return [(" " * MARK_CELLS + self.empty, "dim")]
        here = bool(self.rows[place].key) and place == self._place
        edited = here and self._field is not None
        return row_line(self.rows[place], width, self.name_cells, self._list.glyphs, here=here, edited=edited)

    # The cursor

    def show(self, rows: Sequence[Row], key: str = "", empty: str = "") -> None:
        """Other rows, or words instead. The cursor goes to this key, stays, or goes to the nearest setting left."""
        if len(rows) != len(self.rows):
            self._list.follow()
        self.rows, self.empty = rows, empty
        before, self.key = self._place, key or self.key
        if places := self._settings:
            # Of settings that are as near, the one below.
            self._place = min(places, key=lambda at: (rows[at].key != self.key, abs(at - before), before - at))
            self.key = rows[self._place].key

    def move(self, steps: int) -> None:
        """Over settings, not over headings; at an end it stays."""
        if places := self._settings:
            at = places.index(self._place) if self._place in places else 0
            self._go(places[min(max(at + steps, 0), len(places) - 1)])

    def move_to_end(self, direction: int) -> None:
        self.move(direction * len(self.rows))

    def move_group(self, direction: int) -> None:
        """To the first setting of the next group, or of this one and then of the one before it."""
        starts = [place + 1 for place, row in enumerate(self.rows) if not row.key]
        further = [place for place in starts if (place - self._place) * direction > 0]
        if further:
            self._go(min(further) if direction > 0 else max(further))

    @property
    def _settings(self) -> list[int]:
        return [place for place, row in enumerate(self.rows) if row.key]

    def _go(self, place: int) -> None:
        self._place, self.key = place, self.rows[place].key
        self._list.redraw()

    def on_line_list_chosen(self, message: LineList.Chosen) -> None:
        is_in_field = self._field is not None and message.place == self._place
        if not is_in_field and message.place < len(self.rows) and (key := self.rows[message.place].key):
            if self._field is None:
                self._go(message.place)
            self.post_message(self.Clicked(key, message.opens))

    # The field over the value

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
            self._field.styles.width = value_cells(self.size.width, self.name_cells) - 2
            self._field.display = True


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    def sixty_settings() -> list[SettingsTable]:
        names = [f"made_up_{n}" for n in range(60)]
        rows = [Row(key=name, name=name, value=f"{n} steps", is_changed=n % 7 == 1) for n, name in enumerate(names)]
        table = SettingsTable(28)
        table.show([Row(name="Training"), *rows], names[0])
        return [table]

    Demo(sixty_settings).run()
