"""A picture of the terminal as SVG: dark, without a web font, and the same on every machine.

Box, block and braille signs are drawn as shapes: fonts disagree about their widths, and a chart must line up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from rich.cells import cell_len
from rich.color import ColorTriplet
from rich.segment import Segment
from rich.style import Style
from rich.terminal_theme import TerminalTheme

CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, BASELINE = 8, 16, 13.3, 12
MARGIN = 12
FONTS = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"
DARK = TerminalTheme(
    (22, 25, 30),
    (208, 212, 219),
    [(22, 25, 30), (204, 102, 102), (120, 170, 110), (215, 160, 80), (95, 135, 190), (165, 120, 180), (70, 170, 170),
     (170, 175, 184)],
    [(100, 106, 116), (230, 130, 130), (150, 200, 140), (235, 190, 110), (130, 165, 215), (195, 155, 210),
     (110, 205, 205), (235, 238, 242)],
)  # fmt: skip
# From the middle of the cell: left, right, up, down.
_STROKES = {
    "─": "lr", "│": "ud", "╭": "rd", "╮": "ld", "╰": "ru", "╯": "lu", "┌": "rd", "┐": "ld", "└": "ru", "┘": "lu",
    "├": "udr", "┤": "udl", "┬": "lrd", "┴": "lru", "┼": "lrud", "╴": "l", "╶": "r", "╵": "u", "╷": "d",
    "┈": "lr", "┄": "lr", "┊": "ud", "┆": "ud",
}  # fmt: skip
_DASHED = "┈┄┊┆"
_SHADE = "░"
_BRAILLE_DOTS = ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3))


def to_svg(lines: Sequence[Sequence[Segment]], title: str) -> str:
    """The lines as they look in a dark terminal."""
    columns = sum(segment.cell_length for segment in lines[0])
    width, height = columns * CELL_WIDTH + 2 * MARGIN, len(lines) * CELL_HEIGHT + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{DARK.background_color.hex}"/>',
        f'<g transform="translate({MARGIN} {MARGIN})" font-family="{FONTS}" font-size="{FONT_SIZE}" '
        'xml:space="preserve">',
    ]
    for row, line in enumerate(lines):
        column = 0
        for text, style, _ in line:
            parts += _span(text, style or Style(), column, row)
            column += cell_len(text)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _span(text: str, style: Style, column: int, row: int) -> Iterator[str]:
    ink, paper = _colours(style)
    x, y = column * CELL_WIDTH, row * CELL_HEIGHT
    if paper:
        yield (
            f'<rect x="{x:g}" y="{y:g}" width="{cell_len(text) * CELL_WIDTH:g}" height="{CELL_HEIGHT}" fill="{paper}" '
            f'shape-rendering="crispEdges"/>'
        )
    words = ""
    for sign in text:
        if shape := _shape(sign, column, row):
            yield from _words(words, column, row, ink, style)
            words = ""
            yield f'<path d="{shape}" {_paint(sign, ink)}/>'
        elif sign == " " and (not words or words.endswith(" ")):
            yield from _words(words, column, row, ink, style)
            words = ""
        else:
            words += sign
        column += cell_len(sign)
    yield from _words(words, column, row, ink, style)


def _words(text: str, end: int, row: int, ink: str, style: Style) -> Iterator[str]:
    """Text that ends before the column `end`, stretched to exactly its cells whatever the font."""
    cells = cell_len(text)
    if not text.strip():
        return
    look = ' font-weight="bold"' * bool(style.bold) + ' text-decoration="underline"' * bool(style.underline)
    x, y = (end - cells) * CELL_WIDTH, row * CELL_HEIGHT + BASELINE
    yield (
        f'<text x="{x:g}" y="{y:g}" textLength="{cells * CELL_WIDTH:g}" lengthAdjust="spacingAndGlyphs" '
        f'fill="{ink}"{look}>{escape(text)}</text>'
    )


def _colours(style: Style) -> tuple[str, str]:
    """Ink and paper; no paper where it is the terminal's own."""
    ink: ColorTriplet = style.color.get_truecolor(DARK) if style.color else DARK.foreground_color
    paper = style.bgcolor.get_truecolor(DARK, foreground=False) if style.bgcolor else DARK.background_color
    if style.reverse:
        ink, paper = paper, ink
    return ink.hex, "" if paper == DARK.background_color else paper.hex


def _paint(sign: str, ink: str) -> str:
    if sign not in _STROKES:
        return f'fill="{ink}" shape-rendering="crispEdges"' + ' fill-opacity="0.3"' * (sign == _SHADE)
    return f'stroke="{ink}" fill="none"' + ' stroke-dasharray="2 2"' * (sign in _DASHED)


def _shape(sign: str, column: int, row: int) -> str:
    """The path of a sign that is drawn; empty for one that is written."""
    x, y, code = column * CELL_WIDTH, row * CELL_HEIGHT, ord(sign)
    if sign in _STROKES:
        middle_x, middle_y = x + CELL_WIDTH / 2, y + CELL_HEIGHT / 2
        ends = {"l": f"H{x:g}", "r": f"H{x + CELL_WIDTH:g}", "u": f"V{y:g}", "d": f"V{y + CELL_HEIGHT:g}"}
        return "".join(f"M{middle_x:g} {middle_y:g}{ends[way]}" for way in _STROKES[sign])
    if code == 0x2588:
        # A little over its edge: no seam shows between two of them at any scale.
        return _box(x, y, CELL_WIDTH + 0.4, CELL_HEIGHT)
    if 0x2581 <= code <= 0x2587:
        high = CELL_HEIGHT * (code - 0x2580) / 8
        return _box(x, y + CELL_HEIGHT - high, CELL_WIDTH, high)
    if sign == _SHADE:
        return _box(x, y, CELL_WIDTH, CELL_HEIGHT)
    if 0x2589 <= code <= 0x258F:
        return _box(x, y, CELL_WIDTH * (0x2590 - code) / 8, CELL_HEIGHT)
    if 0x2800 <= code <= 0x28FF:
        dots = [dot for bit, dot in enumerate(_BRAILLE_DOTS) if code >> bit & 1]
        wide, high = CELL_WIDTH / 2, CELL_HEIGHT / 4
        # An empty braille cell still is a shape: no font has to know it.
        return "".join(_box(x + dx * wide + 1, y + dy * high + 1, 2.4, 2.4) for dx, dy in dots) or f"M{x:g} {y:g}"
    return ""


def _box(x: float, y: float, wide: float, high: float) -> str:
    return f"M{x:.4g} {y:.4g}h{wide:.4g}v{high:.4g}h-{wide:.4g}z".replace("h-0z", "z")
