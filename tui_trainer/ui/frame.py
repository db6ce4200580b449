"""The first and the last line of the screen."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len

from tui_trainer.ui.actions import Action, key_sign
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, beside, fit, width_of

_NARROW = 120
_KEYS_NARROW, _KEYS_WIDE = 6, 10
PROGRAM = "tui-trainer"


def header(host: str, machine: str, tabs: Sequence[tuple[str, str]], current: int, width: int, glyphs: Glyphs) -> Line:
    """Program, host, machine; the screens with their state: `1 Hardware  2 Config  3 Checklist 2!  4 Train 37 %`."""
    right: Line = []
    for index, (title, state) in enumerate(tabs):
        text = f" {index + 1} {title} {state} " if state else f" {index + 1} {title} "
        right.append((text, "cursor" if index == current else "dim"))
    room = width - width_of(right) - 1
    left: Line = [(PROGRAM, "title")]
    for part in filter(None, (machine, host)) if width < _NARROW else filter(None, (host, machine)):
        if width_of(left) + 2 + cell_len(part) <= room:
            left.append((f"  {part}", "dim"))
    return beside(left, right, width)


def help_hint(actions: Sequence[Action], glyphs: Glyphs) -> Line:
    """`? help`, with the key that it really has."""
    keys = next((action.keys for action in actions if action.id == "app.help"), ())
    return [(key_sign(keys[0], ascii_only=glyphs.ascii), "key"), (" help", "dim")] if keys else []


def footer(actions: Sequence[Action], width: int, glyphs: Glyphs) -> Line:
    """The most useful keys of this screen, in the order of the registry; `? help` is always at the end."""
    right = help_hint(actions, glyphs)
    left: Line = []
    shown = sorted((action for action in actions if action.footer and action.keys), key=lambda action: action.footer)
    for action in shown[: _KEYS_NARROW if width < _NARROW else _KEYS_WIDE]:
        part: Line = [(key_sign(action.keys[0], ascii_only=glyphs.ascii), "key"), (f" {action.label}   ", "dim")]
        if width_of(left) + width_of(part) + width_of(right) <= width:
            left += part
    return beside(left, right, width)


def typing_footer(keys: Sequence[tuple[str, str]], width: int, glyphs: Glyphs) -> Line:
    """The last line while a text is typed: then letters are no keys."""
    line: Line = []
    for key, label in keys:
        part: Line = [(key_sign(key, ascii_only=glyphs.ascii), "key"), (f" {label}   ", "dim")]
        if width_of(line) + width_of(part) <= width:
            line += part
    return fit(line, width)


def too_small(width: int, height: int, smallest: tuple[int, int], *, running: bool) -> list[Line]:
    """What is shown instead of a screen that does not fit."""
    words = [f"needs {smallest[0]}x{smallest[1]}", f"this is {width}x{height}"]
    words += ["training goes on"] if running else []
    lines: list[Line] = [[(text, "bold" if not index else "dim")] for index, text in enumerate(words)]
    return [fit(line, width) for line in [*lines, *[[] for _ in range(max(height - len(lines), 0))]]][:height]
