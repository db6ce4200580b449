"""The last line of a screen or a dialog: its keys."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tui_trainer.ui.actions import Action, key_sign
from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, beside, width_of

_WIDE = 120
_KEYS_NARROW, _KEYS_WIDE = 6, 10


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
    left, right = list[KeyHint](), list[KeyHint]()
    for _, hint in _placed(hints, width, glyphs):
        (right if hint.at_end else left).append(hint)
    lines = [[span for hint in side for span in hint.line(glyphs)] for side in (left, right)]
    return beside(lines[0], lines[1], width)


def hint_at(hints: Sequence[KeyHint], x: int, width: int, glyphs: Glyphs) -> KeyHint | None:
    placed = _placed(hints, width, glyphs)
    return next((hint for begin, hint in placed if begin <= x < begin + width_of(hint.line(glyphs))), None)


def _placed(hints: Sequence[KeyHint], width: int, glyphs: Glyphs) -> list[tuple[int, KeyHint]]:
    """The hints that fit, each with its first cell: the one at the end of the line, and those from its beginning on."""
    placed = [(width - width_of(hint.line(glyphs)), hint) for hint in hints if hint.at_end][:1]
    begin, end = 0, placed[0][0] if placed else width
    for hint in hints:
        cells = width_of(hint.line(glyphs))
        if not hint.at_end and begin + cells <= end:
            placed.append((begin, hint))
            begin += cells
    return placed


def help_hint(actions: Sequence[Action]) -> list[KeyHint]:
    """`? help`, with the key that it really has."""
    keys = next((action.keys for action in actions if action.id == "app.help"), ())
    return [KeyHint(keys[0], "help", at_end=True)] if keys else []


def footer_hints(actions: Sequence[Action], label_of: Callable[[Action], str], width: int) -> list[KeyHint]:
    """The most useful keys of this screen, in the order of the registry; `? help` is always at the end."""
    shown = sorted((action for action in actions if action.footer and action.keys), key=lambda action: action.footer)
    most = _KEYS_NARROW if width < _WIDE else _KEYS_WIDE
    return [KeyHint(action.keys[0], label_of(action)) for action in shown[:most]] + help_hint(actions)
