"""The first and the last line of the screen, as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tui_trainer.ui.actions import Action, key_sign
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, beside, width_of

_NARROW = 120
_KEYS_NARROW, _KEYS_WIDE = 6, 10
PROGRAM = "tui-trainer"


def header(host: str, machine: str, tabs: Sequence[tuple[str, str]], current: int, width: int) -> Line:
    """Program, host, machine; the screens with their state: `1 Hardware  2 Config  3 Checklist 2!  4 Train 37 %`."""
    right: Line = [(tab_text(index, *tab), "cursor" if index == current else "dim") for index, tab in enumerate(tabs)]
    room = width - width_of(right) - 1
    left: Line = [(PROGRAM, "title")] if len(PROGRAM) <= room else []
    for part in filter(None, (machine, host)) if width < _NARROW else filter(None, (host, machine)):
        if width_of(left) + 2 + cell_len(part) <= room:
            left.append((f"  {part}", "dim"))
    return beside(left, right, width)


def tab_text(index: int, title: str, state: str) -> str:
    return f" {index + 1} {title} {state} " if state else f" {index + 1} {title} "


@dataclass(frozen=True, slots=True)
class KeyHint:
    """`key` as it is pressed (several, separated by blanks, are shown together), and what it does."""

    key: str
    label: str
    at_end: bool = False

    def line(self, glyphs: Glyphs) -> Line:
        gap = "" if self.at_end else "   "
        return [(key_sign(self.key, ascii_only=glyphs.ascii), "key"), (f" {self.label}{gap}", "dim")]


def hints_line(hints: Sequence[KeyHint], width: int, glyphs: Glyphs) -> Line:
    """As many of the hints as fit, those at the end first."""
    left, right = _that_fit(hints, width, glyphs)
    return beside([span for hint in left for span in hint.line(glyphs)], right[0].line(glyphs) if right else [], width)


def hint_at(hints: Sequence[KeyHint], x: int, width: int, glyphs: Glyphs) -> KeyHint | None:
    """The hint on cell `x` of `hints_line`."""
    left, right = _that_fit(hints, width, glyphs)
    if right and x >= width - width_of(right[0].line(glyphs)):
        return right[0]
    end = 0
    for hint in left:
        end += width_of(hint.line(glyphs))
        if x < end:
            return hint
    return None


def _that_fit(hints: Sequence[KeyHint], width: int, glyphs: Glyphs) -> tuple[list[KeyHint], list[KeyHint]]:
    """Those from the beginning of the line on, and the one at its end."""
    right = [hint for hint in hints if hint.at_end][:1]
    left, free = list[KeyHint](), width - sum(width_of(hint.line(glyphs)) for hint in right)
    for hint in hints:
        cells = width_of(hint.line(glyphs))
        if not hint.at_end and cells <= free:
            left.append(hint)
            free -= cells
    return left, right


def help_hint(actions: Sequence[Action]) -> list[KeyHint]:
    """`? help`, with the key that it really has."""
    keys = next((action.keys for action in actions if action.id == "app.help"), ())
    return [KeyHint(keys[0], "help", at_end=True)] if keys else []


def footer_hints(actions: Sequence[Action], label_of: Callable[[Action], str], width: int) -> list[KeyHint]:
    """The most useful keys of this screen, in the order of the registry; `? help` is always at the end."""
    shown = sorted((action for action in actions if action.footer and action.keys), key=lambda action: action.footer)
    most = _KEYS_NARROW if width < _NARROW else _KEYS_WIDE
    return [KeyHint(action.keys[0], label_of(action)) for action in shown[:most]] + help_hint(actions)


def too_small(size: tuple[int, int], smallest: tuple[int, int], *, running: bool) -> list[Line]:
    """What is shown instead of a screen that does not fit."""
    words = [f"needs {smallest[0]}x{smallest[1]}", f"this is {size[0]}x{size[1]}"]
    words += ["training goes on"] if running else []
    return [[(text, "bold" if not index else "dim")] for index, text in enumerate(words)]
