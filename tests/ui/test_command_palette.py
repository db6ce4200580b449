"""The command palette: it finds everything that has a name, the best match first, and goes there."""

from __future__ import annotations

from threading import Event

import pytest

from tests.runs.journals import end, run_of, start, steps
from tests.ui.canned import open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.ui import app as app_module
from tui_trainer.ui.palette import Command, actions_here, all_commands, matching_commands


def test_whole_words_come_before_parts_and_names_before_descriptions_which_scattered_letters_do_not_find():
    texts = {"Guide: Undoing": "", "Config: redo": "Redo what undo undid", "Config: undo": "", "Setting: a.undone": ""}
    commands = [Command(name, text, list) for name, text in texts.items()]
    for words, names in (("undo", ("Config: undo", "Guide: Undoing", "Setting: a.undone", "Config: redo")),
                         ("UN DONE", ("Setting: a.undone",)), ("done", ("Setting: a.undone",)),
                         ("did", ()), ("uno", ()), ("rdo", ())):  # fmt: skip
        assert tuple(one.name for one, _ in matching_commands(commands, words)) == names, words
    assert matching_commands([Command("Setting: a.b", "", list, is_elsewhere=True)], "") == []


@in_event_loop
async def test_what_people_type_finds_the_right_thing_first():
    async with open_canned(size=(100, 30)) as screens:
        commands = all_commands(screens.app)
        for words, first in (
            ("mouse", "Everywhere: mouse"), ("gguf", "Train: export"), ("resume", "Runs: resume"),
            ("batch size", "Setting: training.effective_batch_size"), ("rank", "Setting: tuning.r"),
            ("lora r", "Setting: tuning.r"), ("context", "Setting: data.max_length"), ("dark", "Everywhere: theme"),
            ("context length", "Setting: data.max_length"), ("epochs", "Setting: training.num_train_epochs"),
            ("learning rate", "Setting: training.learning_rate"), ("lr", "Setting: training.learning_rate"),
            ("exit", "Everywhere: quit"), ("bf16", "Setting: training.mixed_precision"), ("stop", "Train: stop"),
            ("precision", "Setting: training.mixed_precision"), ("max_length", "Setting: data.max_length"),
            ("dry run", "Config: rehearse"), ("seed", "Setting: data.seed"), ("optimizer", "Setting: training.optim"),
        ):  # fmt: skip
            assert matching_commands(commands, words)[0][0].name == first, words
        await screens.press("5", ":", *"resume")
        await screens.shows("Runs: resume", "no run is selected", "Not possible now: no run is")
        await screens.press("enter")
        await screens.shows("resume: no run is selected")


@in_event_loop
async def test_letters_find_actions_the_best_first_and_enter_does_the_chosen_one():
    async with open_canned() as screens:
        await screens.press("2")
        await screens.shows("Enter edit")

        def ids(letters: str) -> list[str]:
            return [command.do.args[1] for command, _ in matching_commands(actions_here(screens.app), letters)]

        offered = sorted(screens.app.offered_actions, key=lambda one: one.footer_rank or 100)
        assert ids("") == [action.id for action in offered], "those of the last line come first"
        for letters, first in (("undo", "config.undo"), ("UNDO", "config.undo"), ("recipes", "config.recipe"),
                               ("sav as", "config.save_as"), ("clipboard", "config.copy")):  # fmt: skip
            assert first not in [one.id for one in offered] or ids(letters)[0] == first
        assert ids("zzqqxx") == []

        await screens.press(":", *"recipes")
        await screens.shows("Choose a recipe; you see first what it would change.")
        await screens.press("enter")
        await screens.shows("Choose a recipe", "\u2500\u2500 Changes ")


async def take(screens, letters: str, first: str) -> None:
    await screens.press("ctrl+p", *letters)
    await screens.shows(first)
    await screens.settled()
    # The best is the first of the list, below the frame of what is typed.
    rows = [line for line in screens.lines if ": " in line]
    assert first in rows[0], screens.text
    await screens.press("enter")


@pytest.mark.full
@in_event_loop
async def test_settings_actions_recipes_runs_themes_and_guides_are_found_and_lead_there(tmp_path):
    run_of(tmp_path / "runs", "chat-20261120", start(20), *steps(1, 20), end(20))
    async with open_canned(size=(100, 30)) as screens:
        for letters, first, *words in (
            ("learning_rate", "Setting: training.learning_rate", "Enter edit", "\u2500\u2500 training.learning_rate"),
            ("recipe topics", "Recipe: ", "Choose a recipe"),
            ("checklist open only", "Checklist: open only", "open only"),
            ("chat-2026", "Run: chat-20261120", "chat-20261120  finished"),
            ("theme dracula", "Theme: dracula"),
            ("guide exit codes", "Guide: For scripts: Exit codes", "Esc close", "For scripts"),
        ):
            await screens.press("1")
            await screens.shows("computes")
            await take(screens, letters, first)
            await screens.shows(*words)
            await screens.press("escape")
        await screens.until(lambda: screens.app.theme == "dracula")


@pytest.mark.full
@in_event_loop
async def test_a_disk_that_does_not_answer_takes_no_other_kind_away(monkeypatch):
    answers = Event()
    monkeypatch.setattr("tui_trainer.runs.registry.known_runs", lambda: answers.wait(1500) and [])
    async with open_canned() as screens:
        await screens.press("ctrl+p", *"theme nord")
        await screens.shows("Theme: nord")
        await screens.press("enter")
        await screens.until(lambda: screens.app.theme == "nord")
        answers.set()


@pytest.mark.full
@in_event_loop
async def test_keys_that_come_at_once_find_and_do_it_and_nothing_is_done_without_a_match():
    async with open_canned() as screens:
        await screens.press("2")
        await screens.shows("Enter edit")
        for key in (":", "pageup", "x", "escape", ":", "pagedown", "pagedown", "enter", "enter"):
            screens.app.simulate_key(key)
        await screens.settled()
        await screens.press("escape", "escape", ":", *"zzqqxx", "pageup", "pagedown", "enter")
        await screens.shows("No matches")
        await screens.press("escape")
        assert screens.app.dialog is None


@pytest.mark.full
@in_event_loop
async def test_a_theme_is_shown_while_it_is_chosen_and_the_one_before_comes_back():
    async with open_canned() as screens:
        before = screens.app.theme
        for last, expected in (("escape", before), ("enter", "nord")):
            await screens.press("T", *"nord")
            await screens.shows("nord")
            await screens.until(lambda: screens.app.theme == "nord")
            await screens.press(last)
            await screens.until(lambda expected=expected: screens.app.theme == expected)


@pytest.mark.full
@in_event_loop
async def test_it_opens_while_a_toast_is_shown_which_does_not_lie_on_its_keys(monkeypatch):
    monkeypatch.setattr(app_module, "_NEWS_SECONDS", 1e6)
    async with open_canned() as screens:
        for page in range(2):
            screens.bench.go(page)
            screens.bench.report_end(page + 1, f"news {page}", "good")
            await screens.shows(f"news {page}")
            await screens.press("ctrl+p", *"undo")
            await screens.shows("Search actions", "undo", "Enter select", gone="news")
            await screens.press("escape")
            await screens.until(lambda: screens.app.dialog is None)
        assert screens.bench.unseen_pages == {2}, "each was seen afterwards but for the last"


@pytest.mark.full
@in_event_loop
async def test_the_last_news_that_come_while_a_dialog_is_open_are_shown_behind_it(monkeypatch):
    monkeypatch.setattr(app_module, "_NEWS_SECONDS", 1e6)
    async with open_canned() as screens:
        await screens.press("2", "?")
        await screens.shows("Edit the value in place.")
        for number in range(5):
            screens.bench.report_end(4, f"chat is evaluated, {number}", "good")
            screens.app.tick()
        assert "chat is evaluated" not in await screens.settled()
        await screens.press("escape")
        await screens.until(lambda: screens.app.dialog is None)
        await screens.ticks("evaluated, 2", "evaluated, 4", "5 Runs new", gone="evaluated, 1")
