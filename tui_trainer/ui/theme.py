"""What a role looks like: with 256 colours or more, with 16, and without any.

The terminal's own background and foreground are kept, so that light and dark terminals both work and a changed cell
costs few bytes. The colours of the 256-colour set are middle tones, readable on black and on white.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from rich.cells import split_graphemes
from rich.segment import Segment
from rich.style import Style
from textual.app import App
from textual.color import Color
from textual.filter import LineFilter

from tui_trainer.ui.spans import ASCII, UNICODE, Glyphs, Role

# With 256 colours or more, with 16, with none, and the words of Textual for one of its themes.
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
    "chart_raw": ("color(66)", "blue", "", "foreground-disabled"),
    "chart_smooth": ("bold color(44)", "bold cyan", "bold", "bold primary"),
    "chart_eval": ("bold color(172)", "bold yellow", "bold", "bold warning"),
    "chart_cross": ("color(245)", "white", "", "foreground-muted"),
}


@cache
def styles_for(color_system: str | None, *, no_color: bool) -> dict[str, Style]:
    """A style for every role. `color_system` is Rich's word: `truecolor`, `256`, `standard` or None."""
    colours = 2 if no_color or color_system is None else 1 if color_system in ("standard", "windows") else 0
    return {role: Style.parse(looks[colours]) for role, looks in _LOOKS.items()}


_THEMED: Final[dict[str, dict[str, Style]]] = {}
"""By the name of a theme."""


def role_styles(app: App[Any]) -> dict[str, Style]:
    """The style of every role in the application's theme: the same object while the theme is the same."""
    if app.native_ansi_color:
        return styles_for(app.console.color_system, no_color=app.no_color)
    if app.theme not in _THEMED:
        # Not `theme_variables`: they are still those of the theme before while this one is being set.
        colours = app.get_css_variables()
        _THEMED[app.theme] = {
            role: Style.parse(" ".join(_hex(colours, word) for word in themed.split()))
            for role, (*_, themed) in _LOOKS.items()
        }
    return _THEMED[app.theme]


class HasGlyphs:
    app: Any

    @property
    def glyphs(self) -> Glyphs:
        return ASCII if self.app.has_class("-ascii") else UNICODE


def _hex(variables: Mapping[str, str], word: str) -> str:
    """A theme variable as a colour that Rich reads; translucent ones are laid on the background."""
    if word in ("bold", "on"):
        return word
    background = Color.parse(variables["background"])
    value = variables[word].replace("auto", variables["foreground"]) if "auto" in variables[word] else variables[word]
    return (background + Color.parse(value)).rich_color.name


class AsciiOnly(LineFilter):
    """Question marks of the same width for what ASCII does not have: typed, pasted and foreign text. The ellipsis of a
    text that was cut, by Textual as well, has a sign of its own."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        return [Segment(in_ascii(text), style, control) for text, style, control in segments]


def in_ascii(text: str) -> str:
    if text.isascii():
        return text
    text = text.replace(UNICODE.ellipsis, ASCII.ellipsis)
    signs = ((text[start:end], width) for start, end, width in split_graphemes(text)[0])
    return "".join(sign if sign.isascii() else "?" * width for sign, width in signs)
