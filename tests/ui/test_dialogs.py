"""Dialogs as lines and keys: questions, texts, the help, and the list of commands."""

from __future__ import annotations

import pytest
from tui_trainer.ui.overlay import centred

from tui_trainer.ui.actions import ACTIONS
from tui_trainer.ui.dialogs import ChoiceDialog, Command, Dialog, HelpDialog, Palette, TextDialog
from tui_trainer.ui.glyphs import ASCII, UNICODE
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import fit, text_of, width_of

SMALL, LARGE = (80, 22), (200, 48)


def drawn(dialog: Dialog, size=SMALL, glyphs=UNICODE) -> str:
    """The box as text; every line has the width of the first, and the box fits."""
    lines = dialog.draw(*size, glyphs)
    assert len(lines) <= size[1]
    assert {width_of(line) for line in lines} == {width_of(lines[0])} and width_of(lines[0]) <= size[0]
    below = [fit([("\u6f22" * (size[0] // 2), "text")], size[0])] * size[1]
    assert {width_of(line) for line in centred(below, lines, size[0])} == {size[0]}
    return text_of(lines)


def typed(dialog: Dialog, *keys: str) -> bool:
    """Press keys as the application hands them on; what the last one said."""
    said = True
    for key in keys:
        said = dialog.press({" ": "space"}.get(key, key), key if len(key) == 1 else None)
    return said


# ------------------------------------------------------------------ questions


def question() -> tuple[ChoiceDialog, list[str]]:
    done: list[str] = []
    answers = [("enter", "go on", lambda: done.append("go on")), ("S", "save", lambda: done.append("save"))]
    return ChoiceDialog("Sure?", [[("There is something to ask.", "text")]], answers), done


@pytest.mark.parametrize(("key", "does"), [("enter", "go on"), ("S", "save")])
def test_a_question_closes_with_the_answer_that_was_pressed(key, does):
    dialog, done = question()
    assert typed(dialog, key) is False
    assert done == [does]


@pytest.mark.parametrize("key", ["escape", "q", "ctrl+q"])
def test_a_question_that_is_left_does_nothing(key):
    dialog, done = question()
    assert typed(dialog, key) is False
    assert done == []


@pytest.mark.parametrize("key", ["x", "s", "up", "space"])
def test_a_question_stays_for_a_key_that_is_no_answer(key):
    dialog, done = question()
    assert typed(dialog, key) is True
    assert done == []


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
@pytest.mark.parametrize("size", [SMALL, LARGE, (60, 14)])
def test_a_question_shows_its_title_its_lines_and_every_key(size, glyphs):
    text = drawn(question()[0], size, glyphs)
    for words in ("Sure?", "There is something to ask.", "Enter go on", "S save", "Esc back"):
        assert words in text
    assert not glyphs.ascii or text.isascii()


def test_a_question_of_many_long_lines_is_cut_to_the_screen_and_keeps_its_keys():
    lines = [[(f"line {n} " + "long " * 60, "text")] for n in range(60)]
    text = drawn(ChoiceDialog("Sure?", lines, [("enter", "go on", lambda: None)]))
    assert "Enter go on" in text and "line 0 " in text and "\u2026" in text and "line 59" not in text


# ---------------------------------------------------------------------- texts


def test_a_text_is_handed_over_and_the_dialog_closes():
    got: list[str] = []
    dialog = TextDialog("Save as", [], "/data/a.toml", lambda text: got.append(text) or "")
    assert typed(dialog, *["backspace"] * 6, *"b c.toml") is True
    assert typed(dialog, "enter") is False
    assert got == ["/data/b c.toml"]


def test_a_text_that_will_not_do_stays_with_the_reason_until_it_does():
    dialog = TextDialog("Save as", [[("why", "dim")]], "", lambda text: "" if text else "write the name of a file " * 9)
    assert typed(dialog, "enter") is True
    assert drawn(dialog).count("write the") > 1, "the reason is wrapped and whole"
    assert drawn(dialog).count("file") == 9
    assert typed(dialog, "x") is True and typed(dialog, "enter") is False


def test_leaving_a_text_hands_nothing_over():
    dialog = TextDialog("Save as", [], "x", lambda text: pytest.fail("it was left"))
    assert typed(dialog, "q") is True, "q is a letter here"
    assert typed(dialog, "escape") is False


def test_a_paste_goes_into_the_text_on_one_line_and_harmless():
    got: list[str] = []
    dialog = TextDialog("Save as", [], "", lambda text: got.append(text) or "")
    dialog.paste("\x1b]0;owned\x07one\r\ntwo\n")
    assert "\x1b" not in drawn(dialog)
    typed(dialog, "enter")
    assert len(got) == 1 and got[0].isprintable() and "one" in got[0] and "two" in got[0]


# ----------------------------------------------------------------------- help


def all_of(dialog: Dialog, size=SMALL, glyphs=UNICODE) -> str:
    """All pages of a help dialog, from its first line to its last."""
    texts = [drawn(dialog, size, glyphs)]
    for _ in range(200):
        typed(dialog, "down")
        text = drawn(dialog, size, glyphs)
        if text == texts[-1]:
            return "\n".join(texts)
        texts.append(text)
    raise AssertionError("it has no end")


@pytest.mark.parametrize("place", ["hardware", "config", "checklist", "train"])
def test_the_help_can_be_scrolled_to_every_action_at_80x24(place):
    text = " ".join(all_of(HelpDialog(Keymap(), place, False)).split())
    swept = 0
    for action in ACTIONS:
        if action.place in (place, "app"):
            # Long sentences are wrapped: their first words stand on one line.
            assert " ".join(action.help.split()[:4]) in text, action.id
            swept += 1
    assert swept >= 20


def test_the_help_scrolls_by_lines_and_pages_and_stops_at_both_ends():
    dialog = HelpDialog(Keymap(), "config", False)
    top = drawn(dialog)
    typed(dialog, "up")
    assert drawn(dialog) == top
    typed(dialog, "down")
    second = drawn(dialog)
    assert second.splitlines()[1] == top.splitlines()[2], "one line down"
    typed(dialog, "k")
    assert drawn(dialog) == top
    typed(dialog, "G")
    end = drawn(dialog)
    typed(dialog, "j", "pagedown")
    assert drawn(dialog) == end
    assert "Leave." in end and "Leave." not in top
    typed(dialog, "g")
    assert drawn(dialog) == top
    typed(dialog, "pagedown", "pageup")
    assert drawn(dialog) == top


def test_the_help_fits_on_a_large_screen_without_scrolling():
    dialog = HelpDialog(Keymap(), "hardware", False)
    text = drawn(dialog, LARGE)
    typed(dialog, "down")
    assert drawn(dialog, LARGE) == text


@pytest.mark.parametrize("key", ["escape", "q", "enter", "?", "f1", "ctrl+q"])
def test_the_help_closes_with_what_opened_it_and_with_what_leaves(key):
    dialog = HelpDialog(Keymap(), "train", False)
    drawn(dialog)
    assert typed(dialog, key) is False


def test_the_help_is_ascii_where_only_that_may_appear():
    text = all_of(HelpDialog(Keymap(), "train", True), glyphs=ASCII)
    assert text.isascii() and "Up k" in text


# ------------------------------------------------------------------- commands


def palette() -> tuple[Palette, list[str]]:
    done: list[str] = []
    shown = [action for action in ACTIONS if action.place in ("app", "config")]
    return Palette([Command(action=one, run=lambda one=one: done.append(one.id)) for one in shown], False), done


def test_without_letters_the_commands_are_all_there_in_order():
    dialog, _ = palette()
    assert [one.action.id for one in dialog.found] == [one.id for one in ACTIONS if one.place in ("app", "config")]


@pytest.mark.parametrize(
    ("letters", "first"),
    [("undo", "config.undo"), ("presets", "config.recipe"), ("svas", "config.save_as"), ("UNDO", "config.undo")],
)
def test_some_letters_find_a_command_and_enter_does_it(letters, first):
    dialog, done = palette()
    typed(dialog, *letters)
    assert dialog.found[0].action.id == first
    assert typed(dialog, "enter") is False
    assert done == [first]


def test_letters_that_nothing_has_are_said_and_enter_does_nothing():
    dialog, done = palette()
    typed(dialog, *"zzqqxx")
    assert "no action has these letters" in drawn(dialog)
    assert typed(dialog, "enter") is True and done == []
    typed(dialog, "ctrl+u", *"undo")
    assert "Take the last change back" in drawn(dialog)


def test_the_cursor_of_the_commands_stays_on_the_screen_and_in_the_list():
    dialog, done = palette()
    typed(dialog, "up")
    assert dialog.found[0].action.help[:20] in drawn(dialog)
    for _ in range(100):
        typed(dialog, "down")
        drawn(dialog)
    assert "copy" in drawn(dialog), "scrolled to the last one"
    typed(dialog, "enter")
    assert done == ["config.copy" if ACTIONS[0].place == "app" else "app.quit"]


def test_new_letters_begin_at_the_best_match_again():
    dialog, done = palette()
    typed(dialog, "down", "down", "pagedown", *"undo", "enter")
    assert done == ["config.undo"]


@pytest.mark.parametrize("key", ["escape", "ctrl+p"])
def test_the_commands_close_without_doing_anything(key):
    dialog, done = palette()
    typed(dialog, *"undo")
    assert typed(dialog, key) is False and done == []


def test_the_box_of_the_commands_keeps_its_size_while_letters_are_typed():
    dialog, _ = palette()
    sizes = {len(dialog.draw(*SMALL, UNICODE))}
    for letter in "undoxxx":
        typed(dialog, letter)
        sizes.add(len(dialog.draw(*SMALL, UNICODE)))
    assert len(sizes) == 1
