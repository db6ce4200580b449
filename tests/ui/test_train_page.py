"""The Train screen as widgets: where they stand, what a tick computes, and what mouse and keys do."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from dataclasses import replace
from statistics import median

import pytest
from textual.events import MouseScrollDown, MouseScrollUp

from tests.ui.pictures import picture, screen_text
from tests.ui.test_snapshots import CPU, DONE, GPUS, LORA, CannedBench, CannedRun, trained
from tests.ui.test_train_view import evaluated, gauges, prepared, step
from tui_trainer.config.load import Request
from tui_trainer.runs import events as e
from tui_trainer.ui import app as app_module
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.chart.drawing import LossChart
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.screens import train as page_module
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.widgets.demo import DEMOS, Demo

RUNNING = trained(248, **LORA)


class Bench(CannedBench):
    """Gauges that a test moves, and a run that can have news."""

    looked = gauges()

    @property
    def gauges(self):
        return self.looked


class NewsRun(CannedRun):
    waiting: tuple[e.Event, ...] = ()

    def poll(self) -> bool:
        news, self.waiting = self.waiting, ()
        for event in news:
            self.state.apply(event)
            self._note(event)
        return bool(news)


@pytest.fixture(autouse=True)
def still(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    monkeypatch.setattr("tui_trainer.ui.workbench.monotonic", lambda: 100.0)
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def calls(monkeypatch):
    """How often each part was drawn."""
    counted: Counter[str] = Counter()
    for name, (draw, heading) in page_module.PARTS.items():

        def counting(*args, name=name, draw=draw):
            counted[name] += 1
            return draw(*args)

        monkeypatch.setitem(page_module.PARTS, name, (counting, heading))
    return counted


def showing(look, events=RUNNING, size=(80, 24), hardware=GPUS, alive=True):
    """Opens the Train screen on a run and calls `look(app, pilot)`."""

    async def show() -> None:
        bench = Bench(lambda: Request(), hardware, UNICODE)
        app = TrainerApp(bench, Keymap())
        async with app.run_test(size=size) as pilot:
            while bench.plan is None:
                await pilot.pause()
            if events is not None:
                bench.run = NewsRun(events, alive)
            await pilot.press("4")
            await pilot.pause()
            await look(app, pilot)
        assert not app.crash

    asyncio.run(show())


def heights(app) -> dict[str, int]:
    return {pane.id: pane.size.height for pane in app.screen.query("Pane") if pane.id and pane.is_on_screen}


@pytest.mark.parametrize(
    ("size", "there", "absent"),
    [
        ((80, 24), {"gauges", "parts", "tuning"}, {"machine", "plan", "epochs"}),
        ((120, 35), {"machine", "plan", "samples"}, {"gauges", "parts", "tuning", "epochs"}),
        ((200, 50), {"machine", "plan", "samples", "epochs"}, {"gauges", "parts", "tuning"}),
    ],
)
def test_wide_terminals_have_more_parts_and_the_chart_takes_what_they_leave(size, there, absent):
    async def look(app, pilot):
        seen = heights(app)
        assert there <= set(seen) and not absent & set(seen)
        assert 6 <= seen["chart"] <= 24 and seen["events"] >= 4
        charts = [chart for chart in app.screen.query(LossChart) if chart.is_on_screen]
        assert len(charts) == (5 if size[1] >= 42 else 1)
        assert sum(line.count("── events ") for line in picture(app)) == 1

    showing(look, size=size)


def test_a_tick_without_news_looks_at_gauges_only_and_a_page_that_is_not_shown_at_nothing(calls):
    async def look(app, pilot):
        calls.clear()
        app.tick()
        assert set(calls) == {"gauges"}
        before = screen_text(app)
        app.bench.looked = gauges(share=0.9)
        app.tick()
        await pilot.pause()
        assert set(calls) == {"gauges"} and screen_text(app) != before and "90 %" in screen_text(app)
        app.bench.run.waiting = (step(249, 1.0),)
        app.tick()
        assert {"run", "progress", "rates", "parts", "events", "gauges"} <= set(calls)
        assert not set(calls) & {"machine", "plan", "result", "log", "table", "invitation"}
        await pilot.press("1")
        calls.clear()
        app.bench.run.waiting = (step(250, 1.0),)
        app.tick()
        assert not calls
        await pilot.press("4")
        await pilot.pause()
        assert "step 250 of 500" in screen_text(app)

    showing(look)


def test_a_picture_that_is_held_still_is_not_computed_until_it_goes_on(calls):
    async def look(app, pilot):
        await pilot.press("space")
        await pilot.pause()
        held = picture(app)
        assert any("held still: Space goes on" in line for line in held)
        calls.clear()
        app.bench.looked = gauges(share=0.9)
        app.bench.run.waiting = (step(249, 1.0), e.PhaseChanged(phase="paused"))
        app.tick()
        await pilot.press("m")
        await pilot.pause()
        assert not calls and "the picture is held still" in picture(app)[-1]
        assert picture(app)[1:-1] == held[1:-1]
        await pilot.press("space")
        await pilot.pause()
        assert "step 249 of 500" in screen_text(app) and "held still" not in screen_text(app)

    showing(look)


def test_clicks_and_drags_on_the_chart_read_values_and_the_wheel_zooms():
    async def look(app, pilot):
        chart = app.screen.query_one("#chart", LossChart)
        await pilot.click("#chart", offset=(44, 3))
        assert chart.view.cross_step == 130 and "step 130  loss" in screen_text(app)
        await pilot.mouse_down("#chart", offset=(44, 3))
        await pilot.hover("#chart", offset=(62, 3))
        assert chart.view.cross_step == 194
        await pilot.mouse_up("#chart", offset=(62, 3))
        await pilot.hover("#chart", offset=(20, 3))
        assert chart.view.cross_step == 194
        await pilot.press("escape")
        assert chart.view.cross_step is None
        await pilot._post_mouse_events([MouseScrollUp], "#chart", offset=(44, 3))
        await pilot.pause()
        assert chart.view.halvings == 1 and "1/2 of the axis" in screen_text(app)
        await pilot._post_mouse_events([MouseScrollDown], "#chart", offset=(44, 3))
        assert chart.view.halvings == 0

    showing(look)


def test_keys_and_the_wheel_go_back_in_the_events():
    async def look(app, pilot):
        newest = picture(app)[-2]
        await pilot.press("up", "up")
        await pilot.pause()
        assert newest not in picture(app)
        await pilot._post_mouse_events([MouseScrollDown] * 2, "#events", offset=(4, 2))
        await pilot.pause()
        assert picture(app)[-2] == newest

    showing(look)


def test_the_log_and_the_table_take_the_place_of_the_figures():
    async def look(app, pilot):
        await pilot.press("L")
        await pilot.pause()
        assert "nothing has been written" in screen_text(app) and "tokens/s" not in screen_text(app)
        await pilot.press("L")
        await pilot.pause()
        assert "tokens/s" in screen_text(app)
        await pilot.press("c")
        assert "no evaluation of this run has a table" in picture(app)[-1]
        done = replace(evaluated(249, 1.0), table_columns=["a", "b"], table_rows={"a": [1.0, 2.0], "b": [3.0, 4.0]})
        app.bench.run.waiting = (done,)
        app.tick()
        await pilot.press("c")
        await pilot.pause()
        assert "── scores ──" in screen_text(app) and heights(app)["table"] > heights(app)["events"]

    showing(look)


def test_a_long_end_on_a_small_terminal_leaves_room_for_the_chart_and_the_events():
    card = e.GpuReading(index=0, utilization_share=0.9, memory_used_bytes=1 << 36, memory_bytes=1 << 37)
    read = e.GaugesRead(step=480, process_memory_bytes=1 << 31, process_cpu_share=0.5, usable_cores=8, gpus=[card] * 4)
    baselines = e.BaselinesMeasured(losses={f"order {n}": n for n in range(9)}, eval_tokens=1, unit="token")

    async def look(app, pilot):
        seen = heights(app)
        assert "result" in seen and seen["chart"] >= 5 and seen["events"] >= 2
        assert sum(seen[name] for name in ("chart", "doctor", "events", "result")) == 20

    showing(look, events=[*trained(500), baselines, read, read, DONE], alive=False)


def test_another_run_begins_with_all_its_steps_and_without_a_crosshair():
    async def look(app, pilot):
        await pilot.press("left", "+", "v")
        app.bench.run = NewsRun([*trained(500), DONE], False)
        app.run_changed()
        app.draw()
        await pilot.pause()
        view = app.screen.query_one("#chart", LossChart).view
        assert (view.halvings, view.cross_step, view.metric) == (0, None, "learning rate")
        assert "Finished after 500 steps" in screen_text(app)

    showing(look)


@pytest.mark.parametrize(
    ("size", "median_cells", "bytes_a_second"),
    [
        ((80, 24), 80, 800),
        pytest.param((120, 35), 80, 1000, marks=pytest.mark.e2e),
        pytest.param((200, 50), 120, 2000, marks=pytest.mark.e2e),
    ],
)
def test_an_update_a_second_changes_few_cells(size, median_cells, bytes_a_second):
    async def look(app, pilot):
        numbers, before, counts, costs = random.Random(1), None, [], []
        for second in range(40):
            losses = [1.4 + 3 * math.exp(-n / 200) for n in range(second * 8 + 1, second * 8 + 9)]
            app.bench.run.waiting = tuple(
                step(second * 8 + at, loss + numbers.gauss(0, 0.06), 0.125 + numbers.gauss(0, 0.004))
                for at, loss in enumerate(losses, 1)
            )
            app.bench.looked = gauges(0.6 + numbers.random() / 5, 1)
            app.tick()
            await pilot.pause()
            after = [line.ljust(size[0]) for line in picture(app)]
            if before is not None:
                touched = {(y, x) for y in range(size[1]) for x in range(size[0]) if before[y][x] != after[y][x]}
                runs = sum((y, x - 1) not in touched for y, x in touched)
                counts.append(len(touched))
                # A cursor move and a colour for each run, and the signs in UTF-8.
                costs.append(runs * 20 + sum(len(after[y][x].encode()) for y, x in touched))
            before = after
        assert 5 <= median(counts) <= median_cells
        assert sum(costs) / len(costs) <= bytes_a_second

    showing(look, events=[*prepared(2000), e.PhaseChanged(phase="training")], size=size, hardware=CPU)


ALONE = {"curves": "steps", "gauge": "82 %", "line_list": "line 9", "loss_chart": "── loss ", "section": "── plan ──",
         "settings_table": "made_up_9"}  # fmt: skip


def test_every_widget_of_the_demo_can_be_looked_at_alone():
    assert set(DEMOS) == set(ALONE)


@pytest.mark.parametrize("name", ALONE)
def test_a_widget_can_be_looked_at_alone(name):
    async def look(app):
        async with app.run_test(size=(60, 20)) as pilot:
            await pilot.pause()
            return screen_text(app)

    assert ALONE[name] in asyncio.run(look(Demo(name)))


def test_keys_of_a_picture_that_is_held_still_say_so():
    async def look(app, pilot):
        await pilot.press("space")
        for key in ("L", "up", "c", "m"):
            await pilot.press(key)
            assert "the picture is held still" in app.bench.notice[0]
        await pilot.press("space")
        assert "nothing has been written" not in screen_text(app)

    showing(look)


@pytest.mark.parametrize("size", [(8, 12), (1, 1)])
def test_a_terminal_of_a_few_cells_ends_nothing(size):
    async def look(app, pilot):
        for keys in (["L"], ["L", "1"], ["2", "S"]):
            await pilot.press(*keys)
            await pilot.resize_terminal(*size)
            await pilot.pause()
            await pilot.resize_terminal(80, 24)
            await pilot.pause()
        assert app.dialog is not None

    showing(look, events=[*trained(500), e.RunFailed(step=500, message="it failed " * 9)], alive=False)
