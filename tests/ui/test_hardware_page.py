"""The Hardware screen as widgets: columns, scrolling, the minutes behind the gauges, and the folder of the runs."""

from __future__ import annotations

import re
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from tests.combinations import each_value_once
from tests.ui.pictures import in_event_loop, picture, screen_text
from tests.ui.test_hardware_view import MACHINES
from tests.ui.test_snapshots import CannedBench
from tui_trainer.config.load import Request
from tui_trainer.hardware.facts import Hardware
from tui_trainer.ui import app as app_module
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import ASCII, UNICODE, text_of, width_of
from tui_trainer.ui.widgets.gauge import Gauge, curve_lines, gauge_line
from tui_trainer.ui.widgets.pane import Scroller

NAN = float("nan")


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@asynccontextmanager
async def opened(hardware: Hardware, size=(80, 24)):
    """The application on this machine."""
    app = app_module.TrainerApp(CannedBench(lambda: Request(), hardware, UNICODE), Keymap())
    async with app.run_test(size=size) as pilot:
        while app.bench.plan is None:
            await pilot.pause()
        await pilot.pause()
        yield app, pilot
    assert not app.crash


def body(app) -> list[str]:
    return picture(app)[1:-1]


@in_event_loop
async def test_scrolling_shows_every_line_and_says_what_is_left():
    async with opened(MACHINES["eight"]) as (app, pilot):
        seen, below = body(app)[:-1], 1
        while below:
            *lines, position = body(app)
            assert "more below" in position or "above" in position
            below = int(position.split("more")[0].split()[-1]) if "more below" in position else 0
            top = int(position.split(" above")[0].split()[-1]) if "above" in position else 0
            assert top + below == app.page.query_one(Scroller).scrolled.max_scroll_y
            seen += lines[len(seen) - top :]
            await pilot.press("down")
        text = "\n".join(seen)
        for words in ("training", "GPUs: 8", "the card that would be used", "processor", "on the other GPUs", "disk",
                      "libraries", "not here   peft, datasets"):  # fmt: skip
            assert text.count(words) == 1, words
        await pilot.press("end")
        assert body(app)[:-1] == lines
        await pilot.press("pageup", "k")
        assert f"{top - 21} above" in body(app)[-1]
        await pilot.press("home")
        assert body(app)[0].startswith("── training") and "above" not in body(app)[-1]


@in_event_loop
async def test_what_fits_has_no_line_about_scrolling_and_its_keys_do_nothing():
    async with opened(MACHINES["one"], (80, 50)) as (app, pilot):
        before = body(app)
        await pilot.press("down", "end")
        assert body(app) == before and "below" not in screen_text(app)
        await pilot.resize_terminal(80, 24)
        await pilot.pause()
        assert "more below" in body(app)[-1]
        await pilot.resize_terminal(80, 50)
        await pilot.pause()
        assert body(app) == before


@pytest.mark.parametrize(("width", "columns"), [(80, 1), (119, 1), (120, 2), (179, 2), (180, 3), (200, 3)])
@in_event_loop
async def test_wider_screens_have_more_columns_side_by_side_and_lose_nothing(width, columns):
    async with opened(MACHINES["one"], (width, 60)) as (app, _):
        text = screen_text(app)
        assert UNICODE.ellipsis not in text
        first = next(line for line in body(app) if line.startswith("── training"))
        assert len(re.findall(r"── \w", first)) == columns
        for words in ("device", "H200", "processor", "disk", "libraries", "python of anna"):
            assert words in text


@pytest.mark.parametrize(("name", "size"), each_value_once(MACHINES, [(80, 24), (120, 35), (200, 50)]))
@in_event_loop
async def test_every_machine_is_shown_at_every_size(name, size):
    async with opened(MACHINES[name], size) as (app, _):
        assert len(body(app)) == size[1] - 2
        assert ("training" in screen_text(app) and "busy" in screen_text(app)) or size == (80, 24)
        assert name in ("hostile", "lost") or UNICODE.ellipsis not in "\n".join(body(app))


@in_event_loop
async def test_the_last_minutes_stand_below_the_gauges_where_there_is_room(monkeypatch):
    now = 1000.0
    monkeypatch.setattr("tui_trainer.ui.workbench.monotonic", lambda: now)
    async with opened(MACHINES["eight"], (200, 50)) as (app, pilot):
        assert "▇" not in screen_text(app) and "GPU 0: the last 5 minutes" in screen_text(app)
        for _ in range(20):
            now += 5
            app.tick()
        await pilot.pause()
        lines = body(app)
        busy = next(row for row, line in enumerate(lines) if line[68:].startswith("busy"))
        assert lines[busy][68:].startswith("busy       █████████████·  93 %    71 C  512 W")
        assert [len(line[68:132].strip()) for line in lines[busy + 1 : busy + 4]] == [20, 20, 20]
        await pilot.resize_terminal(120, 35)
        await pilot.pause()
        assert "the last 5 minutes" not in screen_text(app)
        line = next(line for line in body(app) if line.startswith("memory"))
        assert "▂▂▂▂" in line and "12.0/64.0 GiB" in line


@in_event_loop
async def test_another_gpu_is_chosen_in_turn_and_its_card_is_shown():
    async with opened(MACHINES["eight"], (200, 60)) as (app, pilot):
        await pilot.press("n", "n")
        assert "GPU 1: the card that you chose" in screen_text(app) and "▸ 1 H200" in screen_text(app)
        assert "GPU 1: the last 5 minutes" in screen_text(app)


@in_event_loop
async def test_the_folder_of_the_runs_is_the_one_of_the_config(tmp_path):
    async with opened(MACHINES["no gpu"], (170, 50)) as (app, pilot):
        app.bench.document.set("output.runs_dir", str(tmp_path / "mine"))
        app.draw()
        while app.bench.background.is_busy("runs folder"):
            await pilot.pause()
        await pilot.pause()
        assert "mine" in screen_text(app)
        runs = next(place for place in app.bench.hardware.places if place.label == "runs")
        assert runs.path == str(tmp_path / "mine") and runs.writable


@in_event_loop
async def test_a_part_that_comes_later_finds_its_place():
    async with opened(MACHINES["no gpu"]) as (app, pilot):
        app.page._looked(replace(MACHINES["one"], host="again"))
        await pilot.pause()
        assert "GPUs: 1" in screen_text(app) and "▸ 0 H200" in screen_text(app)
        app.page._looked(MACHINES["no gpu"])
        await pilot.pause()
        assert "H200" not in screen_text(app)


def test_a_curve_is_as_high_as_it_may_be_and_shades_the_target():
    values = [0.0, 0.5, 1.0, NAN, 2.0]
    assert text_of(curve_lines(values, 6, 2, None, UNICODE)) == "   █ █\n ▁██ █"
    shaded = text_of(curve_lines(values, 6, 2, (0.5, 0.9), UNICODE)).splitlines()
    assert shaded[0].startswith(" ░░█") and "░" not in shaded[1]
    assert text_of(curve_lines(values, 6, 2, (0.5, 0.9), ASCII)).isascii()
    assert all(width_of(line) == 3 for line in curve_lines(values, 3, 4, None, UNICODE))
    assert text_of(curve_lines([], 3, 2, (0, 1), UNICODE)) == "\n"


def test_a_gauge_on_a_line_has_as_much_of_its_curve_as_fits():
    gauge = Gauge("CPU", 0.6, (0.5, 0.8), "12.0/31.2 GiB", "any")
    values = {"any": [0.5] * 60}
    for width in (40, 53, 58, 80, 120):
        line = gauge_line(gauge, values, width, UNICODE, most_parts=60)
        assert width_of(line) == width
        assert ("12.0/31.2 GiB" in text_of([line])) and "60 %" in text_of([line])
    assert text_of([gauge_line(gauge, values, 120, UNICODE, most_parts=60)]).count("▅") == 60
