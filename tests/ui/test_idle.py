"""What a tick costs on any page: a pane is computed when something in it has changed, and then once."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from textual.widget import Widget

from tests.ui.pictures import screen_text
from tui_trainer.config.load import Request
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.hardware.probe import probe
from tui_trainer.ui import app as app_module
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.screens.hardware import Machine
from tui_trainer.ui.spans import UNICODE, text_of
from tui_trainer.ui.widgets.gauge import GaugeBar, GaugeTrail
from tui_trainer.ui.widgets.pane import Pane
from tui_trainer.ui.workbench import UNATTENDED_SECONDS, UNATTENDED_WATCH_SECONDS, Workbench

QUIET = Gauges(cpu_share=0.25, memory_used_bytes=1 << 30, memory_bytes=5 << 30, disk_used_bytes=1, disk_bytes=2)
PAGES = ("hardware", "config", "checklist", "train")


class StillGauges:
    """Stands for the sampler: the same figures until a test gives others."""

    def __init__(self) -> None:
        self.latest, self.stale = QUIET, False

    def start(self, *_: object) -> None:
        pass

    stop = look_every = start


@pytest.fixture
def calls(monkeypatch):
    """How often the panes of each page were computed, and the most often that any one of them was."""
    counted: Counter[str] = Counter()
    real = Pane._computed

    def counting(pane, width, height):
        place = getattr(pane.screen, "place", "dialog")
        counted[place] += 1
        counted[f"{place} {id(pane)}"] += 1
        return real(pane, width, height)

    monkeypatch.setattr(Pane, "_computed", counting)
    return counted


def most_of_one(calls: Counter[str]) -> int:
    return max((count for key, count in calls.items() if " " in key), default=0)


@pytest.fixture
def titles(monkeypatch) -> list[str]:
    """Of the sections of the Hardware screen, as they are computed."""
    computed: list[str] = []

    def titled(machine, title, lines, real=Machine.titled):
        computed.append(title)
        return real(machine, title, lines)

    monkeypatch.setattr(Machine, "titled", titled)
    return computed


def ticking(calls, look):
    """Opens the screens with a clock that only `look(app, pilot)` moves."""

    async def run() -> None:
        bench = Workbench(lambda: Request(profile="quickstart"), replace(probe(), gpus=()), UNICODE)
        bench._sampler = StillGauges()
        app = TrainerApp(bench, Keymap())
        async with app.run_test(size=(80, 24)) as pilot:
            while not bench.findings:
                await pilot.pause(0.02)
            app.tick()
            await look(app, pilot)
        assert not app.crash

    asyncio.run(run())


@pytest.fixture(autouse=True)
def still(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    monkeypatch.setattr("tui_trainer.ui.workbench.monotonic", lambda: 100.0)
    monkeypatch.setattr("tui_trainer.ui.workbench.memory_available_now", lambda: 4 << 30)


async def go(app, pilot, number: int) -> None:
    app.bench.go(number)
    app.draw()
    # Layout may take several rounds.
    await pilot.pause(0.1)
    app.tick()
    await pilot.pause()


def test_no_pane_is_computed_while_nothing_in_it_changes(calls):
    async def look(app, pilot) -> None:
        for number, place in enumerate(PAGES):
            await go(app, pilot, number)
            assert calls[place] > 0, "it has been drawn"
            calls.clear()
            for _ in range(5):
                app.tick()
                await pilot.pause()
            assert not calls, place

    ticking(calls, look)


def test_a_page_that_is_not_shown_computes_nothing(calls):
    async def look(app, pilot) -> None:
        for number in range(len(PAGES)):
            await go(app, pilot, number)
        for number, place in enumerate(PAGES):
            await go(app, pilot, number)
            calls.clear()
            app.bench._sampler.latest = replace(QUIET, cpu_share=0.1 + number / 10)
            app.tick()
            app.bench.tell("a word")
            app.draw()
            await pilot.pause()
            assert {key for key in calls if " " not in key} == {place}

    ticking(calls, look)


def test_a_tick_while_a_page_comes_up_asks_nothing_of_it(calls, monkeypatch):
    monkeypatch.setattr("tui_trainer.ui.screens.config_view.ConfigPanes.memory_has_changed", lambda panes: True)

    async def look(app, pilot) -> None:
        app.bench.go(1)
        assert app.screen is app.page and not app.page.is_mounted
        app.tick()
        await go(app, pilot, 1)
        assert calls["config"] > 0

    ticking(calls, look)


def test_below_a_dialog_nothing_is_computed_and_it_is_up_to_date_when_it_closes(calls):
    async def look(app, pilot) -> None:
        await go(app, pilot, 0)
        await pilot.press("?")
        await pilot.pause(0.1)
        calls.clear()
        app.bench._sampler.latest = replace(QUIET, cpu_share=0.75)
        app.tick()
        await pilot.pause()
        assert not calls["hardware"] and "75 %" not in screen_text(app)
        await pilot.press("escape")
        await pilot.pause()
        assert "75 %" in screen_text(app)

    ticking(calls, look)


def test_a_figure_that_changed_on_the_screen_is_drawn_at_the_next_tick_and_once(calls, monkeypatch):
    # A curve that grows is a change of its own.
    monkeypatch.setattr(GaugeTrail, "sparks", lambda *_: {})

    async def look(app, pilot) -> None:
        for number, place in ((0, "hardware"), (3, "train")):
            app.bench._sampler.latest = QUIET
            await go(app, pilot, number)
            calls.clear()
            app.bench._sampler.latest = replace(QUIET, cpu_share=0.75)
            app.tick()
            await pilot.pause()
            assert most_of_one(calls) <= 1 and "75 %" in screen_text(app), place
            calls.clear()
            app.tick()
            app.bench._sampler.latest = replace(QUIET, cpu_share=0.75, memory_used_bytes=(1 << 30) + 4096)
            app.tick()
            await pilot.pause()
            assert not calls or place == "train", "a figure that is drawn as before is no change"

    ticking(calls, look)


def test_free_memory_and_a_notice_that_has_passed_are_changes(calls, monkeypatch):
    async def look(app, pilot) -> None:
        await go(app, pilot, 1)
        calls.clear()
        monkeypatch.setattr("tui_trainer.ui.workbench.memory_available_now", lambda: 2 << 30)
        app.tick()
        assert most_of_one(calls) == 1
        app.bench.tell("a word")
        app.draw()
        await pilot.pause()
        assert "a word" in screen_text(app)
        calls.clear()
        for _ in range(10):
            app.tick()
        await pilot.pause()
        assert most_of_one(calls) == 1 and app.bench.notice is None and "a word" not in screen_text(app)

    ticking(calls, look)


def test_a_key_ends_a_notice_whoever_takes_the_key(calls):
    async def look(app, pilot) -> None:
        await go(app, pilot, 1)
        for key in ("down", "f9", "slash", "x"):
            app.bench.tell("a word")
            app.draw()
            await pilot.pause()
            assert "a word" in screen_text(app)
            await pilot.press(key)
            assert app.bench.notice is None and "a word" not in screen_text(app), key

    ticking(calls, look)


@pytest.fixture
def sections(monkeypatch):
    """How often sections of the Hardware screen were computed."""
    counted: Counter[str] = Counter()

    def counting(*args, real=Machine.titled):
        counted["hardware"] += 1
        return real(*args)

    monkeypatch.setattr(Machine, "titled", counting)
    return counted


def test_sections_of_the_hardware_screen_are_computed_anew_when_the_machine_has_changed(titles):
    async def look(app, pilot) -> None:
        await go(app, pilot, 0)
        titles.clear()
        app.draw()
        assert not titles
        app.bench.hardware = replace(app.bench.hardware, host="another")
        app.draw()
        assert len(titles) > 3
        titles.clear()
        app.draw()
        assert not titles

    ticking(titles, look)


def test_a_second_changes_the_figures_of_the_hardware_screen_and_computes_no_section(sections):
    async def look(app, pilot) -> None:
        app.bench.go(0)
        await pilot.pause()
        app.draw()
        busy = app.page.query_one("#busy", GaugeBar)
        sent: list[object] = []
        real = Widget.refresh

        def refresh(self, *regions, **how):
            sent.append((self.id, [region.width for region in regions]))
            return real(self, *regions, **how)

        sections.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Widget, "refresh", refresh)
            for share in (0.75, 0.75, 0.7501):
                app.bench._sampler.latest = replace(QUIET, cpu_share=share)
                app.tick()
        assert sections["hardware"] == 0
        assert "75 %" in text_of(busy.lines)
        drawn = [(name, cells) for name, cells in sent if cells]
        # The bar and the number at the first tick, and the newest cell of the curve at any.
        assert {name for name, _ in drawn} == {"busy"}
        assert sum(sum(cells) for _, cells in drawn) < 40

    ticking(sections, look)


def test_a_minute_without_a_key_lets_the_clock_go_slower_until_the_next_one(calls, monkeypatch):
    now = [100.0]
    monkeypatch.setattr("tui_trainer.ui.workbench.monotonic", lambda: now[0])
    monkeypatch.setattr(app_module, "UNATTENDED_TICK_SECONDS", 2e6)
    alive: list[object] = []

    async def look(app, pilot) -> None:
        periods: list[float] = []
        monkeypatch.setattr(app.bench._sampler, "look_every", periods.append)
        monkeypatch.setattr(type(app.bench.exports), "alive", property(lambda self: alive))
        await go(app, pilot, 0)
        now[0] += UNATTENDED_SECONDS + 1
        alive.append("an export")
        app.tick()
        assert app._clock._interval == 1e6 and periods[-1] == 1.0, "what goes on is watched"
        now[0] += UNATTENDED_WATCH_SECONDS
        app.tick()
        assert app._clock._interval == 2e6 and periods[-1] == 5.0, "not for ever"
        await pilot.press("f9")
        assert app._clock._interval == 1e6
        alive.clear()
        now[0] += UNATTENDED_SECONDS + 1
        app.tick()
        assert app._clock._interval == 2e6 and periods[-1] == 5.0
        app.bench._sampler.latest = replace(QUIET, cpu_share=0.75)
        await pilot.press("f9")
        assert app._clock._interval == 1e6 and periods[-1] == 1.0 and "75 %" in screen_text(app)

    ticking(calls, look)
