"""The editor of one setting: what is typed, what it can be completed to, what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tui_trainer.config.editing import choices, completions, display_text, edit_text, parse
from tui_trainer.config.fields import Setting
from tui_trainer.ui.text_field import LineText


@dataclass(kw_only=True, slots=True)
class Editor:
    """The editor of one setting, in its row.

    `options` are what it can be completed to, when it is `closed` all that it takes; `chosen`
    is the place of one of them, or -1.
    """

    setting: Setting
    line: LineText
    names: Iterable[str] = ()
    closed: bool = False
    options: tuple[str, ...] = ()
    chosen: int = -1
    error: str = ""
    begun: str = ""
    """What was typed to choose in a closed editor."""
    original: str = field(default="")

    @classmethod
    def open(cls, setting: Setting, value: Any, names: Iterable[str] = ()) -> Editor:
        """Begins with the text of the value, never with a placeholder, and the cursor behind it."""
        text = edit_text(setting, value)
        editor = cls(setting=setting, line=LineText(text=text, cursor=len(text)), names=names, original=text)
        # A switch that may also be "auto" takes that as well.
        if closed := tuple(dict.fromkeys((*setting.choices, *choices(setting)))) if choices(setting) else ():
            editor.closed, editor.options = True, tuple(display_text(setting, choice) for choice in closed)
            editor.chosen = next((place for place, choice in enumerate(closed) if choice == value), 0)
        else:
            editor.offer()
        return editor

    def type(self, characters: str) -> None:
        if self.closed:
            self._jump(characters)
            return
        self.line.type(characters)
        self.typed()

    def typed(self) -> None:
        """After the text changed: what was wrong with the old one is not said of the new one."""
        self.error = ""
        self.offer()

    def offer(self) -> None:
        """What the text before it can be completed to; nothing while it is the value it began with and no path."""
        if self.closed:
            return
        found = completions(self.setting, self.line.text, names=self.names)
        self.options, self.chosen = tuple(found), -1

    def choose(self, steps: int) -> None:
        """Another option; in a closed editor it is the value, in an open one it becomes the text."""
        if not self.options:
            return
        self.chosen = steps - 1 if self.chosen < 0 and steps > 0 else self.chosen + steps
        self.chosen %= len(self.options)
        if not self.closed:
            self.line.put(self.options[self.chosen])
            self.error = ""

    def complete(self) -> None:
        """As far as all options agree; then one option after the other."""
        common = os.path.commonprefix(self.options)  # noqa: RUF071 - names are cut between any two letters
        if self.closed or len(common) <= len(self.line.text) or not common.startswith(self.line.text):
            self.choose(1)
            return
        self.line.put(common)
        self.typed()

    def result(self) -> Any:
        """The value, or a Problem. What nobody changed is kept as it is."""
        text = self.options[self.chosen] if self.closed else self.line.text
        return parse(self.setting, text)

    def _jump(self, characters: str) -> None:
        """To the option that begins with all that was typed; a first letter again goes to the next one with it."""
        for begun in (self.begun + characters.lower(), characters.lower()):
            starting = [place for place, option in enumerate(self.options) if option.lower().startswith(begun)]
            if starting:
                later = [place for place in starting if place > self.chosen]
                self.chosen = (starting if len(begun) > 1 else later or starting)[0]
                self.begun = begun
                return
