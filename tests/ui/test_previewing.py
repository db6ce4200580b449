"""The preview on the Config screen: made in the background, told how far it is, given up when it is closed."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace

import pytest

from tests.previews import PREVIEW
from tests.ui.bare_app import BareApp, seen
from tests.ui.pictures import screen_text
from tui_trainer.config.load import Request
from tui_trainer.errors import DataError
from tui_trainer.launching import preview as launching
from tui_trainer.ui import app as app_module
from tui_trainer.ui.actions import ACTIONS
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.screens.config import ConfigPage
from tui_trainer.ui.screens.config_dialogs import PREVIEW as WORK
from tui_trainer.ui.screens.config_dialogs import PreviewDialog
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench

SIZES = ((80, 24), (200, 50))


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


class Loose:
    """As much of a workbench as a dialog that is shown outside of the program."""

    plan, glyphs = None, UNICODE
    background = SimpleNamespace(do=lambda *_: None)


class Made(PreviewDialog):
    """A dialog whose preview is there at once."""

    def __init__(self) -> None:
        super().__init__(Loose(), None)
        self._preview = PREVIEW


@pytest.mark.parametrize("size", SIZES)
def test_samples_are_gone_through_forwards_and_backwards(size):
    first, *others = seen(Made(), "n", "n", "p", size=size)
    assert "sample 1 of 2" in first and "37 padding" in first
    for text, wanted in zip(others, ("2 of 2", "1 of 2", "2 of 2"), strict=True):
        assert f"sample {wanted}" in text


def test_trained_tokens_are_marked_with_and_without_colour():
    assert "\u27e6 An animal.\u27e8<eos>\u27e9\u27e7" in seen(Made())[0]
    assert "[[ An animal.{<eos>}]]" in seen(Made(), ascii_only=True)[0]
    spans = [span for line in Made()._sample_lines(PREVIEW, 80, UNICODE) for span in line]
    assert ("\u27e6 An animal.", "good") in spans and ("\u27e8<eos>\u27e9", "accent") in spans
    assert not [one for one, _ in spans if "\x1b" in one]


def test_numbers_about_all_rows_are_one_key_away_and_scroll():
    keys = ["a", *["pagedown"] * 3, *["up"] * 40, "a"]
    _, first, *others, samples = seen(Made(), *keys, size=(80, 14))
    assert "900 to train, 90 held out, 20 left out" in first and "sample 1" not in first
    assert "note: the conversations" not in first
    assert "note: the conversations" in others[2] and "900 to train" not in others[2]
    assert "900 to train" in others[-1] and "sample 1 of 2" in samples


def test_another_sample_is_shown_from_its_beginning():
    text = seen(Made(), "down", "down", "n", size=(80, 10))
    assert "sample 1" not in text[2] and "sample 2 of 2" in text[3]


def test_how_far_the_work_is_and_why_it_was_refused_is_told():
    async def look() -> None:
        dialog = PreviewDialog(Loose(), None)
        app = BareApp(dialog)
        async with app.run_test(size=SIZES[0]) as pilot:
            await pilot.pause()
            assert "starting ..." in app.seen
            unknown = dialog.by_clock()
            dialog._hear("tokenising", 30.0, 120.0, "characters")
            assert dialog.by_clock() != unknown, "it is drawn at the next tick"
            dialog.redraw()
            await pilot.pause()
            assert "tokenising, 30 of 120 characters" in app.seen and "give up" in app.seen
            dialog._made(("rows.jsonl, line 9: the text is empty",))
            await pilot.pause()
            assert "rows.jsonl, line 9: the text is empty" in app.seen and "close" in app.seen

    asyncio.run(look())


def with_app(look):
    """Runs `look(app, pilot)` with a config on the table."""
    from tui_trainer.hardware.probe import probe

    async def run() -> None:
        bench = Workbench(lambda: Request(profile="quickstart"), probe(), UNICODE)
        app = TrainerApp(bench, Keymap())
        async with app.run_test(size=(80, 24)) as pilot:
            while not bench.findings:
                await pilot.pause(0.02)
            await pilot.press("2")
            await look(app, pilot)
        assert not app.crash

    asyncio.run(run())


async def until(pilot, true) -> None:
    for _ in range(3000):
        if true():
            return
        await pilot.pause(0.02)
    raise AssertionError("it did not come")


def test_the_screen_takes_keys_while_the_preview_is_made_and_closing_gives_it_up(monkeypatch):
    began, go_on, given_up = threading.Event(), threading.Event(), threading.Event()

    def slow(loaded, count, progress, *, gpu):
        progress("tokenising", 1.0, 4.0, "characters")
        began.set()
        assert go_on.wait(60)
        try:
            progress("tokenising", 2.0, 4.0, "characters")
        except Exception:
            given_up.set()
            raise
        return PREVIEW

    monkeypatch.setattr(launching, "make_preview", slow)

    async def look(app, pilot):
        await pilot.press("v")
        await until(pilot, began.is_set)
        app.draw()
        await pilot.pause()
        assert "tokenising, 1 of 4 characters" in screen_text(app)
        await pilot.press("escape")
        assert app.dialog is None and not given_up.is_set(), "the key did not wait for the work"
        await pilot.press("down")
        go_on.set()
        await until(pilot, lambda: not app.bench.background.is_busy(WORK))
        assert given_up.is_set() and app.dialog is None and "sample 1" not in screen_text(app)

    with_app(look)


def test_what_is_wrong_with_the_data_stands_in_the_box(monkeypatch):
    def refuse(loaded, count, progress, *, gpu):
        raise DataError("the text is empty", where="rows.jsonl, line 9")

    monkeypatch.setattr(launching, "make_preview", refuse)

    async def look(app, pilot):
        await pilot.press("v")
        await until(pilot, lambda: "line 9: the text is empty" in screen_text(app))

    with_app(look)


def test_the_preview_of_the_quickstart_makes_the_plan_exact(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))

    async def look(app, pilot):
        assert not app.bench.plan.train_rows.exact
        await pilot.press("v")
        await until(pilot, lambda: "129 tokens, 128 trained (99%), +0 padding" in screen_text(app))
        assert "sample 1 of 16" in screen_text(app)
        await pilot.press("n")
        assert "sample 2 of 16" in screen_text(app)
        await until(pilot, lambda: app.bench.plan is not None and app.bench.plan.train_rows.exact)
        await pilot.press("q")
        assert app.dialog is None

    with_app(look)


def test_settings_that_cannot_be_used_have_no_preview():
    action = next(action for action in ACTIONS if action.id == "config.preview")
    page = ConfigPage(SimpleNamespace(glyphs=UNICODE, document=None))
    assert page.refusal(action)
    for loaded, problems, wanted in ((None, (), False), ("config", ("wrong",), False), ("config", (), True)):
        page.bench.document = SimpleNamespace(loaded=loaded, own_problems=problems)
        assert (not page.refusal(action)) == wanted
