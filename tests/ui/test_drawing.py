"""What a tick costs: a picture is computed when something in it has changed, and then once."""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from dataclasses import replace

import pytest
from textual.widget import Widget

from tui_trainer.config.load import Request
from tui_trainer.hardware.gauges import Gauges
from tui_trainer.hardware.probe import probe
from tui_trainer.ui import app as app_module
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.glyphs import UNICODE
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import text_of
from tui_trainer.ui.widgets.gauge import GaugeBar
from tui_trainer.ui.workbench import Workbench

QUIET = Gauges(cpu_share=0.25, memory_used_bytes=1 << 30, memory_bytes=5 << 30, disk_used_bytes=1, disk_bytes=2)
PAGES = ("hardware", "config", "checklist")


class StillGauges:
    """Stands for the sampler: the same figures until a test gives others."""

    def __init__(self) -> None:
        self.latest, self.stale = QUIET, False

    def start(self) -> None:
        pass

    stop = start


@pytest.fixture
def calls(monkeypatch):
    """How often each page's picture was computed, or a part of it."""
    counted: Counter[str] = Counter()

    def count(module: str, name: str, key: str) -> None:
        home = importlib.import_module(f"tui_trainer.ui.screens.{module}")
        real = getattr(home, name)

        def counting(*args, **kwargs):
            counted[key] += 1
            return real(*args, **kwargs)

        monkeypatch.setattr(home, name, counting)

    for module, name, key in (
        ("hardware_view", "titled", "hardware"),
        ("hardware_gpus", "titled", "hardware"),
        ("config_view", "draw_config", "config"),
        ("checklist_view", "finding_lines", "checklist"),
        ("checklist_view", "finding_row", "checklist"),
    ):
        count(module, name, key)
    return counted


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
    monkeypatch.setattr("tui_trainer.ui.workbench.memory_available_now", lambda: 4 << 30)


def test_no_picture_is_computed_while_nothing_in_it_changes(calls):
    async def look(app, pilot) -> None:
        for number, place in enumerate(PAGES):
            app.bench.go(number)
            app.tick()
            app.draw()
            calls.clear()
            for _ in range(5):
                app.tick()
            assert calls[place] == 0, place

    ticking(calls, look)


def test_free_memory_and_a_notice_that_has_passed_are_changes(calls, monkeypatch):
    async def look(app, pilot) -> None:
        app.bench.go(1)
        await pilot.pause()
        app.draw()
        calls.clear()
        monkeypatch.setattr("tui_trainer.ui.workbench.memory_available_now", lambda: 2 << 30)
        app.tick()
        assert calls["config"] == 1
        app.bench.tell("a word")
        app.draw()
        calls.clear()
        for _ in range(10):
            app.tick()
        assert calls["config"] == 1 and app.bench.notice is None

    ticking(calls, look)


def test_sections_of_the_hardware_screen_are_computed_anew_when_the_machine_has_changed(calls):
    async def look(app, pilot) -> None:
        app.bench.go(0)
        await pilot.pause()
        app.draw()
        calls.clear()
        app.draw()
        assert calls["hardware"] == 0
        app.bench.hardware = replace(app.bench.hardware, host="another")
        app.draw()
        assert calls["hardware"] > 3
        calls.clear()
        app.draw()
        assert calls["hardware"] == 0

    ticking(calls, look)


def test_a_second_changes_the_figures_of_the_hardware_screen_and_computes_no_section(calls):
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

        calls.clear()
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Widget, "refresh", refresh)
            for share in (0.75, 0.75, 0.7501):
                app.bench._sampler.latest = replace(QUIET, cpu_share=share)
                app.tick()
        assert calls["hardware"] == 0
        assert "75 %" in text_of(busy.lines)
        drawn = [(name, cells) for name, cells in sent if cells]
        # The bar and the number at the first tick, and the newest cell of the curve at any.
        assert {name for name, _ in drawn} == {"busy"}
        assert sum(sum(cells) for _, cells in drawn) < 40

    ticking(calls, look)
