"""What holds on every screen: windows that are too small, dialogs while they change, keys that nobody may take."""

from __future__ import annotations

import asyncio
import gc
from contextlib import asynccontextmanager, nullcontext

import pytest
from textual.command import CommandPalette

from tests.ui.pictures import picture, screen_text
from tui_trainer.config.load import Request
from tui_trainer.hardware.probe import probe
from tui_trainer.ui import app as app_module
from tui_trainer.ui import main
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import ChoiceDialog, HelpDialog
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import ASCII, UNICODE
from tui_trainer.ui.workbench import Workbench


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@asynccontextmanager
async def opened(size: tuple[int, int] = (80, 24), glyphs=UNICODE):
    """The application with its config read."""
    app = TrainerApp(Workbench(lambda: Request(profile="quickstart"), probe(), glyphs), Keymap())
    async with app.run_test(size=size) as pilot:
        while not app.bench.findings:
            await pilot.pause(0.02)
        yield app, pilot
    assert not app.crash


def test_a_window_that_becomes_too_small_says_so_and_gives_everything_back_when_it_grows():
    async def look() -> None:
        async with opened() as (app, pilot):
            await pilot.press("2", "?")
            for width, height in ((60, 20), (80, 23), (79, 24), (20, 3)):
                await pilot.resize_terminal(width, height)
                await pilot.pause()
                lines = [line for line in picture(app) if line]
                assert lines == ["needs 80x24", f"this is {width}x{height}"]
                await pilot.press("1", "t", "escape", "ctrl+p", "x")
            await pilot.resize_terminal(120, 35)
            await pilot.pause()
            assert app.bench.current == 1 and isinstance(app.dialog, HelpDialog), "keys went nowhere"
            assert "To the setting above." in screen_text(app)
            await pilot.press("escape")
            await pilot.pause()
            assert "max_length" in screen_text(app) and "needs 80x24" not in screen_text(app)

    asyncio.run(look())


def test_what_comes_while_the_window_is_too_small_is_there_when_it_grows():
    async def look() -> None:
        async with opened(size=(60, 20)) as (app, pilot):
            assert not app.takes_text
            app.bench.go(3)
            app.open(ChoiceDialog("Sure?", [], [("y", "yes", lambda: pytest.fail("nobody saw it"))]))
            await pilot.pause()
            assert "needs 80x24" in screen_text(app) and "Sure?" not in screen_text(app) and app.takes_text
            await pilot.press("y")
            await pilot.resize_terminal(80, 24)
            await pilot.pause()
            assert "Sure?" in screen_text(app) and "4 Train" in screen_text(app)
            await pilot.press("escape")
            assert app.dialog is None and app.page.place == "train"

    asyncio.run(look())


@pytest.mark.parametrize("glyphs", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_a_dialog_stays_on_the_screen_while_the_window_changes(glyphs):
    async def look() -> None:
        async with opened(size=(200, 50), glyphs=glyphs) as (app, pilot):
            await pilot.press("t")
            for size in ((80, 24), (120, 35), (60, 20), (200, 50)):
                await pilot.resize_terminal(*size)
                await pilot.pause()
                shown = screen_text(app)
                assert size == (60, 20) or all(words in shown for words in ("Start quickstart?", "Enter start", "Esc"))
                assert not glyphs.ascii or shown.isascii()

    asyncio.run(look())


def test_keys_of_the_screens_do_nothing_below_a_dialog_or_the_commands():
    async def look() -> None:
        async with opened() as (app, pilot):
            await pilot.press("2", "?")
            help_dialog = app.dialog
            await pilot.press("3", "ctrl+p", ":", "t", "tab", "ctrl+c", "ctrl+l")
            assert app.dialog is help_dialog and app.bench.current == 1 and app.bench.notice is None
            await pilot.press("escape", ":")
            assert isinstance(app.screen, CommandPalette)
            await pilot.press("3", "tab", "ctrl+q", "ctrl+p")
            assert isinstance(app.screen, CommandPalette) and app.bench.current == 1 and app.is_running
            await pilot.press("escape")
            assert app.screen is app.page

    asyncio.run(look())


def test_a_command_chosen_among_the_commands_is_carried_out_on_its_screen():
    async def look() -> None:
        async with opened() as (app, pilot):
            await pilot.press("2", "colon", *"check again")
            await app.workers.wait_for_complete()
            await pilot.press("escape", ":", *"checklist")
            await app.workers.wait_for_complete()
            await pilot.pause()
            await pilot.press("enter")
            await pilot.pause()
            assert app.page.place == "checklist" and "finding" in screen_text(app)

    asyncio.run(look())


def test_typed_signs_are_question_marks_where_only_ascii_may_appear():
    async def look() -> None:
        async with opened(glyphs=ASCII) as (app, pilot):
            await pilot.press(":", "\u00fc", "\u6f22")
            await pilot.pause(0.6)
            assert "? ??" in screen_text(app).replace("???", "? ??") and screen_text(app).isascii()
            await pilot.press("escape", "2", "/", "\u00fc")
            assert screen_text(app).isascii()

    asyncio.run(look())


def test_the_whole_screen_is_sent_again_when_it_is_asked_for(monkeypatch):
    async def look() -> None:
        async with opened() as (app, pilot):
            await pilot.press("1")
            await pilot.pause()
            written: list[str] = []
            monkeypatch.setattr(type(app._driver), "is_headless", False)
            monkeypatch.setattr(app._driver, "write", written.append)
            await pilot.press("ctrl+l")
            await pilot.pause()
            sent = "".join(written)
            assert all(line.split()[0] in sent for line in picture(app) if line), "every line"
            assert len(sent) > 24 * 60

    asyncio.run(look())


@pytest.mark.parametrize("fails", [False, True])
def test_garbage_is_looked_for_again_once_the_screens_are_shown_or_have_failed(monkeypatch, tmp_path, fails):
    seen = []

    def run(app: TrainerApp, mouse: bool) -> None:
        seen.append(gc.isenabled())
        if fails:
            raise RuntimeError
        app.when_shown()
        seen.append(gc.isenabled())

    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))
    monkeypatch.setattr(TrainerApp, "run", run)
    monkeypatch.setattr(main, "refuse_unfit", lambda *_: None)
    monkeypatch.setattr(main, "TerminalGuard", lambda _: nullcontext())
    try:
        assert main.run_screens() == int(fails)
        assert gc.isenabled() and seen == ([False] if fails else [False, True])
    finally:
        gc.enable()
        gc.unfreeze()


def test_a_screen_is_made_when_it_is_first_shown():
    async def look() -> None:
        async with opened() as (app, pilot):
            assert set(app.pages) == {"hardware"}
            train = app.pages["train"]
            assert not train.is_mounted
            app.bench.go(3)
            await pilot.pause()
            assert app.screen is train and set(app.pages) == {"hardware", "train"}
            assert train.query_one("#columns").styles.layout.name == "horizontal", "with its own style sheet"
            assert train.query_one("#result").has_class("-absent") and not train.query_one("#result").display

    asyncio.run(look())
