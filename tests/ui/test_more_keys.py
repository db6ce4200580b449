"""F12 in a dialog, and trying the machine: keys that came to screens."""

from __future__ import annotations

from dataclasses import replace
from threading import Event

from tests.hardware.test_trial import GOOD
from tests.ui.pictures import in_event_loop, screen_text
from tests.ui.test_checklist_page import opened
from tests.ui.test_hardware_page import MACHINES
from tests.ui.test_hardware_page import opened as opened_hardware
from tui_trainer.ui.screens import hardware as page_module


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
async def test_the_machine_is_tried_with_a_key_and_shown(monkeypatch):
    monkeypatch.setattr(page_module, "try_machine", lambda hardware, chosen: {**GOOD, "problems": []})
    monkeypatch.setattr(page_module, "kept_trial", lambda hardware, chosen: None)
    async with opened_hardware(MACHINES["eight"], (200, 50)) as (app, pilot):
        assert "m tries computing" in screen_text(app)
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
        await pilot.press("m", "c")
        go_on.set()
        while app.page._is_trying:
            await pilot.pause(0.02)
        await pilot.pause()
        assert "m tries computing" in screen_text(app) and "tried, not guessed" not in screen_text(app)
