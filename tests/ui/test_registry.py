"""One list of actions: keys, footer, help and list of commands agree on it, on every page."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from rich.cells import cell_len

from tests.advice.made_up import run_events
from tests.runs.journals import end, run_of, start, steps
from tests.ui.canned import CannedRun, open_canned, trained
from tests.ui.pictures import in_event_loop
from tui_trainer.ui.dialogs import footer_hints, hints_line
from tui_trainer.ui.keymap import ACTIONS, CHANGES_RUNS, FAILING_KEYS, PLACES, Action, Keymap, key_sign
from tui_trainer.ui.palette import actions_here
from tui_trainer.ui.spans import UNICODE, text_of


def key_problems(actions: Iterator[Action]) -> list[str]:
    """What is wrong with keys: none, one of two actions of a page, one of a page and of everywhere, one that fails."""
    problems, owners = [], {}
    for action in actions:
        problems += [f"{action.id} has no key"] * (not action.keys)
        for key in action.keys:
            problems += [f"{action.id}: {key} fails in terminals"] * (key in FAILING_KEYS)
            places = PLACES if action.place == "app" else ("app", action.place)
            problems += [f"{action.id} and {owners[place, key]}: {key}" for place in places if (place, key) in owners]
            owners[action.place, key] = action.id
    return problems


def test_every_action_has_a_key_of_its_own_that_terminals_pass_on():
    assert key_problems(iter(ACTIONS)) == []
    assert Keymap().problems == [] and Keymap().actions == list(ACTIONS)
    assert len({action.id for action in ACTIONS}) == len(ACTIONS) > 60
    # tmux takes Ctrl+B, GNU screen Ctrl+A, and zellij the others.
    taken = {f"ctrl+{letter}" for letter in "baptnhsogq"}
    assert not [action.id for action in ACTIONS if taken.issuperset(action.keys)]


# Of each letter that several screens have: what it means, and its labels.
MEANINGS = {
    "C": "compare runs, or classes: compare, scores",
    "M": "more than m or the last line has: effective batch, measure all, more",
    "S": "save, and not just that: save as, stop",
    "a": "take what is at the end: apply fix, latest steps",
    "c": "to the settings: new from config, open setting",
    "e": "write a text: note, open in $EDITOR",
    "h": "left: less, read left",
    "i": "take in from outside: import, install",
    "j": "down: down, newer",
    "k": "up: older, up",
    "l": "right: more, read right",
    "m": "measure: measure, tune",
    "o": "order, or only some: changed, open only, sort",
    "p": "pause and resume, or the list behind the screen: pause, processes, recipes, resume",
    "r": "again as it is: check again, refresh, reset",
    "v": "view: metric, preview",
    "w": "try: rehearse, try the model",
    "y": "copy: copy, copy path, copy report",
}  # fmt: skip


def test_a_letter_means_the_same_on_every_screen():
    labels: dict[str, set[str]] = {}
    for action in ACTIONS:
        if action.name not in ("first", "last"):
            for key in filter(str.isalpha, (key for key in action.keys if len(key) == 1)):
                labels.setdefault(key, set()).add(action.label)
    several = {key: ", ".join(sorted(found)) for key, found in labels.items() if len(found) > 1}
    assert several == {key: meaning.partition(": ")[2] for key, meaning in MEANINGS.items()}


@in_event_loop
async def test_last_line_and_commands_offer_what_can_be_done_on_every_page_and_each_does_something(
    program, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    swept = 0
    async with open_canned(size=(220, 60)) as screens:
        app = screens.app
        for is_alive in (False, True):
            screens.bench.run = CannedRun(trained(60), True) if is_alive else None
            for number, place in enumerate(PLACES[1:], 1):
                await screens.press(str(number))
                await screens.settled()
                offered = app.offered_actions
                ids = [action.id for action in sorted(offered, key=lambda one: one.footer_rank or 100)]
                assert ("app.start" in ids) != is_alive
                assert place != "train" or ("train.stop" in ids) == is_alive
                assert [command.do.args[1] for command in actions_here(app)] == ids
                line = screens.lines[-1]
                shown = [one for one in offered if f"{key_sign(one.keys[0])} " in line and one.footer_rank]
                assert len(shown) > 1 and line.endswith("? help")
                for action in shown:
                    if action.dots and action.name != "tune":
                        await screens.press(action.keys[0])
                        await screens.until(lambda: app.dialog)
                        await screens.press("escape")
                for action in ACTIONS:
                    owner = app if action.place == "app" else app.page
                    is_here = action.place in (place, "app") and not action.name.startswith("go_")
                    assert not is_here or callable(getattr(owner, f"action_{action.name}", None)), action.id
                    swept += is_here
    assert swept > 2 * len(ACTIONS)


@in_event_loop
async def test_the_command_behind_a_screen_and_behind_a_box_is_copied(tmp_path):
    run = run_of(tmp_path / "runs", "chat", start(20), *steps(1, 20), end(20))
    async with open_canned(size=(100, 30)) as screens:
        for keys, letters, command in (
            ("1", "diagnose", "tui-trainer diagnose"), ("2", "train", "tui-trainer train --set "),
            ("2", "plan", "tui-trainer plan --set "),
            ("3", "check", "tui-trainer check --set "), ("5", "attach", f"tui-trainer attach {run.root}"),
            ("5M", "attach", f"tui-trainer attach {run.root}"),
        ):  # fmt: skip
            await screens.press(*keys)
            await screens.settled()
            await screens.press("Y", *letters, "enter")
            await screens.until(lambda command=command: screens.app.clipboard.startswith(command))
            assert screens.bench.notice[0].startswith(f"copied (OSC 52): $ {command}")


@in_event_loop
async def test_a_read_only_view_refuses_every_action_that_changes_a_run():
    refused = [action for action in ACTIONS if action.id in CHANGES_RUNS]
    assert len(refused) == len(CHANGES_RUNS), "each is an action"
    async with open_canned(run=CannedRun(trained(60), True)) as screens:
        screens.bench.is_view = True
        for number, place in enumerate(PLACES[1:], 1):
            await screens.press(str(number))
            assert (await screens.settled()).startswith("view "), "instead of the name of the program"
            for action in refused:
                if action.place in ("app", place):
                    await screens.press(action.keys[0])
                    await screens.shows(f"{action.label}: this is a read-only view (attach --view)")
                    assert screens.app.dialog is None and action not in screens.app.offered_actions
        await screens.press("4", "H")
        await screens.shows("Doctor")
    events = run_events(plan={"lora_rank": 16, "learning_rate": 2e-4, "usual_learning_rate": 2e-4})
    async with open_canned(run=CannedRun(events, True)) as screens:
        await screens.press("4", "H")
        await screens.shows("consider training.learning_rate = 0.0003", gone="apply to the config")


def test_the_last_line_has_the_help_at_its_end_and_whole_keys_before_it_at_every_width():
    for width, place in product((60, 80, 200), PLACES[1:]):
        actions = [action for action in Keymap().actions if action.place in (place, "app")]
        hints = footer_hints(actions, lambda action: action.label, width)
        text = text_of([hints_line(hints, width, UNICODE)])
        assert cell_len(text) == width and text.endswith("? help"), text
        shown = text.removesuffix("? help").split("  ")
        assert len([one for one in shown if one.strip()]) >= 3
        labels = [f"{key_sign(hint.key)} {hint.label}" for hint in hints]
        assert all(one.strip() in labels for one in shown if one.strip())
