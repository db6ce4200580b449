"""The editor of one setting: what is typed, what it can be completed to, what is wrong with it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tui_trainer.config.editing import choices, completions, display_text, edit_text, parse
from tui_trainer.config.fields import Setting
from tui_trainer.errors import Problem


@dataclass(kw_only=True, slots=True)
class Editor:
    """`options` are what `text` can be completed to, when it is `closed` all that the setting takes.

    `chosen` is the place of one of them, or -1; `begun` is what was typed to choose in a closed editor.
    """

    setting: Setting
    text: str
    original: str
    names: Iterable[str] = ()
    closed: bool = False
    options: tuple[str, ...] = ()
    chosen: int = -1
    error: str = ""
    begun: str = ""

    @classmethod
    def open(cls, setting: Setting, value: Any, names: Iterable[str] = ()) -> Editor:
        """Begins with the text of the value, never with a placeholder."""
        text = edit_text(setting, value)
        editor = cls(setting=setting, text=text, original=text, names=names)
        # A switch that may also be "auto" takes that as well.
        if closed := tuple(dict.fromkeys((*setting.choices, *choices(setting)))) if choices(setting) else ():
            editor.closed, editor.options = True, tuple(display_text(setting, choice) for choice in closed)
            editor.chosen = next((place for place, choice in enumerate(closed) if choice == value), 0)
            editor.text = editor.options[editor.chosen]
        else:
            editor.options = tuple(completions(setting, text, names=names))
        return editor

    def typed(self, text: str) -> None:
        """Another text: what it can be completed to, and what is wrong where that is nothing."""
        self.text, self.chosen = text, -1
        self.options = tuple(completions(self.setting, text, names=self.names))
        value = parse(self.setting, text)
        self.error = reason(value) if isinstance(value, Problem) and not self.options else ""

    def choose(self, steps: int) -> None:
        """Another option becomes the text."""
        if self.options:
            self.chosen = steps - 1 if self.chosen < 0 and steps > 0 else self.chosen + steps
            self.chosen %= len(self.options)
            self.text, self.error = self.options[self.chosen], ""

    def complete(self) -> None:
        """As far as all options agree; then one option after the other."""
        common = os.path.commonprefix(self.options)  # noqa: RUF071 - names are cut between any two letters
        if len(common) <= len(self.text) or not common.startswith(self.text):
            self.choose(1)
        else:
            self.typed(common)

    def jump(self, letters: str) -> None:
        """To the option that begins with all that was typed; a first letter again goes to the next one with it."""
        for begun in (self.begun + letters.lower(), letters.lower()):
            starting = [place for place, option in enumerate(self.options) if option.lower().startswith(begun)]
            if starting:
                later = [place for place in starting if place > self.chosen]
                self.chosen = (starting if len(begun) > 1 else later or starting)[0]
                self.text, self.begun = self.options[self.chosen], begun
                return


def reason(problem: Problem) -> str:
    return f"{problem.message}; {problem.hint}" if problem.hint else problem.message
