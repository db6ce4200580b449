"""What an application shows, as text, with every widget and dialog in its place."""

from __future__ import annotations

from textual.app import App


def picture(app: App) -> list[str]:
    """The lines of the screen, without blanks at their ends."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def screen_text(app: App) -> str:
    return "\n".join(picture(app))
