"""A table of settings under headings: mark, name, value, and the preset where it differs.

`python -m tui_trainer.ui.widgets.settings_table` shows one with made-up data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.events import Click
from textual.geometry import Region
from textual.message import Message
from textual.widget import Widget

from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, Role, pad, title_rule
from tui_trainer.ui.widgets.pane import Pane

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


class SettingsTable(VerticalScroll, can_focus=False):
    """The rows, with a cursor on one of the settings. A field laid into it lies over the value of that row."""

    DEFAULT_CSS = """
    SettingsTable { layers: base above; scrollbar-size: 0 0; }
    SettingsTable > .rows { height: auto; }
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
        self._pane = Pane(self._draw, classes="rows")
        self._field: Widget | None = None
        self._drawn: tuple[object, list[Line]] = (None, [])

    def compose(self) -> ComposeResult:
        yield self._pane

    def _draw(self, width: int, _: int) -> list[Line]:
        state = (self.rows, self.key, self._field, self.empty, width)
        if self._drawn[0] != state:
            lines = [
                row_line(
                    row, width, self.name_cells, self._pane.glyphs, here=here, edited=here and self._field is not None
                )
                for row in self.rows
                for here in [bool(row.key) and row.key == self.key]
            ]
            self._drawn = state, lines or [[(" " * MARK_CELLS + self.empty, "dim")]]
        return self._drawn[1]

    # The cursor

    def show(self, rows: Sequence[Row], key: str = "", empty: str = "") -> None:
        """Other rows, or words instead. The cursor goes to this key, stays, or goes to the nearest setting left."""
        same_count, self.rows, self.empty = len(rows) == len(self.rows), rows, empty
        before, self.key = self._place, key or self.key
        if places := self._settings:
            # Of settings that are as near, the one below.
            self._place = min(places, key=lambda at: (rows[at].key != self.key, abs(at - before), before - at))
            self.key = rows[self._place].key
        if not same_count:
            # The rows are laid out before they can be scrolled to.
            self.call_after_refresh(self._follow)
        elif self._place != before:
            self._follow()

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
        self._pane.redraw()
        self._follow()

    def _follow(self) -> None:
        """The cursor in sight, with its heading where it is the first of its group."""
        if self.rows and self.is_attached:
            at = self._place
            top = at - 1 if at and not self.rows[at - 1].key else at
            self.scroll_to_region(Region(0, top, 1, at - top + 1), animate=False, immediate=True)

    def on_click(self, event: Click) -> None:
        place = event.screen_y - self._pane.region.y
        is_in_field = self._field is not None and place == self._place
        if not is_in_field and place < len(self.rows) and (key := self.rows[place].key):
            if self._field is None:
                self._go(place)
            self.post_message(self.Clicked(key, event.chain == 2))

    # The field over the value

    def lay(self, field: Widget | None) -> None:
        """Lay one of the children over the value of the cursor's row; None takes it away."""
        if self._field is not None:
            self._field.display = False
        self._field = field
        self._follow()
        self._place_field()
        self._pane.redraw()

    def _place_field(self) -> None:
        if self._field is not None:
            self._field.styles.offset = (MARK_CELLS + self.name_cells + 2, self._place)
            self._field.styles.width = value_cells(self.size.width, self.name_cells) - 2
            self._field.display = True

    def on_resize(self) -> None:
        self._place_field()
        self.call_after_refresh(self._follow)


if __name__ == "__main__":
    from tui_trainer.ui.widgets.demo import Demo

    def sixty_settings() -> list[SettingsTable]:
        names = [f"made_up_{n}" for n in range(60)]
        rows = [Row(key=name, name=name, value=f"{n} steps", is_changed=n % 7 == 1) for n, name in enumerate(names)]
        table = SettingsTable(28)
        table.show([Row(name="Training"), *rows], names[0])
        return [table]

    Demo(sixty_settings).run()
