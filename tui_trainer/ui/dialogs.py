"""Boxes that lie on a screen and take the keys until they are closed."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tui_trainer.ui.actions import TITLES, Action, Place, key_sign
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.overlay import box
from tui_trainer.ui.spans import Line, Role, fit, pad, width_of
from tui_trainer.ui.text_field import TextField

_WIDEST = 100
_KEYS_WIDTH = 16
Answer = tuple[str, str, Callable[[], None]]
"""A key, what it does, and the doing."""


class Dialog:
    """`press` returns whether the dialog stays."""

    title = ""
    keys: Sequence[tuple[str, str]] = (("escape", "close"),)
    """What the last line says: `(key, what it does)`."""

    def inner(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """The lines inside, at most `height` of them; `width` is what fits into the box."""
        raise NotImplementedError

    def press(self, key: str, character: str | None) -> bool:
        raise NotImplementedError

    def paste(self, text: str) -> None:
        """A pasted text; most dialogs take none."""

    def by_clock(self) -> object:
        """As of a page: what changes without a key or an answer."""
        return ()

    def draw(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        """The whole box, at most `height` lines high."""
        wide = min(width - 4, _WIDEST)
        lines = self.inner(wide - 4, height - 4, glyphs)[: height - 4]
        widest = max([width_of(line) for line in lines] + [width_of(self._hint(glyphs)), len(self.title) + 4])
        return box(self.title, [*lines, [], self._hint(glyphs)], min(widest + 4, wide), glyphs)

    def _hint(self, glyphs: Glyphs) -> Line:
        hint: Line = []
        for key, label in self.keys:
            hint += [(key_sign(key, ascii_only=glyphs.ascii), "key"), (f" {label}   ", "dim")]
        return hint


class ChoiceDialog(Dialog):
    """A question with one key for each answer. Escape answers nothing."""

    def __init__(self, title: str, lines: Sequence[Line], answers: Sequence[Answer]) -> None:
        self.title, self._lines, self._answers = title, list(lines), list(answers)
        self.keys = [(key, label) for key, label, _ in answers] + [("escape", "back")]

    def inner(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        return self._lines

    def press(self, key: str, character: str | None) -> bool:
        for name, _, do in self._answers:
            if name in (key, character):
                do()
                return False
        return key not in ("escape", "q", "ctrl+q")


class TextDialog(Dialog):
    """Asks for one line of text. `accept` gives a sentence when the text will not do."""

    keys = (("enter", "ok"), ("escape", "back"))

    def __init__(self, title: str, lines: Sequence[Line], text: str, accept: Callable[[str], str]) -> None:
        self.title, self._lines, self._accept = title, list(lines), accept
        self._field = TextField(text)
        self._refusal = ""

    def inner(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        refusal: list[Line] = [[(line, "bad")] for line in textwrap.wrap(self._refusal, width)]
        return [*self._lines, [("> ", "accent"), *self._field.line(width - 3)], *refusal]

    def press(self, key: str, character: str | None) -> bool:
        if key == "escape":
            return False
        if key == "enter":
            self._refusal = self._accept(self._field.text)
            return bool(self._refusal)
        self._field.press(key, character)
        return True

    def paste(self, text: str) -> None:
        self._field.insert(text)


class HelpDialog(Dialog):
    """What every key does, on this screen and everywhere."""

    title = "Keys"
    keys = (("up down", "scroll"), ("escape", "close"))

    def __init__(self, keymap: Keymap, place: Place, ascii_only: bool) -> None:
        self._keymap, self._place, self._ascii = keymap, place, ascii_only
        self._top = 0
        self._rows = 0
        self._height = 1

    def inner(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        lines: list[Line] = []
        for place in (self._place, "app"):
            lines += [[(TITLES[place], "title")]]
            for action in self._keymap.of(place):
                lines += self._entry(action, width)
            lines.append([])
        lines.pop()
        self._rows, self._height = len(lines), height
        self._top = min(self._top, max(len(lines) - height, 0))
        return lines[self._top : self._top + height]

    def press(self, key: str, character: str | None) -> bool:
        steps = {"up": -1, "k": -1, "down": 1, "j": 1, "pageup": -self._height, "pagedown": self._height}
        steps |= {"home": -self._rows, "g": -self._rows, "end": self._rows, "G": self._rows}
        by = steps.get(character or "") or steps.get(key)
        if by is not None:
            self._top = min(max(self._top + by, 0), max(self._rows - self._height, 0))
            return True
        return key not in ("escape", "q", "enter", "f1", "ctrl+q") and character != "?"

    def _entry(self, action: Action, width: int) -> list[Line]:
        keys = " ".join(key_sign(key, ascii_only=self._ascii) for key in action.keys)
        first, *rest = textwrap.wrap(action.help, width - _KEYS_WIDTH)
        more: list[Line] = [[(" " * _KEYS_WIDTH, "text"), (line, "text")] for line in rest]
        return [[(pad(f"  {keys}", _KEYS_WIDTH), "key"), (first, "text")], *more]


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """One line of the palette."""

    action: Action
    run: Callable[[], None]


def _score(match: Callable[[str], float], action: Action) -> float:
    """How well letters fit an action: its label counts more than the sentence about it."""
    return max(2 * match(action.label), match(f"{action.label} {action.help}"))


class Palette(Dialog):
    """Find an action by some of its letters, and do it."""

    title = "Commands"
    keys = (("enter", "do it"), ("up down", "choose"), ("escape", "close"))

    def __init__(self, commands: Sequence[Command], ascii_only: bool) -> None:
        self._commands, self._ascii = list(commands), ascii_only
        self._field = TextField()
        self._cursor = 0

    @property
    def found(self) -> list[Command]:
        """The commands that have the letters, the best match first."""
        wanted = self._field.text.strip()
        if not wanted:
            return self._commands
        from textual.fuzzy import Matcher

        matcher = Matcher(wanted)
        scored = [(_score(matcher.match, one.action), one) for one in self._commands]
        return [one for score, one in sorted(scored, key=lambda pair: -pair[0]) if score > 0]

    def inner(self, width: int, height: int, glyphs: Glyphs) -> list[Line]:
        found = self.found
        self._cursor = min(self._cursor, max(len(found) - 1, 0))
        room = height - 2
        top = max(self._cursor - room + 1, 0)
        lines: list[Line] = [[("> ", "accent"), *self._field.line(width - 3)], []]
        for index, one in enumerate(found[top : top + room], top):
            keys = " ".join(key_sign(key, ascii_only=self._ascii) for key in one.action.keys)
            text = f"{pad(TITLES[one.action.place], 11)} {pad(one.action.label, 17)} {one.action.help}"
            is_chosen = index == self._cursor
            role: Role = "cursor" if is_chosen else "text"
            keys_role: Role = "cursor" if is_chosen else "key"
            lines.append([*fit([(text, role)], width - 14, glyphs.ellipsis), (pad(f" {keys}", 14), keys_role)])
        lines += [[("no action has these letters", "dim")]] if not found else []
        return lines + [[] for _ in range(height - len(lines))]

    def press(self, key: str, character: str | None) -> bool:
        if key in ("escape", "ctrl+p"):
            return False
        if key in ("up", "down", "pageup", "pagedown"):
            step = {"up": -1, "down": 1, "pageup": -10, "pagedown": 10}[key]
            self._cursor = min(max(self._cursor + step, 0), max(len(self.found) - 1, 0))
        elif key == "enter":
            if found := self.found:
                found[self._cursor].run()
            return not found
        elif self._field.press(key, character):
            self._cursor = 0
        return True

    def paste(self, text: str) -> None:
        self._field.insert(text)
