"""The Checklist screen as widgets: keys, clicks and the wheel, and findings that come anew."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest
from textual.events import MouseScrollDown

from tests.ui.pictures import in_event_loop, picture, screen_text
from tests.ui.test_checklist_view import many
from tests.ui.test_snapshots import CPU, CannedBench
from tui_trainer.bench import config_process
from tui_trainer.config.load import Request
from tui_trainer.ui import app as app_module
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.widgets.lists import LineList


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


class FakeMeasuring:
    """A process as it is told to be."""

    def __init__(self, loaded, names, gpu) -> None:
        self.names, self.part, self.reason, self.exit_code = tuple(names), "loading", "", None
        self.alive, self.is_cancelled, self.check = True, False, ""

    def poll(self) -> bool:
        ended = self.exit_code is not None
        self.alive = not ended
        return ended

    def cancel(self) -> None:
        self.is_cancelled, self.exit_code = True, 3


@pytest.fixture
def measuring(monkeypatch):
    begun: list[FakeMeasuring] = []

    def begin(loaded, names, gpu):
        begun.append(FakeMeasuring(loaded, names, gpu))
        return begun[-1]

    monkeypatch.setattr(config_process, "GainProcess", begin)
    return begun


@in_event_loop
async def test_m_measures_the_chosen_finding_and_the_list_stays_usable(measuring, monkeypatch):
    async with opened() as (app, pilot):
        asked_anew = []
        monkeypatch.setattr(app.bench, "config_changed", lambda: asked_anew.append(True))
        await pilot.press("m")
        assert not measuring and "measure: there is nothing to switch here" in picture(app)[-1]
        await pilot.press("down", "down", "m")
        assert [one.names for one in measuring] == [("check 03",)]
        app.bench.measuring.poll()
        measuring[0].part = measuring[0].check = "check 03"
        measuring[0].part = "check 03: round 1 of 3: as it is"
        app.tick()
        await pilot.pause()
        assert "measuring check 03: round 1 of 3: as it is" in screen_text(app) and asked_anew
        await pilot.press("down", "m")
        assert app.page.model.cursor == 3 and len(measuring) == 1
        await pilot.press("up", "m")
        assert "one at a time: Esc ends what is being measured" in picture(app)[-1] and len(measuring) == 1
        asked_anew.clear()
        measuring[0].part, measuring[0].exit_code = "check 03: 1.80 times as fast", 0
        app.tick()
        await pilot.pause()
        assert asked_anew and "check 03: 1.80 times as fast" in picture(app)[-1]
        assert "measuring" not in "".join(picture(app)[:-1])


@in_event_loop
async def test_capital_m_measures_all_and_escape_ends_it(measuring):
    async with opened() as (app, pilot):
        assert "checklist.cancel" not in [action.id for action in app.offered_actions]
        await pilot.press("M")
        assert measuring[0].names == ("all",)
        assert "checklist.cancel" in [action.id for action in app.offered_actions]
        await pilot.press("escape")
        app.tick()
        await pilot.pause()
        assert measuring[0].is_cancelled and "what was measured until then is kept" in picture(app)[-1]


@in_event_loop
async def test_beside_a_run_nothing_is_measured_and_a_run_that_begins_ends_it(measuring, monkeypatch):
    async with opened() as (app, pilot):
        await pilot.press("M")
        monkeypatch.setattr(type(app.bench), "run_is_alive", True)
        monkeypatch.setattr(app.bench, "poll_run", lambda: False)
        app.bench.measuring.poll()
        assert measuring[0].is_cancelled and "a run trains: both would be slower" in app.bench.notice[0]
        app.bench.notice = None
        await pilot.press("M")
        assert len(measuring) == 1 and "measure all: a run trains: both would be slower" in app.bench.notice[0]


@in_event_loop
async def test_nothing_is_measured_beside_a_rehearsal(measuring):
    async with opened() as (app, pilot):
        app.bench.rehearsals.process = SimpleNamespace(alive=True, poll=lambda: False, cancel=print, let_go=print)
        await pilot.press("M")
        assert not measuring and "measure all: a rehearsal goes on: one at a time" in app.bench.notice[0]


@in_event_loop
async def test_a_measuring_that_is_refused_is_told_in_its_own_words(measuring):
    async with opened() as (app, pilot):
        await pilot.press("M")
        measuring[0].reason, measuring[0].exit_code = "chat trains on this machine: both would be slower", 2
        app.bench.measuring.poll()
        assert app.bench.notice == ("not measured: chat trains on this machine: both would be slower", "bad")


@in_event_loop
async def test_a_config_that_cannot_be_checked_is_not_said_to_be_looked_at():
    async with opened() as (app, pilot):
        app.bench.document.loaded = None
        app.bench._checked([])
        await pilot.pause()
        assert "looking" not in screen_text(app) and "the config has a problem: 2 shows it" in screen_text(app)


@in_event_loop
async def test_no_fix_at_all_is_no_change():
    async with opened() as (app, _):
        app.page._apply_all((app.bench.document.revision, {}))
        assert app.bench.notice[0] == "no fix can be applied" and not app.bench.document.can_undo
