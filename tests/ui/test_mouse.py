"""What the mouse does on every screen: titles, keys of the last line and answers are clicked; a selection is copied."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.ui.canned import CPU, DONE, CannedBench, CannedRun, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.ui import terminal
from tui_trainer.ui.spans import UNICODE


def bench() -> CannedBench:
    return CannedBench(lambda: Request(), CPU, UNICODE)


@in_event_loop
async def test_titles_keys_of_the_last_line_and_answers_are_clicked():
    async with open_screens(bench=bench()) as screens:
        for title, words in (("2 Config", "Enter edit"), ("3 Checklist", "finding"), ("4 Train", "Press t to start"),
                             ("5 Runs", "no runs yet"), ("1 Hardware", "processor")):  # fmt: skip
            await screens.click(title)
            await screens.shows(words)
        await screens.click("t start")
        await screens.click("Esc back")
        await screens.shows("? help", gone="Esc back")
        await screens.click("? help")
        await screens.shows("Read the machine again")
        await screens.click("Esc close")
        await screens.shows("t start", gone="Esc close")
        screens.bench.show_notice("a sentence over all the keys of the last line")
        screens.app.draw()
        for word in ("sentence", "keys", "line"):
            await screens.click(word)
            assert "a sentence over all" in await screens.settled(), "no key below it is pressed"
        await screens.click("? help")
        await screens.click("Esc close")
        await screens.click("t start")
        await screens.click("c change settings")
        await screens.shows("Enter edit", gone="change settings")


@pytest.mark.full
@in_event_loop
async def test_each_sign_in_a_dialogs_last_line_is_the_key_that_it_names():
    async with open_screens(bench=bench()) as screens:
        await screens.click("? help")
        await screens.shows("Keys", "all guides")
        keys = screens.app.screen
        await screens.click("choose  \u2190\u2192")
        await screens.until(lambda: keys._chosen == 1)
        line = next(y for y, line in enumerate(screens.lines) if "\u2191\u2193 choose" in line)
        await screens.pilot.click(offset=(screens.lines[line].index("\u2191\u2193"), line))
        await screens.until(lambda: keys._chosen == 0)
        await screens.click("/ all guides")
        await screens.shows("Search the guides")


@pytest.mark.full
@in_event_loop
async def test_keys_that_a_text_names_are_pressed_by_a_click_on_their_words(monkeypatch, tmp_path):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    async with open_screens(bench=bench()) as screens:
        screens.bench.has_no_runs = True
        screens.app.draw()
        await screens.click("shows the keys and the guides")
        await screens.shows("Read the machine again")
        await screens.click("Esc close")
        await screens.click("4 Train")
        await screens.click("You see the plan first")
        await screens.click("Esc back")
        await screens.shows("Press t to start", gone="Esc back")
        screens.bench.run = CannedRun([*trained(3), DONE], False)
        screens.app.draw()
        await screens.click("x export")
        await screens.shows("Export quickstart-")
        await screens.click("Esc close")
        await screens.click("a text you type")
        await screens.shows("Try the model")


@pytest.mark.full
@in_event_loop
async def test_a_click_marks_a_curve_and_two_draw_it_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "home"))
    canned = bench()
    canned.run = CannedRun(trained(148), True)
    async with open_screens(bench=canned, size=(120, 35)) as screens:
        await screens.click("4 Train")
        await screens.click("V curves")
        await screens.click("learning rate")
        await screens.shows("\u25cf learning rate", "\u25cf loss")
        await screens.click("Enter draw  Space")
        await screens.shows("\u2500\u2500 loss ", "\u2500\u2500 learning rate ", gone="Enter draw")
        await screens.click("V curves")
        await screens.click("tokens/s", times=2)
        await screens.shows("\u2500\u2500 tokens/s ", gone="\u2500\u2500 loss ")


@pytest.mark.full
@in_event_loop
async def test_what_is_folded_away_and_a_group_of_settings_are_reached_by_a_click():
    async with open_screens(bench=bench(), size=(200, 50)) as screens:
        await screens.click("2 Config")
        await screens.click("+ all")
        await screens.shows("setting, all, ", gone="+ all")
        await screens.click("setting, all, ")
        await screens.shows("setting, all, ")
        await screens.press("+", "G")
        await screens.click("+ shows them")
        await screens.shows("setting, all, ", gone="+ shows them")
        await screens.press("+")
        await screens.shows("+ all")
        await screens.click("Evaluation")
        await screens.shows("evaluation.eval_steps")


@pytest.mark.full
@in_event_loop
async def test_what_is_selected_is_copied_and_without_a_selection_ctrl_c_only_says_how_to_leave():
    async with open_screens(bench=bench()) as screens:
        await screens.press("ctrl+c")
        await screens.shows("q quits")
        assert not screens.app.clipboard
        await screens.pilot.mouse_down(offset=(0, 2))
        await screens.pilot.hover(offset=(20, 2))
        await screens.pilot.mouse_up(offset=(20, 2))
        await screens.press("ctrl+c")
        await screens.shows("copied")
        assert screens.app.clipboard.split()[0] in screens.text
        screens.app.copy_to_clipboard("/data/caf\udce9/run")
        assert screens.app.clipboard == "/data/caf?/run", "a path that is no UTF-8"


@pytest.mark.parametrize(("answer", "has"), [("echo 1", True), ("echo 0", False), ("exit 1", False)])
def test_tmux_has_a_mouse_only_where_its_user_said_so(tmp_path, monkeypatch, answer, has):
    program = tmp_path / "tmux"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert terminal.has_mouse({"TMUX": "/tmp/tmux-0/default,1,0"}) is has
    assert terminal.has_mouse({}) is True


@in_event_loop
async def test_tmux_without_its_mouse_is_reported(tmp_path, monkeypatch):
    program = tmp_path / "tmux"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    async with open_screens(bench=bench()) as screens:
        screens.app.terminal = SimpleNamespace(switch_mouse=lambda: True, write=str)
        for answer, words in ((0, "tmux passes no clicks while its option `mouse` is off"), (1, "clicks work here: F")):
            program.write_text(f"#!/bin/sh\necho {answer}\n")
            program.chmod(0o755)
            await screens.press("F")
            await screens.shows(words)


def test_unicode_is_for_terminals_that_show_it(subtests):
    for shows_it, environment in (
        (True, {}), (True, {"LANG": "de_DE.UTF-8", "TERM": "xterm"}), (False, {"TERM": "linux", "LANG": "en_US.UTF-8"}),
        (False, {"LANG": "C", "LC_CTYPE": "C.UTF-8"}), (True, {"LC_CTYPE": "C.UTF-8"}), (False, {"LC_ALL": "C"}),
    ):  # fmt: skip
        with subtests.test(str(environment)):
            assert terminal.speaks_unicode(environment) is shows_it


@pytest.mark.full
@in_event_loop
async def test_a_terminal_that_is_not_looked_at_is_reported_once_when_a_run_ended(monkeypatch):
    written: list[str] = []
    async with open_screens(bench=bench()) as screens:
        app = screens.app
        app.terminal = SimpleNamespace(write=written.append)
        screens.bench.run = run = CannedRun(trained(3), True)
        for focused in (True, False):
            run.alive, app.app_focus = True, focused
            app.tick()
            run.alive = False
            app.tick()
            app.tick()
        told = [text for text in written if text.startswith("\x1b]9;")]
        assert told == ["\x1b]9;quickstart-1802: training\x07"], "once, and only where nobody looks"
