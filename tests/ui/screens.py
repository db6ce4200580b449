"""The program's screens as a person has them: keys and the mouse in, the text of the whole screen out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

import pytest
import textual.app
import textual.pilot

from tests.ui.pictures import picture, screen_text
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.probe import probe
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench

PATIENCE_SECONDS, LOOK_SECONDS = 240.0, 0.04
_ROUNDS = 3


async def _yield_to_the_loop(*_: float) -> None:
    """In place of Textual's wait until the process is idle, which compares clocks: never where work goes on behind."""
    for _ in range(_ROUNDS):
        await asyncio.sleep(0)


class Screens:
    """The running application.

    A key is handled and drawn before the next one is pressed. What it starts may come later: a page has to come
    together, and much is worked out behind the screens. So wait for text with `shows`.
    """

    def __init__(self, app: TrainerApp, pilot: Any) -> None:
        self.app, self.bench, self.pilot = app, app.bench, pilot

    @property
    def lines(self) -> list[str]:
        return picture(self.app)

    @property
    def text(self) -> str:
        return screen_text(self.app)

    @property
    def ended(self) -> bool:
        return not self.app.is_running

    async def press(self, *keys: str) -> None:
        """Press keys by their names: `press("2", "/", *"rate", "enter")`."""
        for key in keys:
            await self.pilot.press(key)
            await self.drawn()

    async def drawn(self) -> None:
        """Wait until every widget has handled its messages, and those that follow from them."""
        for _ in range(_ROUNDS):
            if self.app.is_running:
                await self.pilot.pause()

    async def until(self, ready: Callable[[], object]) -> None:
        for _ in range(int(PATIENCE_SECONDS / LOOK_SECONDS)):
            if ready():
                return
            await self.pilot.pause(LOOK_SECONDS)
        raise AssertionError(f"it did not come:\n{self.app.crash or self.text}")

    async def shows(self, *words: str, gone: str = "") -> str:
        """The text of the screen once it has all of `words` and not `gone`."""
        for _ in range(int(PATIENCE_SECONDS / LOOK_SECONDS)):
            assert not self.app.crash, self.app.crash
            text = self.text
            if all(one in text for one in words) and not (gone and gone in text):
                return text
            await self.pilot.pause(LOOK_SECONDS)
        missing = [one for one in words if one not in self.text]
        raise AssertionError(f"{missing} did not come, or {gone!r} stayed:\n{self.text}")

    async def ticks(self, *words: str, gone: str = "") -> str:
        """The text once it has all of `words` and not `gone`, while the clock of the program moves on."""

        def is_shown() -> bool:
            self.app.tick()
            text = self.text
            return all(one in text for one in words) and not (gone and gone in text)

        await self.until(is_shown)
        return self.text

    async def settled(self) -> str:
        """The text once nothing is worked on behind the screens, and the picture stays."""
        background, before = self.bench.background, ""

        def is_still() -> bool:
            nonlocal before
            was, before = before, self.text
            return bool(was) and was == before and background.is_idle

        await self.until(is_still)
        return self.text

    async def click(self, text: str, times: int = 1) -> None:
        """Click on the first place that shows a text."""
        await self.shows(text)
        x, y = next((line.find(text), y) for y, line in enumerate(self.lines) if text in line)
        await self.pilot.click(offset=(x + 1, y), times=times)
        await self.drawn()

    async def resize(self, width: int, height: int) -> None:
        await self.pilot.resize_terminal(width, height)
        await self.drawn()


@asynccontextmanager
async def open_screens(
    request: Request | None = None,
    *,
    size: tuple[int, int] = (80, 24),
    hardware: Hardware | None = None,
    bench: Workbench | None = None,
    keymap: Keymap | None = None,
    ready: Callable[[Workbench], object] = attrgetter("findings"),
) -> AsyncIterator[Screens]:
    """The program once its config is read, planned and checked; without a request that of the quickstart."""
    asked = request or Request(profile="quickstart")
    bench = bench or Workbench(lambda: asked, hardware or probe(), UNICODE)
    app = TrainerApp(bench, keymap or Keymap())
    # Textual hides a page for 50 ms while it comes together for the first time: no test has to wait for that.
    app.delay_update = lambda delay=0.0: None
    with pytest.MonkeyPatch.context() as patch:
        for module in (textual.app, textual.pilot):
            patch.setattr(module, "wait_for_idle", _yield_to_the_loop)
        async with app.run_test(notifications=True, size=size) as pilot:
            screens = Screens(app, pilot)
            await screens.until(lambda: ready(bench) or app.crash)
            await screens.drawn()
            yield screens
    assert not app.crash
