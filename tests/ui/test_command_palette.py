"""The registry's actions in Textual's command palette: all of them in order, and the best match first."""

from __future__ import annotations

import pytest

from tests.ui.canned import CPU, CannedBench
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.ui import app as app_module
from tui_trainer.ui.commands import ActionCommands
from tui_trainer.ui.spans import UNICODE


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@in_event_loop
async def test_letters_find_actions_the_best_first_and_enter_does_the_chosen_one():
    async with open_screens(bench=CannedBench(lambda: Request(), CPU, UNICODE)) as screens:
        await screens.press("2")
        await screens.shows("Enter edit")
        provider = ActionCommands(screens.app.screen)

        async def found(letters: str) -> list[str]:
            """Ids, as the palette orders them."""
            hits = [hit async for hit in (provider.search(letters) if letters else provider.discover())]
            return [hit.command.args[0] for hit in sorted(hits, key=lambda hit: -hit.score)]

        offered = sorted(screens.app.offered_actions, key=lambda one: one.footer or 100)
        assert await found("") == [action.id for action in offered], "those of the last line come first"
        for letters, first in (("undo", "config.undo"), ("UNDO", "config.undo"), ("presets", "config.recipe"),
                               ("svas", "config.save_as"), ("clipboard", "config.copy")):  # fmt: skip
            assert first not in [one.id for one in offered] or (await found(letters))[0] == first
        assert await found("zzqqxx") == []
        # Every way to find letters far from each other in a long sentence is tried: not for letters without end.
        assert await found("the settings or the rates or the setting at the end or the start") == []

        await screens.press(":", *"presets")
        await screens.shows("Choose a recipe; see first what it would change.")
        await screens.press("enter")
        await screens.shows("Choose a recipe", "It changes")
