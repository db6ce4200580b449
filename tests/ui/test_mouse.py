"""What the mouse does: screens, keys of the last line and answers are clicked; a selection is copied."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.combinations import first_by_default
from tests.ui.pictures import picture, screen_text
from tui_trainer.config.load import Request
from tui_trainer.hardware.probe import probe
from tui_trainer.ui import app as app_module
from tui_trainer.ui import terminal
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import ChoiceDialog
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@asynccontextmanager
async def opened(size=(80, 24)):
    bench = Workbench(lambda: Request(profile="quickstart"), probe(), UNICODE)
    app = TrainerApp(bench, Keymap())
    async with app.run_test(size=size) as pilot:
        while not bench.findings:
            await pilot.pause(0.02)
        yield app, pilot
    assert not app.crash


async def click(app, pilot, text: str) -> None:
    """Click on the first place of a text."""
    await pilot.pause()
    for y, line in enumerate(picture(app)):
        if (x := line.find(text)) >= 0:
            await pilot.click(offset=(x + 1, y))
            await pilot.pause()
            return
    raise AssertionError(f"{text!r} is not on the screen:\n{screen_text(app)}")


@pytest.mark.parametrize("size", first_by_default([(80, 24), (200, 50)]))
def test_every_screen_is_reached_by_its_title(size):
    async def look() -> None:
        async with opened(size) as (app, pilot):
            for number, title in enumerate(("2 Config", "3 Checklist", "4 Train", "5 Runs", "1 Hardware"), 1):
                await click(app, pilot, title)
                assert app.bench.current == number % 5

    asyncio.run(look())


def test_a_key_in_the_last_line_is_pressed_by_a_click_and_so_is_an_answer():
    async def look() -> None:
        async with opened() as (app, pilot):
            await click(app, pilot, "t start")
            assert isinstance(app.screen, ChoiceDialog)
            await click(app, pilot, "Esc back")
            assert app.dialog is None
            await click(app, pilot, "? help")
            assert "Go to the next screen." in screen_text(app) or "Scroll up." in screen_text(app)
            await click(app, pilot, "Esc close")
            await click(app, pilot, "t start")
            await click(app, pilot, "c change settings")
            assert app.bench.current == 1 and app.dialog is None

    asyncio.run(look())


def test_what_is_selected_is_copied_and_without_a_selection_ctrl_c_only_says_how_to_leave(monkeypatch):
    copied = []
    monkeypatch.setattr(TrainerApp, "copy_to_clipboard", lambda self, text: copied.append(text))

    async def look() -> None:
        async with opened() as (app, pilot):
            await pilot.press("ctrl+c")
            await pilot.pause()
            assert "q leaves" in screen_text(app) and not copied
            await pilot.mouse_down(offset=(0, 2))
            await pilot.hover(offset=(20, 2))
            await pilot.mouse_up(offset=(20, 2))
            await pilot.pause()
            await pilot.press("ctrl+c")
            assert len(copied) == 1 and copied[0] and copied[0].split()[0] in screen_text(app)

    asyncio.run(look())


@pytest.mark.parametrize(
    ("answer", "has"), [("echo 1", True), ("echo 0", False), ("exit 1", False), ("sleep 9", False)]
)
def test_tmux_has_a_mouse_only_where_its_user_said_so(tmp_path, monkeypatch, answer, has):
    program = tmp_path / "tmux"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert terminal.has_mouse({"TMUX": "/tmp/tmux-0/default,1,0"}) is has
    assert terminal.has_mouse({}) is True


def test_a_terminal_that_is_not_looked_at_is_told_when_a_run_ended(monkeypatch):
    written: list[str] = []

    class Run:
        is_interrupted, is_ours, refusals = False, True, ()
        folder = type("Folder", (), {"name": "a\x1b]run"})()
        state = type("State", (), {"status": "finished"})()
        alive = True

        def poll(self):
            return False

    async def look() -> None:
        async with opened() as (app, _):
            monkeypatch.setattr(app_module, "PatientDriver", type(app._driver))
            monkeypatch.setattr(app._driver, "write", written.append)
            app.bench.run = run = Run()
            for focused in (True, False):
                run.alive, app.app_focus = True, focused
                app._notify_of_the_end()
                run.alive = False
                app._notify_of_the_end()
                app._notify_of_the_end()
            told = [text for text in written if text.startswith("\x1b]9;")]
            assert told == ["\x1b]9;a\u241b]run: finished\x07"], "once, and only where nobody looks"
            app.bench.run = None

    asyncio.run(look())


def test_a_click_on_a_sentence_presses_no_key_that_it_covers():
    async def look() -> None:
        async with opened() as (app, pilot):
            app.bench.tell("a sentence over all the keys of the last line")
            app.draw()
            for word in ("sentence", "keys", "line"):
                await click(app, pilot, word)
                assert app.dialog is None and app.bench.notice is not None
            await click(app, pilot, "? help")
            assert app.dialog is not None

    asyncio.run(look())


def test_a_path_that_is_no_utf_8_is_copied_with_question_marks(monkeypatch):
    async def look() -> None:
        async with opened() as (app, _):
            app.copy_to_clipboard("/data/caf\udce9/run")
            assert app.clipboard == "/data/caf?/run"

    asyncio.run(look())
