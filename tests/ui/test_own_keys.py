"""The user's own keys in `keys.toml`: footer, help and what a key does agree; mistakes are told and harm nothing."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.events import Key

from tests.ui.canned import NewsRun, open_canned, trained
from tests.ui.pictures import in_event_loop
from tui_trainer.runs.events import PhaseChanged
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import footer_hints, hints_line
from tui_trainer.ui.keymap import ACTIONS, Keymap, keys_file, load_keymap, name_keys_for_commands
from tui_trainer.ui.spans import UNICODE, text_of


def written(text: str | bytes) -> Keymap:
    """The key map of a user whose file holds this."""
    keys_file().parent.mkdir(parents=True, exist_ok=True)
    keys_file().write_bytes(text.encode() if isinstance(text, str) else text)
    return load_keymap()


def keys_of(keymap: Keymap, id: str) -> tuple[str, ...]:
    (action,) = [action for action in keymap.actions if action.id == id]
    return action.keys


def test_the_keys_of_tui_trainer_home_come_before_those_of_the_settings_folder(private_home):
    assert written('"config.undo" = "z"').problems == [] and keys_file().parent != private_home
    private_home.mkdir(exist_ok=True)
    (private_home / "keys.toml").write_text('"config.undo" = "Z"')
    assert keys_file().parent == private_home and keys_of(load_keymap(), "config.undo") == ("Z",)


@asynccontextmanager
async def opened(keymap: Keymap, page: str):
    """The screens with these keys, on the page that a key shows."""
    async with open_canned(keymap=keymap) as screens:
        await screens.press(page)
        await screens.settled()
        yield screens


def test_without_a_file_every_key_is_as_in_the_registry():
    assert load_keymap().actions == list(ACTIONS)


@in_event_loop
async def test_own_keys_are_in_the_footer_in_the_help_and_do_what_they_say():
    keymap = written('"config.recipe" = "z"\n[app]\nquit = ["ctrl+x", "Q"]\nhelp = "f2"\n')
    assert keymap.problems == []
    async with opened(keymap, "2") as screens:
        assert "z recipes" in screens.lines[-1] and "p recipes" not in screens.lines[-1]
        assert screens.text.endswith("F2 help")
        screens.bench.show_notice("a notice")
        screens.app.draw()
        await screens.shows("a notice", "F2 help")
        await screens.press("p")
        assert "Choose a recipe" not in await screens.settled(), "the old keys are free"
        await screens.press("z")
        await screens.shows("Choose a recipe")
        await screens.press("escape", "f2")
        rows = (await screens.shows("Edit the value in place.")).splitlines()
        for _ in range(3):  # the keys are followed by a page of the guide
            await screens.press("pagedown")
            rows += (await screens.settled()).splitlines()
        assert {row.split()[1] for row in rows if "Choose a recipe" in row} <= {"z"}
        assert {tuple(row.split()[1:3]) for row in rows if "Quit. If a" in row} == {("Ctrl+X", "Q")}
        await screens.press("f2")
        await screens.shows("F2 help", gone="Esc close"), "closed by what opened it"
        await screens.press("escape", "q")
        assert not screens.ended
        await screens.press("ctrl+x")
        await screens.until(lambda: screens.ended)


@in_event_loop
async def test_a_letter_of_another_alphabet_names_the_keyboard_layout_once():
    async with opened(written('"config.undo" = "\u044b"'), "2") as screens:
        await screens.press("\u00e9", "\u044b")
        assert "is not a key" not in await screens.settled()
        await screens.press("\u0444")
        await screens.shows("the key \u0444 has no action: switch the keyboard layout, or edit keys.toml", "? help")
        await screens.press("\u0439")
        await screens.shows("Enter edit", gone="is not a key")


@pytest.mark.full
@in_event_loop
async def test_any_key_may_be_chosen_keys_can_be_swapped_and_what_is_chosen_for_a_screen_goes_first():
    odd = ("\u00fc", " ", "ctrl+x", *"Z,;[\\'\"*%\u20ac", "f9", "pageup")
    keymap = Keymap({"config.copy": odd, "config.undo": ("r",), "config.reset": ("u",), "app.help": ("t",),
                     "train.save": ("q",)})  # fmt: skip
    assert not [one for one in keymap.problems if "config.copy does not" in one]
    async with opened(keymap, "2") as screens:
        for key in odd:
            await screens.press("space" if key == " " else key)
            assert "copied" in screens.bench.notice[0], key
            await screens.press("y")
            assert screens.bench.notice is None, "the old key is free"
        document = screens.bench.document
        document.set("training.max_steps", 7)
        await screens.press("u")
        assert document.value("training.max_steps") == 7, "the setting under the cursor is another one"
        await screens.press("r")
        assert document.value("training.max_steps") != 7
        await screens.press("t")
        await screens.shows("Edit the value in place."), "and nothing is started"
        await screens.press("escape", "4", "q")
        assert "Quit?" not in await screens.settled() and not screens.ended


def test_a_mistake_in_the_file_is_reported_and_changes_no_key(subtests):
    for text, told in (
        ('"config.undoo" = "z"', "config.undo?"),
        ('"nothing.like.it" = "z"', "unknown action nothing.like.it"),
        ('"config.undo" = 5', "config.undo must be a key or a list of keys"),
        ('"config.undo" = []', "config.undo must be a key or a list of keys"),
        ('"config.undo" = ["z", 5]', "config.undo must be a key or a list of keys"),
        ('"config.undo" = ""', "config.undo must be a key or a list of keys"),
        ("this is no TOML", "could not read keys.toml"),
        (b"\xff\xfe", "could not read keys.toml"),
        ("a = " + "[" * 9000, "could not read keys.toml"),
    ):
        with subtests.test(str(text[:40])):
            keymap = written(text)
            assert len(keymap.problems) == 1 and told in keymap.problems[0]
            assert keymap.actions == list(ACTIONS)


def test_one_mistake_does_not_take_the_other_keys_away():
    keymap = written('"config.undoo" = "z"\n"config.undo" = "z"\n')
    assert keys_of(keymap, "config.undo") == ("z",) and len(keymap.problems) == 1


def test_a_key_that_fails_or_is_none_is_refused_and_the_others_are_kept(subtests):
    for key in ("ctrl+m", "ctrl+i", "ctrl+h", "ctrl+j", "ctrl+[", "esc", "ctl+x", "\u0007"):
        with subtests.test(repr(key)):
            keymap = Keymap({"config.undo": (key, "z")})
            assert keys_of(keymap, "config.undo") == ("z",)
            assert keymap.find("config", key.lower(), None) is None
            [problem] = keymap.problems
            assert "config.undo" in problem and problem.isprintable()


def test_capitals_and_a_blank_are_taken_as_terminals_report_them():
    keymap = Keymap(
        {"config.undo": ("Ctrl+X", "F5"), "train.log": ("X",), "train.metric": (" ",), "train.freeze": ("L",)}
    )
    assert keymap.problems == []
    assert keymap.find("config", "ctrl+x", None).id == keymap.find("config", "f5", None).id == "config.undo"
    assert keymap.find("train", "space", " ").id == "train.metric"
    assert keymap.find("train", "upper_x", "X").id == "train.log"


def test_an_own_key_takes_a_key_from_another_action_and_that_is_reported():
    for winner, key, loser in (
        ("config.undo", "r", "config.reset"), ("config.reset", "u", "config.undo"), ("config.undo", "?", "app.help"),
        ("app.quit", "v", "config.preview"),
    ):  # fmt: skip
        keymap = Keymap({winner: (key,)})
        assert keymap.find("config", key, key).id == winner
        assert key in keys_of(keymap, winner) and key not in keys_of(keymap, loser)
        assert winner in keymap.problems[0] and loser in keymap.problems[0]


def test_two_actions_can_change_their_keys():
    keymap = Keymap({"config.undo": ("r",), "config.reset": ("u",)})
    assert keymap.problems == []
    assert keymap.find("config", "u", "u").id == "config.reset" and keymap.find("config", "r", "r").id == "config.undo"


def test_an_action_that_lost_its_last_key_is_still_found_among_the_commands():
    keymap = Keymap({"app.start": ("s",), "app.help": ("f1",)})
    assert keys_of(keymap, "train.save") == ()
    assert any("train.save has no key" in problem for problem in keymap.problems)
    hints = footer_hints(keymap.actions_on("train") + keymap.actions_on("app"), lambda action: action.label, 200)
    line = text_of([hints_line(hints, 200, UNICODE)])
    assert "s start" in line and "save" not in line and line.endswith("F1 help")


@pytest.mark.full
@in_event_loop
async def test_the_first_screen_tells_what_is_wrong_with_the_keys_until_a_key_is_pressed():
    keymap = written('"config.undoo" = "z"\n"config.redoo" = "z"\n')
    async with open_canned(keymap=keymap) as screens:
        await screens.shows("problem 1 of 2: keys.toml: unknown action config.undoo")
        await screens.press("down")
        await screens.shows("processor", gone="unknown action")


def all_at_once(app: TrainerApp, *keys: str) -> None:
    """As a terminal hands over what was typed while the program was busy: no key waits for what another one does."""
    characters = {"slash": "/", "underscore": "_", "full_stop": "."}
    for key in keys:
        app.post_message(Key(key, characters.get(key, key if len(key) == 1 else None)))


@in_event_loop
async def test_keys_that_come_at_once_are_carried_out_one_after_the_other():
    """Each means what it means after the one before it: in a field, in the table, in a dialog, on another screen."""
    name = ["underscore" if one == "_" else one for one in "weight_decay"]
    async with opened(Keymap(), "2") as screens:
        app = screens.app
        all_at_once(app, "slash", *name, "enter", "enter", *["backspace"] * 20, "0", "full_stop", "0", "5", "enter")
        await screens.until(lambda: screens.bench.document.value("training.weight_decay") == 0.05)
        all_at_once(app, "question_mark", "escape", "S", *["backspace"] * 90, "m", "y", "enter")
        all_at_once(app, "escape", "3", "2", "p")
        await screens.shows("Choose a recipe")
        assert Path("my").exists(), "typed before the field was shown"


@pytest.mark.full
@in_event_loop
async def test_a_key_that_is_everywhere_is_typed_while_a_field_has_the_focus():
    """A user who gives a letter to an action of all screens can still write it."""
    async with opened(Keymap({"app.help": ("z",), "app.quit": ("Z",)}), "2") as screens:
        await screens.press("/", "z", "Z")
        await screens.shows("/ zZ")
        await screens.press("ctrl+u", *"learn", "enter", "enter", "ctrl+u", "z", "Z")
        await screens.shows("[zZ")
        await screens.press("escape", "5", "/", "z", "Z")
        await screens.shows("0 matching 'zz'", "zZ")
        await screens.press("enter", "z")
        await screens.shows("Open the run on the Train"), "and does what it says when nobody types"


def test_sentences_name_the_key_and_not_the_command(subtests, monkeypatch):
    monkeypatch.setattr("tui_trainer.ui.keymap.active_keymap", Keymap())
    for text, shown in (
        ("step 5: paused; resume with: tui-trainer ask chat resume", "step 5: paused; press p to resume"),
        ("before the first step; start with: tui-trainer resume a.b", "before the first step; press p to start"),
        ("saved; resume from it with `tui-trainer resume a`", "saved; resume from it with p on Runs"),
        ("`tui-trainer attach q` shows it, `tui-trainer stop q` ends it", "Enter on Runs shows it, S on Runs ends it"),
        ("run tui-trainer preview to see which tokens", "press v on Config to see which tokens"),
        ("why: tui-trainer doctor chat", "why: H on Train"),
        ("run `tui-trainer download a/b`, or copy it", "press d on Config, or copy it"),
        ("`tui-trainer tune --effective` measures it", "M on Config measures it"),
        ("run tui-trainer diagnose to see what to install", "press 1 (hardware) to see what to install"),
        # For another terminal, for the shell, the subject of a sentence, and what no key does.
        ("`tui-trainer attach` shows it again", None),
        ("copied: $ tui-trainer plan --set training.seed=5", None),
        ("uv pip install torch && uv run --no-sync tui-trainer diagnose", None),
        ("tui-trainer starts its processes itself", None),
        ("tui-trainer predict generates rows of similar length", None),
        ("`tui-trainer evaluate chat --data FILE` uses the rows", None),
    ):  # fmt: skip
        with subtests.test(text):
            assert name_keys_for_commands(text) == (shown or text)
    monkeypatch.setattr("tui_trainer.ui.keymap.active_keymap", written('"train.pause" = "z"\n'))
    assert name_keys_for_commands("paused; resume with: tui-trainer ask chat resume") == "paused; press z to resume"


@pytest.mark.full
@in_event_loop
async def test_notices_and_events_name_the_key():
    keymap = written('"train.pause" = "z"\n')
    async with opened(keymap, "4") as screens:
        screens.bench.run = run = NewsRun(trained(60), True)
        run.waiting = [PhaseChanged(phase="paused")]
        screens.bench.poll_run()
        await screens.shows("paused; press z to resume")
        screens.bench.show_notice("resume it with `tui-trainer resume q`")
        screens.app.draw()
        await screens.shows("resume it with p on Runs")
