"""Dialogs as text and keys: questions, texts, and the help."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.events import Paste

from tests.ui.canned import CPU, open_canned
from tests.ui.pictures import in_event_loop
from tui_trainer.ui.dialogs import ChoiceDialog, TextDialog
from tui_trainer.ui.spans import ASCII


def box(screens) -> list[str]:
    """The lines of the dialog, between its frame."""
    region = screens.app.dialog.query_one("#box").region
    assert screens.app.dialog.region.contains_region(region), "it stays on the screen"
    rows = [line[region.x : region.right] for line in screens.lines[region.y + 1 : region.bottom - 1]]
    return [row.strip("|\u2502\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588 ") for row in rows]


@in_event_loop
async def test_a_question_closes_with_an_answer_or_without_and_stays_for_any_other_key():
    done: list[str] = []
    answers = [(one, words, lambda words=words: done.append(words)) for one, words in (("enter", "go on"), ("q", "q"))]
    async with open_canned(CPU, ASCII) as screens:
        for key, expected in (("enter", ["go on"]), ("q", ["q"]), ("escape", []), ("ctrl+q", [])):
            screens.app.open(ChoiceDialog("[bold]Sure?[/] [x", [[("There is something to ask.", "text")]], answers))
            first = await screens.shows("[bold]Sure?[/] [x", "There is something to ask.", "Enter go on", "Esc back")
            await screens.press("x", "up")
            assert screens.text == first and first.isascii()
            await screens.press(key)
            await screens.shows("? help", gone="something to ask")
            assert done == expected
            done.clear()
        for key, expected in (("enter", []), ("y", ["delete"])):
            screens.app.open(ChoiceDialog("Delete?", ["It is gone."], [("y", "delete", lambda: done.append("delete"))]))
            await screens.shows("y delete", "Enter/Esc back")
            await screens.press(key)
            await screens.shows("? help", gone="It is gone.")
            assert done == expected


@pytest.mark.full
@in_event_loop
async def test_a_question_of_many_long_lines_stays_on_the_screen_and_scrolls_with_its_keys_in_sight():
    lines = [[(f"line {n} " + "long " * 60, "text")] for n in range(30)]
    async with open_canned() as screens:
        for size in ((200, 50), (60, 20)):
            await screens.resize(*size)
            screens.app.open(ChoiceDialog("Sure?", lines, [("enter", "go on", lambda: None)]))
            await screens.shows("line 0 ", "Enter go on", gone="line 29")
            await screens.settled()
            first = box(screens)
            await screens.press("down")
            await screens.settled()
            assert box(screens)[:-3] == first[1:-2], "one line down"
            assert max(map(cell_len, first)) <= 100, "nobody reads lines of 200 cells"
            await screens.press("end")
            await screens.shows("line 29", "Enter go on", gone="line 0 ")
            await screens.press("escape")


@in_event_loop
async def test_a_text_is_edited_refused_with_the_reason_pasted_harmless_and_handed_over():
    got: list[str] = []

    def take(text: str) -> str:
        got.append(text)
        return "write the name of a file " * 9 if text == "k jtwo" else ""

    async with open_canned() as screens:
        screens.app.open(TextDialog("Save as", [[("A word \u6f22 about it.", "dim")]], "one two", take))
        await screens.shows("Save as", "about it.", "one two", "Enter ok", "Esc back")
        await screens.press("home", "k", "space", "ctrl+right", "ctrl+w", "j", "enter")
        await screens.shows("write the name")
        text = " ".join(box(screens))
        assert text.count("write the") > 1 and text.count("file") == 9, "the reason is wrapped and whole"
        await screens.press("end")
        screens.app.post_message(Paste("\x1b]0;owned\x07-one\r\n-two\n"))
        assert "\x1b" not in await screens.shows("owned")
        await screens.press("enter")
        await screens.shows("? help", gone="Save as")
        assert got[0] == "k jtwo" and got[1].startswith("k jtwo") and got[1].isprintable() and "-one" in got[1]
        screens.app.open(TextDialog("Save as", [], "x", lambda text: pytest.fail("it was left")))
        await screens.press("q")
        await screens.shows("xq"), "q is a letter here"
        await screens.press("escape")
        await screens.shows("? help", gone="Save as")
        for keys in (("2", "/"), ("5", "/"), (":",), ("n",)):
            await screens.press(*keys, *"one two", "ctrl+w", "ctrl+a", "x", "ctrl+e", "y")
            await screens.until(lambda: screens.app.focused.value == "xone y")
            await screens.press("ctrl+u", "z", "ctrl+a", "ctrl+k", "end")
            await screens.until(lambda: screens.app.focused.value == "")
            await screens.press("escape")
