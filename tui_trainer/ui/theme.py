"""Styles of the roles in `spans.py`, for terminals with 256 or more colours, with 16, and with none.

The terminal's own background and foreground stay, so that light and dark terminals both work and a changed cell costs
few bytes. The 256-colour styles use middle tones, which are readable on black and on white.
"""

import re
from functools import cache
from typing import Any, Final

from rich.cells import split_graphemes
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import BLACK, WHITE, Color
from textual.filter import LineFilter

from tui_trainer.ui.spans import ASCII, UNICODE, Glyphs, Role

# Styles with 256 or more colours, with 16, without colours, and in the variables of a Textual theme.
_LOOKS: Final[dict[Role, tuple[str, str, str, str]]] = {
    "text": ("", "", "", "foreground"),
    "dim": ("color(245)", "white", "", "foreground-muted"),
    "bold": ("bold", "bold", "bold", "bold foreground"),
    "accent": ("color(37)", "cyan", "", "primary"),
    "good": ("color(71)", "green", "", "text-success"),
    "warn": ("color(172)", "yellow", "", "text-warning"),
    "bad": ("bold color(167)", "bold red", "bold", "bold text-error"),
    "rule": ("color(242)", "blue", "", "foreground-disabled"),
    "title": ("bold color(37)", "bold cyan", "bold", "bold primary"),
    "key": ("bold", "bold", "bold", "bold foreground"),
    "cursor": ("color(231) on color(24)", "reverse", "reverse", "background on primary"),
    "edit": ("color(16) on color(115)", "reverse bold", "bold underline", "bold foreground on panel"),
    "chart_raw": ("color(66)", "blue", "", "foreground-muted"),
    "chart_smooth": ("bold color(44)", "bold cyan", "bold", "bold primary"),
    "chart_eval": ("bold color(172)", "bold yellow", "bold", "bold warning"),
    "chart_cross": ("color(245)", "white", "", "foreground-muted"),
}


@cache
def styles_for(color_system: str | None, *, no_color: bool) -> dict[str, Style]:
    """Return the style of each role. `color_system` is Rich's: `truecolor`, `256`, `standard`, `windows` or None."""
    look_index = 2 if no_color or color_system is None else 1 if color_system in ("standard", "windows") else 0
    return {role: Style.parse(looks[look_index]) for role, looks in _LOOKS.items()}


_THEMED: Final[dict[str, dict[str, Style]]] = {}
"""Style of each role, by the name of a Textual theme."""


def role_styles(app: App[Any]) -> dict[str, Style]:
    """Return the style of each role in the application's theme. The same object is returned until the theme changes."""
    if app.native_ansi_color:
        return styles_for(app.console.color_system, no_color=app.no_color)
    if app.theme not in _THEMED:
        # While a theme is being set, `theme_variables` still has the values of the old theme.
        variables = app.get_css_variables()
        _THEMED[app.theme] = {
            role: Style.parse(" ".join(variables.get(word, word) for word in style_names.split()))
            for role, (*_, style_names) in _LOOKS.items()
        }
    return _THEMED[app.theme]


_IS_INK: Final = re.compile(r"primary|warning|(text-|foreground-?)[a-z]*|markdown-h\d-color").fullmatch
# Least contrast of text. Sources: WCAG 2.2, 1.4.3 for text and 1.4.11 for lines and bars.
LEAST_CONTRAST: Final = 4.5
_LEAST_OF_LINES: Final = 3.0


def with_readable_text(colours: dict[str, str]) -> dict[str, str]:
    """Return a theme's colours, with text lightened or darkened until its contrast suffices on all backgrounds."""
    backgrounds = [Color.parse(colours[name]) for name in ("background", "surface", "panel")]
    limit = max((BLACK, WHITE), key=lambda extreme: contrast(extreme, backgrounds[0]))
    for name in filter(_IS_INK, colours):
        value = colours["foreground-muted"] if colours[name].startswith("auto") else colours[name]
        ink = backgrounds[0] + Color.parse(value)
        min_contrast = _LEAST_OF_LINES if name == "foreground-disabled" else LEAST_CONTRAST
        blends = (ink.blend(limit, step / 20) for step in range(20))
        choices = (blend for blend in blends if min(contrast(blend, ground) for ground in backgrounds) >= min_contrast)
        colours[name] = next(choices, limit).hex
    return colours


def contrast(first: Color, second: Color) -> float:
    """Return the contrast ratio of two colours as WCAG defines it, 1 to 21."""
    low, high = sorted(map(_luminance, (first, second)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: Color) -> float:
    parts = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in colour.normalized)
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


class HasGlyphs:
    app: Any

    @property
    def glyphs(self) -> Glyphs:
        return ASCII if self.app.has_class("-ascii") else UNICODE


class AsciiOnly(LineFilter):
    """Filter that replaces characters outside ASCII, for example in typed text, by question marks, and `…` by `~`."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(in_ascii(text), style, control) for text, style, control in segments]


def in_ascii(text: str) -> str:
    if text.isascii():
        return text
    text = text.replace(UNICODE.ellipsis, ASCII.ellipsis)
    signs = ((text[start:end], width) for start, end, width in split_graphemes(text)[0])
    return "".join(sign if sign.isascii() else "?" * width for sign, width in signs)
