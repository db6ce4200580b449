"""The theme and the bell: kept between sessions, whatever is in the file."""

from __future__ import annotations

import asyncio

import pytest

from tui_trainer.config.load import Request
from tui_trainer.hardware.probe import probe
from tui_trainer.ui import app as app_module
from tui_trainer.ui.app import TERMINAL_THEME, TrainerApp
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.theme import Preferences
from tui_trainer.ui.workbench import Workbench


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    return tmp_path / "state"


def test_without_a_file_the_terminal_keeps_its_colours():
    assert Preferences.load() == Preferences(theme="", bell=False)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"theme": 7, "bell": "yes"}', "\x00", '{"more": 1}', "[" * 100_000])
def test_a_file_that_cannot_be_understood_changes_nothing(home, text):
    home.mkdir()
    (home / "screens.json").write_text(text)
    assert Preferences.load() == Preferences()


def test_a_state_folder_that_cannot_be_written_stops_nothing(home):
    home.write_text("a file in the folder's place")
    Preferences(theme="nord").save()
    assert Preferences.load() == Preferences()


def test_a_theme_is_chosen_by_keys_and_is_there_at_the_next_start():
    async def session(*keys: str) -> str:
        app = TrainerApp(Workbench(lambda: Request(profile="quickstart"), probe(), UNICODE), Keymap())
        async with app.run_test(size=(80, 24)) as pilot:
            while not app.bench.findings:
                await pilot.pause(0.02)
            await pilot.press(*keys)
            await app.workers.wait_for_complete()
            await pilot.pause()
            if keys:
                await pilot.press("enter")
                await pilot.pause()
        assert not app.crash
        return app.theme

    assert asyncio.run(session()) == TERMINAL_THEME
    assert asyncio.run(session("T", *"nord")) == "nord"
    assert Preferences.load().theme == "nord"
    assert asyncio.run(session()) == "nord"
