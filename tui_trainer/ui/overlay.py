"""A box of lines on top of a picture: dialogs, help, pickers."""

from __future__ import annotations

from rich.cells import set_cell_size, split_text

from tui_trainer.ui.glyphs import Glyphs
from tui_trainer.ui.spans import Line, fit, width_of


def box(title: str, inner: list[Line], width: int, glyphs: Glyphs) -> list[Line]:
    """Lines in a frame of `width` cells with a title; each inner line is cut to `width - 4`."""
    corner = ("+", "+", "+", "+") if glyphs.ascii else ("\u256d", "\u256e", "\u2570", "\u256f")
    head: Line = [(f"{corner[0]}{glyphs.rule} ", "rule"), (title, "title"), (" ", "rule")]
    head.append((glyphs.rule * max(width - width_of(head) - 1, 0) + corner[1], "rule"))
    side = glyphs.vertical
    body: list[Line] = [
        [(f"{side} ", "rule"), *fit(line, width - 4, glyphs.ellipsis), (f" {side}", "rule")] for line in inner
    ]
    return [fit(head, width), *body, [(corner[2] + glyphs.rule * (width - 2) + corner[3], "rule")]]


def over(picture: list[Line], top: list[Line], x: int, y: int) -> list[Line]:
    """`top` laid on `picture` with its upper left corner at cell `x` of line `y`."""
    result = list(picture)
    for offset, line in enumerate(top):
        if 0 <= y + offset < len(result):
            below = result[y + offset]
            result[y + offset] = [*_first(below, x), *line, *_after(below, x + width_of(line))]
    return result


def centred(picture: list[Line], top: list[Line], width: int) -> list[Line]:
    """`top` in the middle of `picture`."""
    wide = width_of(top[0]) if top else 0
    return over(picture, top, max((width - wide) // 2, 0), max((len(picture) - len(top)) // 2, 0))


def _first(line: Line, cells: int) -> Line:
    return fit(line, cells, "") if width_of(line) > cells else fit(line, cells)


def _after(line: Line, cells: int) -> Line:
    """What stands behind the first so many cells; half of a wide sign becomes a blank."""
    rest: Line = []
    left = cells
    for text, role in line:
        wide = width_of([(text, role)])
        if left <= 0:
            rest.append((text, role))
        elif wide > left:
            _, behind = split_text(text, left)
            rest.append((set_cell_size(behind, wide - left), role))
        left -= wide
    return rest
