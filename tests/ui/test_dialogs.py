"""Dialogs as text and keys: questions, texts, and the help."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from textual.events import Paste

from tests.ui.bare_app import all_pages, seen
from tui_trainer.ui.dialogs import ChoiceDialog, TextDialog
from tui_trainer.ui.help import HelpDialog
from tui_trainer.ui.keymap import ACTIONS, Keymap
from tui_trainer.ui.run_dialogs import DoctorDialog


def inside(text: str) -> list[str]:
    """The lines between the frame and the keys, without the scroll bar."""
    return [line.strip("\u2502\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588 ") for line in text.splitlines()[1:-3]]


@pytest.mark.parametrize(("key", "does"), [("enter", ["go on"]), ("q", ["q"]), ("escape", []), ("ctrl+q", [])])
def test_a_question_closes_with_an_answer_or_without_and_stays_for_any_other_key(key, does):
    done: list[str] = []
    answers = [(one, words, lambda words=words: done.append(words)) for one, words in (("enter", "go on"), ("q", "q"))]
    dialog = ChoiceDialog("[bold]Sure?[/] [x", [[("There is something to ask.", "text")]], answers)
    first, *others, last = seen(dialog, "x", "up", key, ascii_only=key == "q")
    for words in ("[bold]Sure?[/] [x", "There is something to ask.", "Enter go on", "q q", "Esc back"):
        assert words in first
    assert others == [first] * 2 and last == "" and done == does
    assert key != "q" or first.isascii()


@pytest.mark.parametrize("size", [(200, 50), (60, 20)])
def test_a_question_of_many_long_lines_stays_on_the_screen_and_scrolls_with_its_keys_in_sight(size):
    lines = [[(f"line {n} " + "long " * 60, "text")] for n in range(30)]
    dialog = ChoiceDialog("Sure?", lines, [("enter", "go on", lambda: None)])
    first, second, last = seen(dialog, "down", "end", size=size)
    assert "line 0 " in first and "line 29" not in first and "line 29" in last and "line 0 " not in last
    assert all("Enter go on" in text for text in (first, second, last))
    assert inside(first)[1:] == inside(second)[:-1], "one line down"
    assert max(map(cell_len, first.splitlines())) <= 100, "nobody reads lines of 200 cells"


def test_a_text_is_edited_refused_with_the_reason_pasted_harmless_and_handed_over():
    got: list[str] = []

    def take(text: str) -> str:
        got.append(text)
        return "write the name of a file " * 9 if text == "k jtwo" else ""

    dialog = TextDialog("Save as", [[("A word \u6f22 about it.", "dim")]], "one two", take)
    paste = Paste("\x1b]0;owned\x07-one\r\n-two\n")
    texts = seen(dialog, "home", "k", "space", "ctrl+right", "ctrl+w", "j", "enter", "end", paste, "enter")
    assert all(words in texts[0] for words in ("Save as", "about it.", "one two", "Enter ok", "Esc back"))
    assert texts[7].count("write the") > 1 and texts[7].count("file") == 9, "the reason is wrapped and whole"
    assert "\x1b" not in texts[9] and "owned" in texts[9] and texts[-1] == ""
    assert got[0] == "k jtwo" and got[1].startswith("k jtwo") and got[1].isprintable() and "-one" in got[1]


def test_leaving_a_text_hands_nothing_over():
    dialog = TextDialog("Save as", [], "x", lambda text: pytest.fail("it was left"))
    _, typed, left = seen(dialog, "q", "escape")
    assert "xq" in typed, "q is a letter here"
    assert left == ""


def test_the_help_can_be_scrolled_to_every_action_and_closes_with_what_opened_it():
    for place in ("config", "runs"):
        text = " ".join(all_pages(HelpDialog(Keymap(), place), ascii_only=True).replace("|", " ").split())
        swept = 0
        for action in ACTIONS:
            if action.place in (place, "app"):
                # Long sentences are wrapped: their first words stand on one line.
                assert " ".join(action.help.split()[:4]) in text, action.id
                swept += 1
        assert swept >= 20 and text.isascii() and "Up k" in text
    top, second, back, end, still, closed = seen(HelpDialog(Keymap(), "config"), "j", "k", "G", "pagedown", "?")
    assert inside(top)[1:] == inside(second)[:-1] and back == top and still == end
    assert "Leave." not in top and closed == ""


def test_the_doctors_keys_are_those_of_what_he_says_now():
    run = SimpleNamespace(doctor=SimpleNamespace(verdict=None))
    dialog = DoctorDialog(None, run)
    assert dialog.keys == (("escape", "close"),)
    run.doctor.verdict = SimpleNamespace(fix={"training.seed": 1})
    assert dialog.keys == (("a", "apply to the config"), ("escape", "close"))
