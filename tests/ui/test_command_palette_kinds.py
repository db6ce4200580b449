"""The command palette finds everything that has a name, says of which kind it is, and goes there."""

from __future__ import annotations

from threading import Event

import pytest
from textual.fuzzy import FuzzySearch

from tests.ui.canned import CPU, CannedBench
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.runs.folder import RunFolder
from tui_trainer.ui import app as app_module
from tui_trainer.ui.palette import Command, found
from tui_trainer.ui.spans import UNICODE


@pytest.fixture(autouse=True)
def no_clock(monkeypatch, tmp_path):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@pytest.fixture
def screens_opened():
    return open_canned(size=(100, 30))


async def take(screens, letters: str, first: str) -> None:
    await screens.press("ctrl+p", *letters)
    await screens.shows(first)
    await screens.settled()
    # The best is the first of the list, below the frame of what is typed.
    rows = [line for line in screens.lines if ": " in line]
    assert first in rows[0], screens.text
    await screens.press("enter")


@in_event_loop
async def test_a_setting_is_shown_on_config_also_one_that_is_folded_away(screens_opened):
    async with screens_opened as screens:
        await screens.press("1")
        for key in ("training.learning_rate", "training.adam_beta2"):
            await take(screens, key.rpartition(".")[2], f"Setting: {key}")
            await screens.shows("Enter edit")
            await screens.until(lambda key=key: screens.app.page.place == "config" and screens.app.page.key == key)


@in_event_loop
async def test_an_action_of_another_screen_is_done_there(screens_opened):
    async with screens_opened as screens:
        await screens.press("1")
        await take(screens, "config recipes", "Config: recipes")
        await screens.shows("Choose a recipe")
        await screens.press("escape", "1")
        await take(screens, "checklist only open", "Checklist: only open")
        await screens.until(lambda: screens.app.page.place == "checklist")


@in_event_loop
async def test_a_recipe_is_shown_with_what_it_would_change(screens_opened):
    async with screens_opened as screens:
        await screens.press("1")
        await take(screens, "recipe topics", "Recipe: ")
        await screens.shows("Choose a recipe")


@in_event_loop
async def test_a_run_is_opened(screens_opened, monkeypatch, tmp_path):
    folder = RunFolder(tmp_path / "chat-20261120")
    monkeypatch.setattr("tui_trainer.runs.registry.known_runs", lambda: [folder])
    async with screens_opened as screens:
        opened = []
        screens.bench.attach_to = opened.append
        await take(screens, "chat-2026", "Run: chat-20261120")
        await screens.until(lambda: opened == [folder])


@in_event_loop
async def test_a_theme_and_a_page_of_a_guide_are_taken_by_name(screens_opened):
    async with screens_opened as screens:
        await take(screens, "theme dracula", "Theme: dracula")
        await screens.until(lambda: screens.app.theme == "dracula")
        await take(screens, "guide exit codes", "Guide: While it runs: Exit codes")
        await screens.shows("Esc close", "While it runs")


@in_event_loop
async def test_a_disk_that_does_not_answer_takes_no_other_kind_away(screens_opened, monkeypatch):
    answers = Event()
    monkeypatch.setattr("tui_trainer.runs.registry.known_runs", lambda: answers.wait(20) and [])
    async with screens_opened as screens:
        await screens.press("ctrl+p", *"theme nord")
        await screens.shows("Theme: nord")
        await screens.press("enter")
        await screens.until(lambda: screens.app.theme == "nord")
        answers.set()


def test_the_search_is_fuzzy_and_what_is_elsewhere_needs_letters():
    commands = [Command("Setting: training.adam_beta2", "", list, elsewhere=True), Command("Config: undo", "", list)]
    assert [one.name for one, _ in found(commands, "adb2", FuzzySearch())] == ["Setting: training.adam_beta2"]
    assert [one.name for one, _ in found(commands, "", FuzzySearch())] == ["Config: undo"]
