"""What a role looks like: with 256 colours or more, with 16, and without any.

The terminal's own background and foreground are kept, so that light and dark terminals both work and a changed cell
costs few bytes. The colours of the 256-colour set are middle tones, readable on black and on white.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, get_args

from rich.style import Style
from textual.color import Color

from tui_trainer.ui.spans import Role

if TYPE_CHECKING:
    from textual.app import App

_PLAIN: Final = Style()

_256: Final[dict[str, str]] = {
    "dim": "color(245)",
    "bold": "bold",
    "accent": "color(37)",
    "good": "color(71)",
    "warn": "color(172)",
    "bad": "bold color(167)",
    "rule": "color(242)",
    "title": "bold color(37)",
    "key": "bold",
    "cursor": "color(231) on color(24)",
    "edit": "color(16) on color(115)",
    "chart_raw": "color(66)",
    "chart_smooth": "bold color(44)",
    "chart_eval": "bold color(172)",
    "chart_cross": "color(245)",
}
_16: Final[dict[str, str]] = {
    "dim": "white",
    "bold": "bold",
    "accent": "cyan",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "rule": "blue",
    "title": "bold cyan",
    "key": "bold",
    "cursor": "reverse",
    "edit": "reverse bold",
    "chart_raw": "blue",
    "chart_smooth": "bold cyan",
    "chart_eval": "bold yellow",
    "chart_cross": "white",
}
_NONE: Final[dict[str, str]] = {
    "bold": "bold",
    "bad": "bold",
    "title": "bold",
    "key": "bold",
    "cursor": "reverse",
    "edit": "bold underline",
    "chart_smooth": "bold",
    "chart_eval": "bold",
}


# With one of Textual's themes, the roles have its colours.
_THEMED: Final[dict[str, str]] = {
    "text": "foreground", "dim": "foreground-muted", "bold": "bold foreground", "accent": "primary",
    "good": "text-success", "warn": "text-warning", "bad": "bold text-error", "rule": "foreground-disabled",
    "title": "bold primary", "key": "bold foreground", "chart_raw": "foreground-disabled",
    "chart_smooth": "bold primary", "chart_eval": "bold warning", "chart_cross": "foreground-muted",
    "cursor": "background on primary", "edit": "bold foreground on panel",
}  # fmt: skip


def styles_for(color_system: str | None, *, no_color: bool) -> dict[str, Style]:
    """A style for every role. `color_system` is Rich's word: `truecolor`, `256`, `standard` or None."""
    words = _NONE if no_color or color_system is None else _16 if color_system in ("standard", "windows") else _256
    return {role: Style.parse(words[role]) if role in words else _PLAIN for role in get_args(Role)}


@cache
def _themed(theme: str, variables: tuple[tuple[str, str], ...]) -> dict[str, Style]:
    colours = dict(variables)
    return {
        role: Style.parse(" ".join(_hex(colours, word) for word in words.split())) for role, words in _THEMED.items()
    }


_terminal = cache(styles_for)


def role_styles(app: App[Any]) -> dict[str, Style]:
    """The style of every role in the application's theme: the same object while the theme is the same."""
    if app.native_ansi_color:
        no_color = bool(os.environ.get("NO_COLOR"))
        return _terminal(None if no_color else app.console.color_system, no_color=no_color)
    return _themed(app.theme, tuple(app.theme_variables.items()))


def _hex(variables: Mapping[str, str], word: str) -> str:
    """A theme variable as a colour that Rich reads; translucent ones are laid on the background."""
    if word in ("bold", "on"):
        return word
    background = Color.parse(variables["background"])
    value = variables[word].replace("auto", variables["foreground"]) if "auto" in variables[word] else variables[word]
    return (background + Color.parse(value)).rich_color.name
