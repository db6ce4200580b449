"""The registry's actions in the palette: all of them in order, and the best match first."""

from __future__ import annotations

import pytest
from textual.fuzzy import FuzzySearch

from tests.ui.canned import CPU, CannedBench
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.ui import app as app_module
from tui_trainer.ui.palette import actions_here, found
from tui_trainer.ui.spans import UNICODE


@in_event_loop
async def test_letters_find_actions_the_best_first_and_enter_does_the_chosen_one():
    async with open_canned() as screens:
        await screens.press("2")
        await screens.shows("Enter edit")
        search = FuzzySearch()

        def ids(letters: str) -> list[str]:
            return [command.do.args[1] for command, _ in found(actions_here(screens.app), letters, search)]

        offered = sorted(screens.app.offered_actions, key=lambda one: one.footer or 100)
        assert ids("") == [action.id for action in offered], "those of the last line come first"
        for letters, first in (("undo", "config.undo"), ("UNDO", "config.undo"), ("recipes", "config.recipe"),
                               ("svas", "config.save_as"), ("clipboard", "config.copy")):  # fmt: skip
            assert first not in [one.id for one in offered] or ids(letters)[0] == first
        assert ids("zzqqxx") == []
        # Every way to find letters far from each other in a long sentence is tried: not for letters without end.
        assert ids("the settings or the rates or the setting at the end or the start") == []

        await screens.press(":", *"recipes")
        await screens.shows("Choose a recipe; see first what it would change.")
        await screens.press("enter")
        await screens.shows("Choose a recipe", "It changes")


@in_event_loop
async def test_keys_that_come_at_once_find_and_do_it_and_nothing_is_done_without_a_match():
    async with open_canned() as screens:
        await screens.press("2")
        await screens.shows("Enter edit")
        for keys in (":", "pageup"), ("x", "escape"), (":", "pagedown", "pagedown"), ("enter", "enter"):
            screens.app.simulate_key(keys[0])
            for key in keys[1:]:
                screens.app.simulate_key(key)
        await screens.settled()
        await screens.press("escape", "escape", ":", *"zzqqxx", "pageup", "pagedown", "enter")
        await screens.shows("nothing has these letters")
        await screens.press("escape")
        assert screens.app.dialog is None


@in_event_loop
async def test_a_theme_is_shown_while_it_is_chosen_and_the_one_before_comes_back():
    async with open_canned() as screens:
        before = screens.app.theme
        await screens.press("T", *"nord")
        await screens.shows("nord")
        assert screens.app.theme == "nord"
        await screens.press("escape")
        assert screens.app.theme == before
        await screens.press("T", *"nord", "enter")
        assert screens.app.theme == "nord"


@in_event_loop
async def test_it_opens_on_every_screen_while_a_toast_is_shown_which_does_not_lie_on_its_keys(monkeypatch):
    monkeypatch.setattr(app_module, "_NEWS_SECONDS", 1e6)
    async with open_canned() as screens:
        for page in range(5):
            screens.bench.go(page)
            screens.bench.tell_end((page + 1) % 5, f"news {page}", "good")
            await screens.shows(f"news {page}")
            await screens.press("ctrl+p", *"undo")
            await screens.shows("Find an action", "undo", "Enter do it", gone="news")
            await screens.press("escape")
            await screens.until(lambda: screens.app.dialog is None)
        assert screens.bench.unseen == {0}, "each was seen afterwards but for the last"


@in_event_loop
async def test_the_last_news_that_come_while_a_dialog_is_open_are_shown_behind_it(monkeypatch):
    monkeypatch.setattr(app_module, "_NEWS_SECONDS", 1e6)
    async with open_canned() as screens:
        await screens.press("2", "?")
        await screens.shows("To the setting above.")
        for number in range(5):
            screens.bench.tell_end(4, f"chat is evaluated, {number}", "good")
            screens.app.tick()
        assert "chat is evaluated" not in await screens.settled()
        await screens.press("escape")
        await screens.until(lambda: screens.app.dialog is None)
        screens.app.tick()
        await screens.shows("evaluated, 2", "evaluated, 4", "5 Runs \u25cf", gone="evaluated, 1")
