"""The user's own keys in `keys.toml`: footer, help and what a key does agree; mistakes are told and harm nothing."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.events import Key

from tests.combinations import first_by_default
from tests.ui.bare_app import all_pages
from tests.ui.pictures import screen_text as screen
from tui_trainer.config.load import Request
from tui_trainer.hardware.probe import probe
from tui_trainer.ui import app as app_module
from tui_trainer.ui.actions import ACTIONS
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import HelpDialog, TextDialog, footer_hints, hints_line
from tui_trainer.ui.keymap import Keymap, keys_file, load_keymap
from tui_trainer.ui.spans import UNICODE, text_of
from tui_trainer.ui.workbench import Workbench


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


def written(text: str | bytes) -> Keymap:
    """The key map of a user whose file holds this."""
    keys_file().parent.mkdir(parents=True, exist_ok=True)
    keys_file().write_bytes(text.encode() if isinstance(text, str) else text)
    return load_keymap()


def keys_of(keymap: Keymap, id: str) -> tuple[str, ...]:
    (action,) = [action for action in keymap.actions if action.id == id]
    return action.keys


@asynccontextmanager
async def opened(keymap: Keymap, page: int):
    bench = Workbench(lambda: Request(profile="quickstart"), probe(), UNICODE)
    app = TrainerApp(bench, keymap)
    async with app.run_test(size=(80, 24)) as pilot:
        while not bench.findings:
            await pilot.pause(0.02)
        bench.go(page)
        await pilot.pause()
        yield app, pilot
    assert not app.crash


def test_without_a_file_every_key_is_as_in_the_registry():
    assert load_keymap().actions == list(ACTIONS)


def test_own_keys_are_in_the_footer_in_the_help_and_do_what_they_say():
    keymap = written('"config.recipe" = "z"\n[app]\nquit = ["ctrl+x", "Q"]\nhelp = "f2"\n')
    assert keymap.problems == []

    async def look() -> None:
        async with opened(keymap, page=1) as (app, pilot):
            await pilot.press("u")
            app.bench.tell("a notice")
            app.draw()
            await pilot.pause()
            assert "a notice" in screen(app) and screen(app).endswith("F2 help"), "beside a notice too"
            await pilot.press("down")
            last = screen(app).splitlines()[-1]
            assert "z presets" in last and "p presets" not in last and last.endswith("F2 help")
            await pilot.press("p")
            assert "Choose a recipe" not in screen(app), "the old key is free"
            await pilot.press("z")
            assert "Choose a recipe" in screen(app)
            await pilot.press("escape", "?")
            assert app.dialog is None
            await pilot.press("f2")
            assert isinstance(app.dialog, HelpDialog)
            await pilot.press("f2")
            assert app.dialog is None, "closed by what opened it"
            await pilot.press("escape", "q")
            assert app.is_running and app.bench.leaving is None
            await pilot.press("ctrl+x")
            assert app.bench.leaving is not None

    asyncio.run(look())
    rows = all_pages(HelpDialog(keymap, "config")).splitlines()
    assert {row.split()[1] for row in rows if "Choose a recipe" in row} == {"z"}
    assert {tuple(row.split()[1:3]) for row in rows if "Leave. With" in row} == {("Ctrl+X", "Q")}


@pytest.mark.parametrize(
    "key", first_by_default(["z", "\u00fc", " ", "ctrl+x", *"Z5,;?[]\\'\"*%\u20ac", "f9", "pageup"], 4)
)
def test_any_key_that_may_be_chosen_does_what_it_says(key):
    keymap = Keymap({"config.copy": (key,)})
    assert keys_of(keymap, "config.copy") and all("config.copy does not" not in one for one in keymap.problems)

    async def look() -> None:
        async with opened(keymap, page=1) as (app, pilot):
            await pilot.press("space" if key == " " else key)
            assert "copied" in app.bench.notice[0]
            await pilot.press("y")
            assert app.bench.notice is None, "the old key is free"

    asyncio.run(look())


def test_swapped_keys_and_taken_keys_do_what_the_footer_says():
    keymap = Keymap({"config.undo": ("r",), "config.reset": ("u",), "app.help": ("t",), "train.save": ("q",)})

    async def look() -> None:
        async with opened(keymap, page=1) as (app, pilot):
            document = app.bench.document
            document.set("training.max_steps", 7)
            await pilot.press("u")
            assert document.value("training.max_steps") == 7, "the setting under the cursor is another one"
            await pilot.press("r")
            assert document.value("training.max_steps") != 7
            await pilot.press("t")
            assert isinstance(app.dialog, HelpDialog), "and nothing is started"
            await pilot.press("escape", "4", "q")
            assert app.bench.leaving is None and app.is_running, "what the user chose for a screen goes first"

    asyncio.run(look())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"config.undoo" = "z"', "config.undo?"),
        ('"nothing.like.it" = "z"', "there is no action nothing.like.it"),
        ('"config.undo" = 5', "config.undo must be a key or a list of keys"),
        ('"config.undo" = []', "config.undo must be a key or a list of keys"),
        ('"config.undo" = ["z", 5]', "config.undo must be a key or a list of keys"),
        ('"config.undo" = ""', "config.undo must be a key or a list of keys"),
        ("this is no TOML", "keys.toml cannot be read"),
        (b"\xff\xfe", "keys.toml cannot be read"),
        ("a = " + "[" * 9000, "keys.toml cannot be read"),
    ],
)
def test_a_mistake_in_the_file_is_told_and_changes_no_key(text, told):
    keymap = written(text)
    assert len(keymap.problems) == 1 and told in keymap.problems[0]
    assert keymap.actions == list(ACTIONS)


def test_one_mistake_does_not_take_the_other_keys_away():
    keymap = written('"config.undoo" = "z"\n"config.undo" = "z"\n')
    assert keys_of(keymap, "config.undo") == ("z",) and len(keymap.problems) == 1


@pytest.mark.parametrize(
    "key", ["ctrl+m", "ctrl+i", "ctrl+h", "ctrl+j", "ctrl+[", "ctrl+z", "Ctrl+Z", "esc", "ctl+x", "\u0007"]
)
def test_a_key_that_fails_or_is_none_is_refused_and_the_others_are_kept(key):
    keymap = Keymap({"config.undo": (key, "z")})
    assert keys_of(keymap, "config.undo") == ("z",)
    assert keymap.find("config", key.lower(), None) is None
    assert len(keymap.problems) == 1 and "config.undo" in keymap.problems[0] and keymap.problems[0].isprintable()


def test_capitals_and_a_blank_are_taken_as_terminals_report_them():
    keymap = Keymap(
        {"config.undo": ("Ctrl+X", "F5"), "train.log": ("V",), "train.metric": (" ",), "train.freeze": ("L",)}
    )
    assert keymap.problems == []
    assert keymap.find("config", "ctrl+x", None).id == keymap.find("config", "f5", None).id == "config.undo"
    assert keymap.find("train", "space", " ").id == "train.metric"
    assert keymap.find("train", "upper_v", "V").id == "train.log"


@pytest.mark.parametrize(
    ("own", "loser"),
    [
        ({"config.undo": ("r",)}, "config.reset"),
        ({"config.reset": ("u",)}, "config.undo"),
        ({"config.undo": ("?",)}, "app.help"),
        ({"app.quit": ("x",)}, "config.advanced"),
    ],
)
def test_an_own_key_takes_a_key_from_another_action_and_that_is_told(own, loser):
    keymap = Keymap(own)
    ((winner, (key,)),) = own.items()
    place = "config"
    assert keymap.find(place, key, key).id == winner
    assert key in keys_of(keymap, winner) and key not in keys_of(keymap, loser)
    assert winner in keymap.problems[0] and loser in keymap.problems[0]


def test_two_actions_can_change_their_keys():
    keymap = Keymap({"config.undo": ("r",), "config.reset": ("u",)})
    assert keymap.problems == []
    assert keymap.find("config", "u", "u").id == "config.reset" and keymap.find("config", "r", "r").id == "config.undo"


def test_an_action_that_lost_its_last_key_is_still_found_among_the_commands():
    keymap = Keymap({"app.quit": ("s",), "app.help": ("f1",)})
    assert keys_of(keymap, "train.save") == ()
    assert any("train.save has no key left" in problem for problem in keymap.problems)
    hints = footer_hints(keymap.of("train") + keymap.of("app"), lambda action: action.label, 200)
    line = text_of([hints_line(hints, 200, UNICODE)])
    assert "s quit" in line and "save" not in line and line.endswith("F1 help")

    async def look() -> None:
        async with opened(keymap, page=1) as (app, pilot):
            await pilot.press(":", *"save")
            for _ in range(500):
                if "no key: Write what differs" in screen(app):
                    break
                await pilot.pause(0.02)
            await pilot.press("enter")
            await pilot.pause()
            assert isinstance(app.dialog, TextDialog) and "Save" in screen(app)

    asyncio.run(look())


def test_the_first_screen_tells_what_is_wrong_with_the_keys_until_a_key_is_pressed():
    keymap = written('"config.undoo" = "z"\n"config.redoo" = "z"\n')

    async def look() -> None:
        async with opened(keymap, page=0) as (app, pilot):
            app.draw()
            await pilot.pause()
            assert "1 of 2: keys.toml: there is no action config.undoo" in screen(app)
            await pilot.press("down")
            assert "there is no action" not in screen(app)

    asyncio.run(look())


def all_at_once(app: TrainerApp, *keys: str) -> None:
    """As a terminal hands over what was typed while the program was busy: no key waits for what another one does."""
    characters = {"slash": "/", "underscore": "_", "full_stop": "."}
    for key in keys:
        app.post_message(Key(key, characters.get(key, key if len(key) == 1 else None)))


def test_keys_that_come_at_once_are_carried_out_one_after_the_other():
    """Each means what it means after the one before it: in a field, in the table, in a dialog, on another screen."""
    name = ["underscore" if one == "_" else one for one in "weight_decay"]

    async def look() -> None:
        async with opened(Keymap(), page=1) as (app, pilot):
            all_at_once(app, "slash", *name, "enter", "enter", *["backspace"] * 20, "0", "full_stop", "0", "5", "enter")
            await pilot.pause()
            assert app.bench.document.value("training.weight_decay") == 0.05
            all_at_once(app, "question_mark", "escape", "S", *["backspace"] * 90, "m", "y", "enter")
            all_at_once(app, "escape", "3", "2", "p")
            await pilot.pause()
            assert "Choose a recipe" in screen(app)
            assert Path("my").exists(), "typed before the field was shown"

    asyncio.run(look())


def test_a_key_that_is_everywhere_is_typed_while_a_field_has_the_focus():
    """A user who gives a letter to an action of all screens can still write it."""
    keymap = Keymap({"app.help": ("z",), "app.quit": ("Z",)})

    async def look() -> None:
        async with opened(keymap, page=1) as (app, pilot):
            await pilot.press("/", "z", "Z")
            assert app.page.filter_field.value == "zZ" and app.dialog is None and app.is_running
            await pilot.press("ctrl+u", *"learn", "enter", "enter", "ctrl+u", "z", "Z")
            assert app.page.value_field.value == "zZ" and app.page.is_typing
            await pilot.press("escape", "S", "z", "Z")
            assert isinstance(app.dialog, TextDialog) and app.dialog.field.value.endswith("zZ")
            await pilot.press("escape", "5", "/", "z", "Z")
            await pilot.pause()
            assert app.page.query_one("#filter").value == "zZ" and app.is_running
            await pilot.press("enter", "z")
            assert isinstance(app.dialog, HelpDialog), "and does what it says when nobody types"

    asyncio.run(look())
