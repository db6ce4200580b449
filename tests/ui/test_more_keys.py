"""F12 in a dialog, the guides' lists, ways to be in time, and trying the machine: keys that came to screens."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

import pytest

from tests.checklist.test_checks import asked, seen
from tests.hardware.test_trial import GOOD
from tests.ui.pictures import in_event_loop, screen_text
from tests.ui.test_checklist_page import opened
from tests.ui.test_hardware_page import MACHINES
from tests.ui.test_hardware_page import opened as opened_hardware
from tui_trainer.checklist.guides import GUIDES
from tui_trainer.checklist.run import run_checks
from tui_trainer.config.load import value_of
from tui_trainer.ui import app as app_module
from tui_trainer.ui.screens import hardware as page_module


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@in_event_loop
async def test_f12_in_a_dialog_writes_a_picture_of_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with opened() as (app, pilot):
        await pilot.press("?")
        assert app.dialog is not None
        await pilot.press("f12")
        (picture,) = tmp_path.glob("tui-trainer-screen-*.svg")
        assert app.dialog is not None and app.dialog.heading in picture.read_text().replace("&#160;", " ")
        await pilot.press("escape")


@in_event_loop
async def test_a_key_shows_the_list_of_one_guide_after_the_other():
    findings = run_checks(seen(asked()))
    async with opened((160, 60), findings) as (app, pilot):
        everything = len(app.page.model.visible)
        for guide in GUIDES:
            await pilot.press("f")
            shown = app.page.model.visible
            assert app.page.model.guide == guide and 0 < len(shown) < everything
            assert f"guide {guide}" in screen_text(app)
        await pilot.press("f")
        assert app.page.model.guide == "" and len(app.page.model.visible) == everything


@in_event_loop
async def test_one_of_three_ways_to_be_in_time_is_chosen():
    late = run_checks(seen(asked(training__max_steps=2000, targets__deadline="60s")))
    async with opened((120, 50), late) as (app, pilot):
        place = next(at for at, one in enumerate(app.page.model.visible) if one.name == "deadline")
        app.page.model.chosen = app.page.model.visible[place].name
        app.draw()
        await pilot.pause()
        text = screen_text(app)
        assert "way 1" in text and "way 3" in text, text
        await pilot.press("a")
        assert app.dialog is not None
        await pilot.press("2")
        await pilot.pause()
        second = next(one for one in late if one.name == "deadline").verdict.ways[1]
        for key, value in second.patch.items():
            assert value_of(app.bench.document.loaded.config, key) == value


@in_event_loop
async def test_the_machine_is_tried_with_a_key_and_shown(monkeypatch):
    monkeypatch.setattr(page_module, "try_machine", lambda hardware, chosen: {**GOOD, "problems": []})
    monkeypatch.setattr(page_module, "kept_trial", lambda hardware, chosen: None)
    async with opened_hardware(MACHINES["eight"], (200, 50)) as (app, pilot):
        assert "m tries it" in screen_text(app)
        await pilot.press("m")
        for _ in range(100):
            await pilot.pause(0.02)
            if "tried, not guessed" in screen_text(app):
                break
        text = screen_text(app)
        assert "TFLOP/s" in text and "tokens/s" in text and "2026-11-23 10:00" in text


@in_event_loop
async def test_what_is_wrong_with_what_was_tried_has_its_remedy_on_the_screen(monkeypatch):
    problem = {"severity": "warn", "sentence": "bf16 matmuls reach 100 of 989", "remedy": "nvidia-smi -q"}
    monkeypatch.setattr(page_module, "kept_trial", lambda hardware, chosen: {**GOOD, "problems": [problem]})
    async with opened_hardware(replace(MACHINES["eight"]), (200, 50)) as (app, _):
        text = screen_text(app)
        assert "bf16 matmuls reach 100 of 989" in text and "nvidia-smi -q" in text


@in_event_loop
async def test_what_was_tried_of_one_card_is_not_shown_of_another_one(monkeypatch):
    go_on = Event()
    monkeypatch.setattr(page_module, "try_machine", lambda *_: go_on.wait(9) and {**GOOD, "problems": []})
    monkeypatch.setattr(page_module, "kept_trial", lambda hardware, chosen: None)
    async with opened_hardware(MACHINES["eight"], (200, 50)) as (app, pilot):
        await pilot.press("m", "n")
        go_on.set()
        while app.page._is_trying:
            await pilot.pause(0.02)
        await pilot.pause()
        assert "m tries it" in screen_text(app) and "tried, not guessed" not in screen_text(app)
