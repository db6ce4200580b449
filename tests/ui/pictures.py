"""What an application shows, as text, with every widget and dialog in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

from textual.app import App


def picture(app: App) -> list[str]:
    """The lines of the screen, without blanks at their ends."""
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


def screen_text(app: App) -> str:
    return "\n".join(picture(app))


def in_event_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """For a test that awaits."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run
