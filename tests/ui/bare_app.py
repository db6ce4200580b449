"""An application with nothing but one dialog, its keys pressed one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from textual.events import Paste
from textual.filter import LineFilter

import tui_trainer.ui
from tests.ui.pictures import picture
from tui_trainer.ui.app import TERMINAL_THEME
from tui_trainer.ui.dialogs import Dialog
from tui_trainer.ui.keymap import KeysInOrder
from tui_trainer.ui.theme import AsciiOnly


class BareApp(KeysInOrder, inherit_bindings=False):
    """Shows one dialog as the program would."""

    CSS_PATH = Path(tui_trainer.ui.__file__).with_name("app.tcss")
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, dialog: Dialog, *, ascii_only: bool = False) -> None:
        super().__init__()
        self.dialog, self._ascii_only = dialog, ascii_only
        self.set_class(ascii_only, "-ascii")

    def on_mount(self) -> None:
        self.theme = TERMINAL_THEME
        self.push_screen(self.dialog)

    def get_line_filters(self) -> Sequence[LineFilter]:
        return [*super().get_line_filters(), *[AsciiOnly()] * self._ascii_only]

    @property
    def seen(self) -> str:
        """What is shown of the dialog, which stays on the screen with all of its frame; nothing when it is closed."""
        if self.screen is not self.dialog:
            return ""
        assert self.dialog.region.contains_region(self.dialog.query_one("#box").region)
        lines = [line.strip() for line in picture(self)]
        frame = [line for line in lines if line]
        assert len({len(frame[0]), len(frame[-1])}) == 1 and (frame[0][-1] == frame[-1][-1]) == self._ascii_only
        return "\n".join(frame)


def seen(dialog: Dialog, *keys: str | Paste, size: tuple[int, int] = (80, 24), ascii_only: bool = False) -> list[str]:
    """The dialog as text at the beginning and after each key or paste; empty once it is closed."""

    async def look() -> list[str]:
        app = BareApp(dialog, ascii_only=ascii_only)
        async with app.run_test(size=size) as pilot:
            await pilot.pause()
            texts = [app.seen]
            for key in keys:
                if isinstance(key, Paste):
                    app.post_message(key)
                else:
                    await pilot.press(key)
                await pilot.pause()
                texts.append(app.seen)
            return texts

    return asyncio.run(look())


def all_pages(dialog: Dialog, *, size: tuple[int, int] = (80, 24), ascii_only: bool = False) -> str:
    """All that a dialog shows, from its first line to its last."""
    texts = seen(dialog, *["pagedown"] * 12, size=size, ascii_only=ascii_only)
    if texts[-1] != texts[-2]:
        pytest.fail("it has no end")
    return "\n".join(texts)
