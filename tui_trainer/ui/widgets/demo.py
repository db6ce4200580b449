"""Widgets alone on the screen, with made-up data: `python -m tui_trainer.ui.widgets.NAME` for those that have it."""

from collections.abc import Callable, Iterable

from textual.app import App, ComposeResult
from textual.widget import Widget


class Demo(App[None]):
    def __init__(self, widgets: Callable[[], Iterable[Widget]]) -> None:
        super().__init__()
        self._widgets = widgets

    def compose(self) -> ComposeResult:
        yield from self._widgets()
