"""The registry's actions in Textual's command palette: all of them in order, and the best match first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import ClassVar

import pytest
from textual.app import App
from textual.command import CommandList, CommandPalette

import tui_trainer.ui
from tests.combinations import in_the_sweep
from tests.ui.pictures import screen_text
from tui_trainer.ui.actions import ACTIONS, Action
from tui_trainer.ui.keymap import ActionCommands

# Those of the last line come first.
OFFERED = sorted((one for one in ACTIONS if one.place in ("app", "config")), key=lambda one: one.footer or 100)


class Offering(App[None]):
    """As much of the program as the palette asks for."""

    CSS_PATH = Path(tui_trainer.ui.__file__).with_name("app.tcss")
    COMMANDS: ClassVar = {ActionCommands}

    def __init__(self) -> None:
        super().__init__()
        self.done: list[str] = []

    @property
    def offered_actions(self) -> list[Action]:
        return OFFERED

    def carry_out(self, action_id: str) -> None:
        self.done.append(action_id)


def found(letters: str) -> list[str]:
    """Ids of the actions that some letters find, the best one first."""

    async def look() -> list[str]:
        app = Offering()
        async with app.run_test():
            provider = ActionCommands(app.screen)
            hits = [hit async for hit in (provider.search(letters) if letters else provider.discover())]
            # As the palette orders them.
            for hit in sorted(hits, key=lambda hit: -hit.score):
                hit.command()
        return app.done

    return asyncio.run(look())


def pressed(letters: str, *keys: str) -> tuple[list[str], str, list[str]]:
    """The commands in the list, the screen, and what was done at the end, with Enter."""
    expected = len(found(letters))

    async def look():
        app = Offering()
        async with app.run_test() as pilot:
            await app.push_screen(CommandPalette())
            await pilot.press(*letters)
            commands = app.screen.query_one(CommandList)
            for _ in range(500):
                if commands.option_count == expected:
                    break
                await pilot.pause(0.02)
            await pilot.pause()
            names = [option.hit.text for option in commands.options]
            text = screen_text(app)
            await pilot.press(*keys, "enter")
            await pilot.pause()
        return names, text, app.done

    return asyncio.run(look())


def test_without_letters_the_commands_are_all_there_in_order():
    assert found("") == [action.id for action in OFFERED]
    commands, _, _ = pressed("")
    assert [name.partition(": ")[2] for name in commands] == [action.label for action in OFFERED]


@pytest.mark.parametrize(
    ("letters", "first"),
    [
        in_the_sweep("undo", "config.undo"),
        ("UNDO", "config.undo"),
        in_the_sweep("presets", "config.recipe"),
        ("svas", "config.save_as"),
        ("clipboard", "config.copy"),
    ],
)
def test_some_letters_find_a_command_and_enter_does_it(letters, first):
    assert found(letters)[0] == first
    _, text, done = pressed(letters)
    (action,) = [action for action in ACTIONS if action.id == first]
    assert action.help in text and action.keys[0] in text
    assert done == [first]


def test_letters_that_nothing_has_find_nothing():
    assert found("zzqqxx") == []


def test_letters_typed_without_end_are_answered_at_once():
    # Every way to find letters far from each other in a long sentence is tried: that must not be done for sentences.
    assert found("the settings or the rates or the setting at the end or the start") == []


def test_the_arrows_choose_another_command():
    _, _, done = pressed("", "down")
    assert done == [OFFERED[1].id]
