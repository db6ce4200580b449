"""Dialogs as text and keys: questions, texts, and the help."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from textual.events import Paste

from tests.combinations import first_by_default
from tests.ui.bare_app import all_pages, seen
from tui_trainer.ui.actions import ACTIONS
from tui_trainer.ui.dialogs import ChoiceDialog, HelpDialog, TextDialog
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.run_dialogs import DoctorDialog

SIZES = ((80, 24), (200, 50), (60, 20))


def inside(text: str) -> list[str]:
    """The lines between the frame and the keys, without the scroll bar."""
    return [line.strip("\u2502\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588 ") for line in text.splitlines()[1:-3]]


# ------------------------------------------------------------------ questions


def question(*more: str) -> tuple[ChoiceDialog, list[str]]:
    done: list[str] = []
    answers = [("enter", "go on", lambda: done.append("go on")), ("S", "save", lambda: done.append("save"))]
    answers += [(key, "also", lambda key=key: done.append(key)) for key in more]
    return ChoiceDialog("Sure?", [[("There is something to ask.", "text")]], answers), done


@pytest.mark.parametrize(("key", "does"), [("enter", "go on"), ("S", "save")])
def test_a_question_closes_with_the_answer_that_was_pressed(key, does):
    dialog, done = question()
    assert seen(dialog, key)[-1] == ""
    assert done == [does]


@pytest.mark.parametrize("key", ["q", "k", "question_mark"])
def test_an_answer_may_have_a_key_that_closes_or_scrolls_other_dialogs(key):
    dialog, done = question("?" if key == "question_mark" else key)
    assert seen(dialog, key)[-1] == ""
    assert done == ["?" if key == "question_mark" else key]


@pytest.mark.parametrize("key", ["escape", "q", "ctrl+q"])
def test_a_question_that_is_left_does_nothing(key):
    dialog, done = question()
    assert seen(dialog, key)[-1] == ""
    assert done == []


@pytest.mark.parametrize("key", ["x", "s", "up", "space"])
def test_a_question_stays_for_a_key_that_is_no_answer(key):
    dialog, done = question()
    before, after = seen(dialog, key)
    assert before == after != ""
    assert done == []


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES)
def test_a_question_shows_its_title_its_lines_and_every_key(size, ascii_only):
    (text,) = seen(question()[0], size=size, ascii_only=ascii_only)
    for words in ("Sure?", "There is something to ask.", "Enter go on", "S save", "Esc back"):
        assert words in text
    assert not ascii_only or text.isascii()


@pytest.mark.parametrize("size", SIZES)
def test_a_question_of_many_long_lines_stays_on_the_screen_and_scrolls_with_its_keys_in_sight(size):
    lines = [[(f"line {n} " + "long " * 60, "text")] for n in range(30)]
    dialog = ChoiceDialog("Sure?", lines, [("enter", "go on", lambda: None)])
    first, second, last = seen(dialog, "down", "end", size=size)
    assert "line 0 " in first and "line 29" not in first and "line 29" in last and "line 0 " not in last
    assert all("Enter go on" in text for text in (first, second, last))
    assert inside(first)[1:] == inside(second)[:-1], "one line down"
    assert max(map(cell_len, first.splitlines())) <= 100, "nobody reads lines of 200 cells"


def test_a_heading_is_no_markup():
    (text,) = seen(ChoiceDialog("[bold]a[/] [x", [], []))
    assert "[bold]a[/] [x" in text


# ---------------------------------------------------------------------- texts


def test_a_text_is_handed_over_and_the_dialog_closes():
    got: list[str] = []
    dialog = TextDialog("Save as", [], "/data/a.toml", lambda text: got.append(text) or "")
    texts = seen(dialog, *["backspace"] * 6, *"b c.toml", "enter")
    assert "/data/a.toml" in texts[0] and "/data/b c.toml" in texts[-2] and texts[-1] == ""
    assert got == ["/data/b c.toml"]


def test_a_text_that_will_not_do_stays_with_the_reason_until_it_does():
    dialog = TextDialog("Save as", [[("why", "dim")]], "", lambda text: "" if text else "write the name of a file " * 9)
    _, refused, *_, last = seen(dialog, "enter", "x", "enter")
    assert refused.count("write the") > 1 and refused.count("file") == 9, "the reason is wrapped and whole"
    assert last == ""


def test_leaving_a_text_hands_nothing_over():
    dialog = TextDialog("Save as", [], "x", lambda text: pytest.fail("it was left"))
    _, typed, left = seen(dialog, "q", "escape")
    assert "xq" in typed, "q is a letter here"
    assert left == ""


def test_a_text_is_edited_where_its_cursor_is():
    got: list[str] = []
    dialog = TextDialog("Save as", [], "one two", lambda text: got.append(text) or "")
    seen(dialog, "home", *"k ", "ctrl+right", "ctrl+w", *"j", "enter")
    assert got == ["k jtwo"]


def test_a_paste_goes_into_the_text_on_one_line_and_harmless():
    got: list[str] = []
    dialog = TextDialog("Save as", [], "", lambda text: got.append(text) or "")
    _, pasted, _ = seen(dialog, Paste("\x1b]0;owned\x07one\r\ntwo\n"), "enter")
    assert "\x1b" not in pasted and "owned" in pasted
    assert len(got) == 1 and got[0].isprintable() and "one" in got[0] and "two" in got[0]


@pytest.mark.parametrize("ascii_only", [False, True], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", SIZES)
def test_a_text_shows_its_heading_and_its_keys_at_every_size(size, ascii_only):
    dialog = TextDialog("Save as", [[("A word \u6f22 about it.", "dim")]], "caf\u00e9", lambda text: "")
    (text,) = seen(dialog, size=size, ascii_only=ascii_only)
    assert all(words in text for words in ("Save as", "about it.", "caf", "Enter ok", "Esc back"))
    assert text.isascii() == ascii_only


# ----------------------------------------------------------------------- help


@pytest.mark.parametrize("place", first_by_default(["config", "hardware", "checklist", "train"]))
def test_the_help_can_be_scrolled_to_every_action_at_80x24(place):
    text = " ".join(all_pages(HelpDialog(Keymap(), place)).replace("\u2502", " ").split())
    swept = 0
    for action in ACTIONS:
        if action.place in (place, "app"):
            # Long sentences are wrapped: their first words stand on one line.
            assert " ".join(action.help.split()[:4]) in text, action.id
            swept += 1
    assert swept >= 20


def test_the_help_scrolls_by_lines_and_pages_and_stops_at_both_ends():
    keys = ["up", "down", "k", "G", "j", "pagedown", "g", "pagedown", "pageup"]
    top, up, second, back, end, *still, begin, page, top_again = seen(HelpDialog(Keymap(), "config"), *keys)
    assert up == top and inside(top)[1:] == inside(second)[:-1], "one line down"
    assert back == top and still == [end, end] and "Leave." in end and "Leave." not in top
    assert begin == top_again == top != page


def test_the_help_fits_on_a_large_screen_without_scrolling():
    before, after = seen(HelpDialog(Keymap(), "hardware"), "down", size=(200, 50))
    assert before == after != ""


@pytest.mark.parametrize("key", ["escape", "q", "enter", "?", "f1", "ctrl+q"])
def test_the_help_closes_with_what_opened_it_and_with_what_leaves(key):
    assert seen(HelpDialog(Keymap(), "train"), key)[-1] == ""


def test_the_help_is_ascii_where_only_that_may_appear():
    text = all_pages(HelpDialog(Keymap(), "train"), ascii_only=True)
    assert text.isascii() and "Up k" in text


def test_the_doctors_keys_are_those_of_what_he_says_now():
    run = SimpleNamespace(doctor=SimpleNamespace(verdict=None))
    dialog = DoctorDialog(None, run)
    assert dialog.keys == (("escape", "close"),)
    run.doctor.verdict = SimpleNamespace(fix={"training.seed": 1})
    assert dialog.keys == (("a", "apply to the config"), ("escape", "close"))
