"""The Checklist screen: keys, clicks and the wheel, findings that come anew, and gains that are measured."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from textual.events import MouseScrollDown

from tests.ui.canned import CannedRun, open_canned, trained
from tests.ui.pictures import in_event_loop
from tui_trainer.advice.checklist import Finding
from tui_trainer.advice.contract import Rule, Verdict
from tui_trainer.advice.measured_gains import Gain
from tui_trainer.config.changes import Change
from tui_trainer.ui.spans import UNICODE

pytestmark = pytest.mark.full


def finding(name: str, status: str = "pass", order: int = 0, **changes) -> Finding:
    rule = Rule(
        name=name,
        order=order,
        title=f"Title of {name}",
        why="Because it is so.",
        published_gain="2x faster (arXiv:1234.56789)",
        settings=("training.weight_decay",),
        group="Speed" if order < 8 else "Data",
    )
    evidence = f"{name} takes 12 of 34 seconds"
    fix = {"training.weight_decay": 0.01} if status == "warn" else None
    verdict = Verdict(**{"status": status, "evidence": evidence, "fix": fix} | changes)
    old = tuple(Change(key=key, old=0.0, new=new) for key, new in (fix or {}).items())
    return Finding(rule=rule, verdict=verdict, changes=old)


def many() -> list[Finding]:
    """The worst of them are 07 (an error), 05 (fails) and 03 (a warning, with a fix); 01 does not apply."""
    statuses = ["pass", "n/a", "pass", "warn", "pass", "fail", "pass", "error"] + ["pass"] * 28
    return [finding(f"check {n:02}", status, n) for n, status in enumerate(statuses)]


@asynccontextmanager
async def shown(size=(80, 24), findings=None):
    """The screen with these findings."""
    async with open_canned(size=size) as screens:
        screens.bench._checked(many() if findings is None else findings)
        await screens.press("3")
        await screens.shows("finding")
        yield screens


def pointed(screens) -> str:
    """The title of the line with the pointer, without the mark."""
    (line,) = [line for line in screens.lines if line.startswith(UNICODE.pointer)]
    return line[4:].lstrip()


@in_event_loop
async def test_the_worst_comes_first_and_the_finding_follows_keys_clicks_and_the_wheel():
    async with shown() as screens:
        assert pointed(screens).startswith("Title of check 07")
        assert "3 Checklist 2 fail" in screens.text and "1-8 of 36" in screens.text
        assert "32 pass   1 warn   1 fail   1 n/a   1 error" in screens.text
        rows = [line[2:24] for line in screens.lines if "Title of check" in line]
        assert [line.strip() for line in (screens.lines[3], screens.lines[12])] == ["Speed", "Data"]
        assert rows[:4] == ["?  Title of check 07  ", "\u2717  Title of check 05  ", "!  Title of check 03  ",
                            "\u2713  Title of check 00  "]  # fmt: skip
        await screens.press("a")
        await screens.shows("apply fix: this check has no fix to apply")
        await screens.press("j", "down")
        fix = "fix    training.weight_decay: 0.0 \u2192 0.01"
        await screens.shows(
            "! warn",
            "check 03 takes 12 of 34 seconds",
            fix,
            "why    Because it is so.",
            "not measured yet",
            "now    training.weight_decay = 0.",
        )
        await screens.press("enter")
        await screens.shows("\u256d\u2500 Finding", fix, "Because it is so.", "a apply fix", "c open setting")
        await screens.press("c")
        await screens.shows("weight_decay \u2500", "Enter edit", gone="Finding")
        await screens.press("3", "pagedown")
        await screens.shows("5-13 of 36")
        await screens.press("end", "j")
        await screens.shows("27-36 of 36")
        assert pointed(screens).startswith("Title of check 35")
        await screens.press("g", "k")
        await screens.shows("1-8 of 36")

        for _ in range(4):
            await screens.pilot._post_mouse_events([MouseScrollDown], offset=(20, 6))
        await screens.shows("11-20 of 36", "check 07 takes 12 of 34 seconds")
        await screens.press("down")
        await screens.click("Title of check 03")
        await screens.shows("press a to apply training.weight_decay = 0.01", gone="\u2500 Finding")
        assert pointed(screens).startswith("Title of check 03")


@in_event_loop
async def test_the_same_check_stays_chosen_when_findings_come_anew_and_only_open_ones_are_listed_on_request():
    async with shown() as screens:
        await screens.press("down", "down")
        mended = [
            replace(one, verdict=replace(one.verdict, status="pass", fix=None)) if one.name == "check 03" else one
            for one in many()
        ]
        screens.bench._checked(mended)
        screens.app.draw()
        await screens.shows("\u2713 pass")
        assert pointed(screens).startswith("Title of check 03")
        await screens.press("o")
        await screens.shows("only open checks", gone="check 03")
        await screens.press("o")
        await screens.until(lambda: "only open checks" not in screens.lines[1])
        assert pointed(screens).startswith("Title of check 03")
        await screens.press("r")
        await screens.until(lambda: pointed(screens).startswith("Title of check 07"))
        screens.bench._checked([finding("calm")])
        await screens.press("o")
        await screens.shows("no open checks: press o to show all")
        screens.app.page._apply_all((screens.bench.document.revision, {}))
        await screens.shows("there are no fixes to apply")
        screens.bench.document.loaded = None
        screens.bench._checked([])
        await screens.shows("the config has a problem: press 2 to see it", gone="checking")


@in_event_loop
async def test_a_finding_that_does_not_fit_says_so_and_stands_beside_the_list_on_a_wide_screen():
    long = finding("long", "fail", details=tuple(f"detail {n}" for n in range(20)), advice="look at it")
    async with shown(findings=[long]) as screens:
        await screens.shows("more below", "do     look at it", gone="detail 19")
        screens.app.page._details_pane.scroll_lines(1_000)
        await screens.shows("detail 19", "above")
        await screens.press("up")
        for width, is_beside in ((179, False), (180, True)):
            await screens.resize(width, 50)
            await screens.shows("detail 0", "detail 19" if is_beside else "more below")
            (line,) = [line for line in screens.lines if "\u2500\u2500 checks" in line]
            assert ("\u2500\u2500 finding" in line) == is_beside

        gain = Gain(at="2026-11-23T10:00:00.000Z", ratios=(1.22, 1.234, 1.24))
        screens.bench._checked([replace(finding("slow", "warn"), gain=gain)])
        await screens.resize(200, 50)
        await screens.shows("1.23 times as fast (measured here")


@in_event_loop
async def test_gains_are_measured_one_at_a_time_and_the_list_stays_usable(program):
    async with shown() as screens:
        await screens.press("m")
        await screens.shows("measure: this check has no setting to toggle")
        program.says("tui-trainer: check 03: round 1 of 3: current settings")
        await screens.press("down", "down", "m")
        await screens.ticks("measuring: check 03: round 1 of 3: current settings")
        await screens.press("down", "up", "m")
        await screens.shows("already measuring: Esc stops")
        program.end("tui-trainer: check 03: 1.80 times as fast")
        await screens.ticks("check 03: 1.80 times as fast", gone="measuring")
        program.says(f"tui-trainer: check 05: round 1 of 3: as proposed: {'a.setting = 1, ' * 9}")
        await screens.press("M")
        await screens.ticks("checks \u2500", "measuring: check 05: round 1 of 3: as proposed: a.setting")
        await screens.press("escape")
        await screens.ticks("measurement stopped; results so far are saved")
        await screens.press("M")
        program.end("tui-trainer: chat is training on this machine and would distort the measurement", code=2)
        await screens.ticks("could not measure: chat is training on this machine")
        assert [line.partition("--measure=")[2] for line in program.commands] == ["check 03", "all", "all"]


@in_event_loop
async def test_nothing_is_measured_beside_a_run_or_a_rehearsal_and_a_run_that_begins_ends_it(program):
    async with shown((120, 24)) as screens:
        await screens.press("2", "w")
        await screens.ticks("loading libraries ...")
        await screens.press("escape", "3", "M")
        await screens.shows("measure all: a rehearsal is still running: only one measurement at a time")
        program.end()
        await screens.ticks("not rehearsed")
        await screens.press("M")
        await screens.ticks("measuring: loading libraries")
        screens.bench.run = CannedRun(trained(60), True)
        await screens.until(lambda: screens.app.tick() or not screens.bench.gain_measurements.running_process)
        await screens.press("escape", "M")
        await screens.shows("measure all: a run is training")
        assert len(program.commands) == 2
