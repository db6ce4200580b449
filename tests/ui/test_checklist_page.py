"""The Checklist screen as widgets: keys, clicks and the wheel, and findings that come anew."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.events import MouseScrollDown

from tests.ui.pictures import in_event_loop, picture, screen_text
from tests.ui.test_checklist_view import many
from tests.ui.test_snapshots import CPU, CannedBench
from tui_trainer.config.load import Request
from tui_trainer.ui import app as app_module
from tui_trainer.ui.glyphs import UNICODE
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.widgets.line_list import LineList


@pytest.fixture(autouse=True)
def no_clock(monkeypatch):
    monkeypatch.setattr(app_module, "TICK_SECONDS", 1e6)


@asynccontextmanager
async def opened(size=(80, 24), findings=None):
    """The application with these findings on the screen."""
    app = app_module.TrainerApp(CannedBench(lambda: Request(), CPU, UNICODE), Keymap())
    async with app.run_test(size=size) as pilot:
        while app.bench.plan is None:
            await pilot.pause()
        app.bench._checked(many() if findings is None else findings)
        await pilot.press("3")
        yield app, pilot
    assert not app.crash


def pointed(app) -> str:
    """The title of the line with the pointer, without the mark."""
    found = [line for line in picture(app) if line.startswith(UNICODE.pointer)]
    assert len(found) == 1
    return found[0][4:].lstrip()


@in_event_loop
async def test_keys_move_the_choice_and_the_finding_follows():
    async with opened() as (app, pilot):
        assert pointed(app).startswith("Title of check 07")
        await pilot.press("j", "down")
        assert pointed(app).startswith("Title of check 03")
        assert "fix    training.weight_decay: 0.0 → 0.01" in screen_text(app)
        await pilot.press("pagedown")
        assert app.page.model.cursor == 2 + 10 and "4-13 of 36" in screen_text(app)
        await pilot.press("end", "j")
        assert app.page.model.cursor == 35 and "27-36 of 36" in screen_text(app)
        assert pointed(app).startswith("Title of check 01")
        await pilot.press("g", "k")
        assert app.page.model.cursor == 0 and "1-10 of 36" in screen_text(app)


@in_event_loop
async def test_a_moved_choice_sends_two_stretches_of_the_list_and_no_more(monkeypatch):
    async with opened() as (_, pilot):
        refreshed = []
        real = LineList.refresh
        monkeypatch.setattr(LineList, "refresh", lambda self, *regions, **how: (
            refreshed.append((regions, how)), real(self, *regions, **how))[1])  # fmt: skip
        await pilot.press("down")
        regions = [region for some, how in refreshed for region in some if not how]
        assert [region.y for region in regions] == [0, 1] and sum(region.width for region in regions) < 50
        assert all(some for some, how in refreshed if not any(how.values()))


@in_event_loop
async def test_a_click_chooses_and_names_the_key_of_the_fix():
    async with opened() as (app, pilot):
        await pilot.click(LineList, offset=(20, 2))
        assert pointed(app).startswith("Title of check 03")
        assert "a applies: training.weight_decay = 0.01" in picture(app)[-1]
        await pilot.click(LineList, offset=(20, 4))
        assert app.page.model.cursor == 4


@in_event_loop
async def test_enter_names_the_key_of_the_fix():
    async with opened() as (app, pilot):
        await pilot.press("enter")
        assert "show fix: there is no fix to apply" in picture(app)[-1]
        assert "checklist.show_fix" not in [action.id for action in app.offered_actions]
        await pilot.press("down", "down", "enter")
        assert "checklist.show_fix" in [action.id for action in app.offered_actions], "in the palette too"
        assert "a applies: training.weight_decay = 0.01" in picture(app)[-1]


@in_event_loop
async def test_the_wheel_scrolls_the_list_and_leaves_the_choice():
    async with opened() as (app, pilot):
        for _ in range(4):
            await pilot._post_mouse_events([MouseScrollDown], LineList)
        await pilot.pause()
        assert "13-22 of 36" in screen_text(app) and app.page.model.cursor == 0
        await pilot.click(LineList, offset=(20, 1))
        assert app.page.model.cursor == 13


@in_event_loop
async def test_the_same_check_stays_chosen_when_findings_come_anew():
    async with opened() as (app, pilot):
        await pilot.press("down", "down")
        mended = [
            replace(one, verdict=replace(one.verdict, status="pass", fix=None)) if one.name == "check 03" else one
            for one in many()
        ]
        app.bench._checked(mended)
        app.draw()
        await pilot.pause()
        assert pointed(app).startswith("Title of check 03") and "✓ pass" in screen_text(app)
        await pilot.press("o")
        assert "check 03" not in screen_text(app) and "only open" in screen_text(app)
        await pilot.press("o")
        assert pointed(app).startswith("Title of check 03")
        await pilot.press("r")
        assert app.page.model.cursor == 0


@in_event_loop
async def test_a_finding_that_does_not_fit_says_so_and_scrolls():
    long = replace(many()[5], verdict=replace(many()[5].verdict, details=tuple(f"detail {n}" for n in range(20))))
    async with opened(findings=[long]) as (app, pilot):
        assert "more below" in screen_text(app) and "detail 19" not in screen_text(app)
        app.page._finding.scroll_lines(1_000)
        await pilot.pause()
        assert "detail 19" in screen_text(app) and "above" in screen_text(app)
        await pilot.resize_terminal(200, 50)
        await pilot.pause()
        assert "detail 0" in screen_text(app) and "detail 19" in screen_text(app)


@in_event_loop
async def test_wide_screens_have_the_finding_beside_the_list():
    for width, beside in ((119, False), (120, True)):
        async with opened((width, 33)) as (app, _):
            line = next(line for line in picture(app) if "── checks" in line)
            assert ("── finding" in line) == beside
