"""The theme and the bell: kept between sessions, whatever is in the file."""

from __future__ import annotations

import pytest

from tests.ui.canned import CPU, CannedBench, CannedRun, open_canned, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.ui import app as app_module
from tui_trainer.ui.app import TERMINAL_THEME
from tui_trainer.ui.preferences import Preferences
from tui_trainer.ui.spans import UNICODE


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)
    return tmp_path / "state"


def test_without_a_file_the_terminal_keeps_its_colours():
    assert Preferences.load() == Preferences(theme="", bell=False)


def test_a_file_that_cannot_be_understood_changes_nothing(home, subtests):
    home.mkdir()
    for text in ("", "[]", "{", '{"theme": 7, "bell": "yes"}', "\x00", '{"more": 1, "curves": []}', "[" * 100_000):
        with subtests.test(text[:40]):
            (home / "screens.json").write_text(text)
            assert Preferences.load() == Preferences()


def test_a_state_folder_that_cannot_be_written_stops_nothing(home):
    home.write_text("a file in the folder's place")
    Preferences(theme="nord").save()
    assert Preferences.load() == Preferences()


@pytest.mark.full
@in_event_loop
async def test_a_theme_is_chosen_by_keys_and_is_there_at_the_next_start():
    def bench() -> CannedBench:
        return CannedBench(lambda: Request(), CPU, UNICODE)

    async with open_screens(bench=bench()) as screens:
        assert screens.app.theme == TERMINAL_THEME
        await screens.press("T", *"nord")
        await screens.app.workers.wait_for_complete()
        await screens.settled()
        await screens.press("enter")
        await screens.until(lambda: Preferences.load().theme == "nord")
    async with open_screens(bench=bench()) as screens:
        assert screens.app.theme == "nord"


@pytest.mark.full
@in_event_loop
async def test_the_scale_of_losses_is_there_at_the_next_start():
    for kept in (False, True):
        async with open_canned() as screens:
            screens.bench.run = CannedRun(trained(148), True)
            await screens.press("4")
            await screens.until(lambda kept=kept: screens.app.page.chart.view.log == kept)
            await screens.press("Z")
            await screens.until(lambda kept=kept: Preferences.load().log_scale != kept)
