"""The list of recipes: by task, those first that go with the user's model and data, the others with a reason."""

from __future__ import annotations

import json
import re

import pytest

from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.tasks import find_task
from tui_trainer.ui.screens.recipe_dialog import RecipeDialog

pytestmark = pytest.mark.full

LABELS, ANSWERS = find_task("sequence_classification").title, find_task("question_answering").title


@pytest.fixture
def labelled(tmp_path, monkeypatch) -> Request:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text((json.dumps({"text": "a sheep", "label": "animal"}) + "\n") * 9)
    return Request(shortcuts={"data.path": "rows.jsonl"})


def opened(asked: Request, size: tuple[int, int] = (120, 50)):
    return open_screens(asked, size=size, ready=lambda bench: bench.document)


def chooser(screens):
    dialog = screens.app.screen
    assert isinstance(dialog, RecipeDialog)
    return dialog


def titles(screens) -> list[str]:
    return [row for row in chooser(screens).list.rows if isinstance(row, str)]


async def settled(screens) -> str:
    await screens.shows("Choose a recipe")
    await screens.until(lambda: not chooser(screens).waiting)
    return screens.text


@in_event_loop
async def test_recipes_stand_below_their_tasks_and_those_that_do_not_go_with_the_data_come_last_and_say_why(labelled):
    async with opened(labelled) as screens:
        await screens.press("2", "p")
        await settled(screens)
        rows = chooser(screens).list.rows
        names = [row.name for row in rows if not isinstance(row, str)]
        assert sorted(names) == sorted(all_profiles("recipes")), "each once"
        groups = "".join("|" if isinstance(row, str) else "-+"[not chooser(screens).misfit(row.name)] for row in rows)
        assert re.fullmatch(r"(\|\++-*)+(\|-+)+", groups), "those that fit first, in a task and among the tasks"
        assert titles(screens).index(LABELS) < titles(screens).index(ANSWERS)
        await screens.press(*"chat-scratch")
        shown = await screens.shows("\u25b8 chat-scratch", "This recipe does not fit: no column holds conv")
        [line] = [line for line in shown.splitlines() if "\u25b8 chat-scratch" in line]
        assert "\u2717 no column holds conversations" in line
        await screens.press("tab")
        await settled(screens)
        assert not chooser(screens).misfit("chat-scratch"), "with its own data it can be learnt"


@in_event_loop
async def test_letters_narrow_the_list_and_enter_takes_the_recipe(labelled):
    async with opened(labelled) as screens:
        await screens.press("2", "p")
        await settled(screens)
        await screens.press(*"sentim", "k")
        # Letters that are keys elsewhere are letters here.
        await screens.until(lambda: chooser(screens).list.rows == [])
        await screens.shows("no matching recipes")
        await screens.press("enter")
        assert isinstance(screens.app.screen, RecipeDialog), "there is nothing to take"
        await screens.press("backspace")
        await screens.shows("\u25b8 tweet-sentiment", gone="chat-scratch")
        assert titles(screens) == [LABELS]
        await screens.press("ctrl+u")
        await screens.shows("\u25b8 tweet-sentiment", "docstring-topics", "Enter select")
        await screens.press(*"tags python", "enter")
        await screens.until(lambda: screens.bench.document.recipe_name == "python-entities")
        document = screens.bench.document
        assert document.unfitted.config.data.path == "rows.jsonl", "own values stay"
        await screens.press("p", "tab")
        await screens.shows("your own values are dropped")
        await screens.press("enter")
        await screens.until(lambda: document.unfitted.config.data.path != "rows.jsonl")


@in_event_loop
async def test_a_recipe_of_ones_own_that_cannot_be_used_says_why_in_the_list(labelled, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    (folder := tmp_path / "own" / "tui-trainer" / "profiles" / "recipes").mkdir(parents=True)
    (folder / "odd.toml").write_text('[task]\ntype = "nonsense"\n')
    (folder / "quick.toml").write_text('[training]\nlearning_rate = "quick"\n')
    (folder / "unknown.toml").write_text("[training]\nseeed = 3\n")
    async with opened(labelled) as screens:
        await screens.press("2", "p")
        await settled(screens)
        why = {name: chooser(screens).misfit(name) for name in ("odd", "quick", "unknown")}
        assert "nonsense" in why["odd"] and "is not valid for its setting" in why["quick"], why
        assert why["unknown"] == "unknown setting"
