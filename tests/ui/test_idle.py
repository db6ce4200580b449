"""What the clock does: nothing is sent while nothing changes, what changed is drawn at the next tick, notices pass."""

from __future__ import annotations

from contextlib import asynccontextmanager

import pytest

from tests.ui.canned import CPU, CannedBench, open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.config.load import Request
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.ui import app as app_module
from tui_trainer.ui.spans import UNICODE

pytestmark = pytest.mark.full


class Bench(CannedBench):
    """A machine as busy as a test says."""

    share = 0.5

    @property
    def gauges(self) -> Gauges:
        return Gauges(cpu_share=self.share, memory_used_bytes=1 << 30, memory_bytes=5 << 30)


@pytest.fixture(autouse=True)
def now(monkeypatch) -> list[float]:
    """The time, and the clock moves only by `app.tick()`."""
    time = [100.0]
    monkeypatch.setattr(app_module, "UNATTENDED_TICK_SECONDS", 2e6)
    for module in ("app", "workbench"):
        monkeypatch.setattr(f"tui_trainer.ui.{module}.monotonic", lambda: time[0])
    return time


@asynccontextmanager
async def opened():
    async with open_canned(bench=Bench(lambda: Request(), CPU, UNICODE)) as screens:
        screens.app.tick()
        yield screens


@in_event_loop
async def test_nothing_is_sent_while_nothing_changes_and_a_change_comes_with_the_next_tick(monkeypatch):
    async with opened() as screens:
        app, bench, sent = screens.app, screens.bench, []
        driver = app._driver
        for keys, is_live in (("1", True), ("2", False), ("1t", True)):
            await screens.press(*keys)
            await screens.settled()
            with monkeypatch.context() as patch:
                patch.setattr(type(driver), "is_headless", False)
                patch.setattr(driver, "write", sent.append)
                # The page behind a new box may be owed a whole redraw, which Textual sends with the first change.
                bench.share = 0.25
                silent_ticks = 0
                for _ in range(20):
                    sent.clear()
                    app.tick()
                    await screens.pilot.pause(0.05)
                    silent_ticks = 0 if sent else silent_ticks + 1
                assert silent_ticks >= 3, keys
                bench.share = 0.75
                app.tick()
                if is_live:
                    await screens.until(lambda: sent)
                assert ("75 %" in await screens.settled()) == (keys == "1")
                assert bool(sent) == is_live and len("".join(sent)) < 600
            sent.clear()
        await screens.press("escape", "?")
        await screens.shows("Keys")
        bench.share = 0.5
        app.tick()
        await screens.press("escape")
        await screens.shows("50 %")


@in_event_loop
async def test_a_notice_ends_with_a_key_whoever_takes_it_or_with_time():
    async with opened() as screens:
        await screens.press("2")
        for key in ("down", "f9", "slash", "x"):
            screens.bench.show_notice("a word")
            screens.app.draw()
            await screens.shows("a word")
            await screens.press(key)
            await screens.shows("2 Config", gone="a word")
        screens.bench.show_notice("a word")
        screens.app.draw()
        await screens.shows("a word")
        for _ in range(10):
            screens.app.tick()
        await screens.shows("2 Config", gone="a word")
