"""The table of settings: which rows are on it, where the cursor is, and which part is on the page."""

from __future__ import annotations

from typing import Any

from tui_trainer.config.bumping import Direction
from tui_trainer.config.document import Document
from tui_trainer.config.fields import Setting
from tui_trainer.config.groups import groups
from tui_trainer.ui.screens.config_rows import Row, table_rows
from tui_trainer.ui.text_field import LineText


class SettingsTable:
    """`key` is the setting under the cursor, `scroll` the first row on the page, `page_rows` how many it has."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.page_rows = 10
        self.scroll = 0
        self.only_changed = self.show_advanced = False
        self.filter = LineText()
        self.key = ""
        self._place = 0
        self._rows: tuple[Any, list[Row]] = (None, [])
        self.settle(1)

    @property
    def rows(self) -> list[Row]:
        """Headings and settings that are shown now."""
        state = (self.document.revision, self.only_changed, self.show_advanced, self.filter.text)
        if self._rows[0] != state:
            self._rows = (state, table_rows(self._wanted(), self.filter.text))
        return self._rows[1]

    @property
    def setting_count(self) -> int:
        """Settings in all, shown or not."""
        return sum(len(settings) for _, _, settings in groups())

    @property
    def cursor(self) -> int:
        """The row of the cursor; 0 in an empty table."""
        at = next((place for place, row in enumerate(self.rows) if row.setting and row.setting.key == self.key), None)
        return min(self._place, max(len(self.rows) - 1, 0)) if at is None else at

    @property
    def setting(self) -> Setting | None:
        """The setting under the cursor."""
        return self.rows[self.cursor].setting if self.rows else None

    def _wanted(self) -> frozenset[str]:
        """What was changed and what has a problem is shown whether it is advanced or not; a filter looks at all."""
        everything = not self.only_changed and (self.show_advanced or bool(self.filter.text))
        troubled = {problem.key for problem in self.document.problems}
        return frozenset(
            setting.key
            for _, _, settings in groups()
            for setting in settings
            if everything
            or self.document.is_changed(setting.key)
            or (not self.only_changed and (not setting.advanced or setting.key in troubled))
        )

    def resize(self, page_rows: int) -> None:
        self.page_rows = max(page_rows, 1)
        self._follow()

    def move_rows(self, steps: int) -> None:
        """Over settings, not over headings; at an end it stays."""
        if places := self._setting_places():
            at = places.index(self.cursor) if self.cursor in places else 0
            self._go(places[min(max(at + steps, 0), len(places) - 1)])

    def show(self, key: str) -> None:
        """The cursor on this setting, out of any filter that hides it."""
        if not any(row.setting and row.setting.key == key for row in self.rows):
            self.filter.put("")
            self.only_changed, self.show_advanced = False, True
        self.key = key
        self.settle(1)

    def _setting_places(self) -> list[int]:
        return [place for place, row in enumerate(self.rows) if row.setting]

    def _go(self, place: int) -> None:
        row = self.rows[place]
        self._place, self.key = place, row.setting.key if row.setting else ""
        self._follow()

    def settle(self, direction: Direction) -> None:
        """The cursor on a setting, after the rows changed."""
        if places := self._setting_places():
            at = self.cursor
            self._go(min(places, key=lambda place: (abs(place - at), (at - place) * direction)))

    def _follow(self) -> None:
        """The cursor on the page, with its heading where it is the first of its group."""
        at, rows = self.cursor, self.rows
        top = at - 1 if at and rows[at - 1].setting is None else at
        self.scroll = max(min(self.scroll, top, len(rows) - self.page_rows), at - self.page_rows + 1, 0)

    def to_best(self) -> None:
        """The cursor on what fits the filter best."""
        self.scroll = 0
        if places := self._setting_places():
            self._go(places[0])
