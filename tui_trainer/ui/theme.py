"""What a role looks like: with 256 colours or more, with 16, and without any.

The terminal's own background and foreground are kept, so that light and dark terminals both work and a changed cell
costs few bytes. The colours of the 256-colour set are middle tones, readable on black and on white.
"""

from __future__ import annotations

from typing import Final, get_args

from rich.style import Style

from tui_trainer.ui.spans import Role

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


def styles_for(color_system: str | None, *, no_color: bool) -> dict[str, Style]:
    """A style for every role. `color_system` is Rich's word: `truecolor`, `256`, `standard` or None."""
    words = _NONE if no_color or color_system is None else _16 if color_system in ("standard", "windows") else _256
    return {role: Style.parse(words[role]) if role in words else _PLAIN for role in get_args(Role)}
