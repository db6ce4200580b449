"""What holds on every screen: windows that are too small, dialogs while they change, keys that nobody may take."""

from __future__ import annotations

from dataclasses import replace

import pytest
from textual.css.query import NoMatches

from tests.runs.journals import run_of
from tests.ui.canned import CPU, CannedBench, CannedRun, NewsRun, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.lines.plan_and_events import plan_lines
from tui_trainer.runs.events import EvalDone, RunFailed, RunFinished, RunProblem
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.lock import RunLock
from tui_trainer.ui.screens.config_view import figure_texts
from tui_trainer.ui.spans import ASCII, UNICODE
from tui_trainer.ui.watch import WatchedRun
from tui_trainer.ui.workbench import ExitReason


def bench(glyphs=UNICODE) -> CannedBench:
    return CannedBench(lambda: Request(), CPU, glyphs)


@in_event_loop
async def test_a_window_that_becomes_too_small_says_so_and_gives_everything_back_when_it_grows():
    async with open_screens(bench=bench()) as screens:
        await screens.press("2", "?")
        await screens.shows("Edit the value in place.")
        for width, height in ((60, 19), (59, 24), (20, 3)):
            await screens.resize(width, height)
            lines = [line for line in (await screens.settled()).splitlines() if line]
            assert lines == ["needs 60x20 cells", f"terminal: {width}x{height}"]
            await screens.press("1", "t", "escape", "ctrl+p", "x")
        await screens.resize(120, 35)
        await screens.shows("Edit the value in place.", gone="needs")
        await screens.press("escape")
        await screens.shows("max_length", "Enter edit"), "keys went nowhere"
        await screens.resize(60, 19)
        screens.bench.go(3)
        screens.app.ask("Sure?", [], [("y", "yes", lambda: pytest.fail("nobody saw it"))])
        await screens.shows("needs 60x20 cells", gone="Sure?")
        await screens.press("y")
        await screens.resize(80, 24)
        await screens.shows("Sure?", "4 Train")
        await screens.press("escape")
        await screens.shows("Press t to start", gone="Sure?")
        await screens.resize(60, 15)
        await screens.shows("needs 60x20 cells")
        await screens.press("q")
        await screens.until(lambda: screens.ended)


@pytest.mark.full
@in_event_loop
async def test_keys_of_the_screens_do_nothing_below_a_dialog_or_the_commands():
    async with open_screens(bench=bench()) as screens:
        await screens.press("2", "?")
        await screens.shows("Edit the value in place.")
        await screens.press("3", "ctrl+p", ":", "t", "tab", "ctrl+c", "ctrl+l")
        assert "Edit the value in place." in await screens.settled()
        await screens.press("escape", ":")
        await screens.shows("Search actions, settings")
        await screens.press("tab", "ctrl+q", "ctrl+p", *"reset")
        await screens.shows("Reset all settings to the recipe")
        await screens.press("escape")
        await screens.shows("Enter edit", gone="Reset all settings")


@pytest.mark.full
@in_event_loop
async def test_every_screen_and_its_questions_work_in_a_small_window():
    async with open_screens(bench=bench(ASCII), size=(60, 20)) as screens:
        screens.bench.run = CannedRun(trained(60), True)
        for key, words in (
            ("1", "computes"),
            ("2", "hardware_profile"),
            ("3", "finding"),
            ("4", "held out"),
            ("5", "no runs yet"),
        ):
            await screens.press(key)
            text = await screens.shows(words, "? help")
            tab = screens.lines[0].split(key)[1].strip()
            assert text.isascii() and "5 Runs" in screens.lines[0] and tab and max(map(len, text.splitlines())) <= 60
        await screens.press("4")
        await screens.shows("step  60 of 500", "ETA", "loss 2.1", "p pause", "S stop")
        for keys, words in (("S", ("save and stop", "Esc back")), ("&", ("Enter detach", "Esc back")),
                            ("q", ("d quit, and train", "l train on", "s save, stop", "Esc back"))):  # fmt: skip
            await screens.press(keys)
            await screens.shows(*words)
            await screens.press("escape")
        await screens.press("2", "p")
        await screens.shows("Choose a recipe", "Enter select")


@in_event_loop
async def test_a_watched_run_whose_process_was_killed_is_reported_until_a_key_and_train_says_how_to_go_on(tmp_path):
    folder = run_of(tmp_path, "chat", *trained(120))
    run = WatchedRun(folder)
    async with open_screens(bench=bench()) as screens:
        with RunLock(folder.lock):
            run.poll()
            screens.bench.show_run(run)
            await screens.press("2")
            await screens.shows("Enter edit", "4 Train 24%")
        for _ in range(2):
            screens.bench.poll_run()
            await screens.settled()
        await screens.shows("the process stopped at step 120", "without an error; p", "4 Train new")
        await screens.press("down")
        await screens.shows("Enter edit", gone="without an error")
        await screens.press("4")
        await screens.shows(
            "4 Train interrupted", "the process stopped at step 120 without an error; p resumes from step 100"
        )
        for _ in range(2):
            screens.bench.poll_run()
            await screens.settled()
        assert not screens.bench.unseen_pages and screens.text.count("without an error") == 2, "and once in the events"


@in_event_loop
async def test_one_that_ends_with_a_word_is_not_told_as_killed(tmp_path):
    """Its end is written between two looks, and its lock is free at the second."""
    folder = run_of(tmp_path, "chat", *trained(120))
    run = WatchedRun(folder)
    with RunLock(folder.lock), JournalWriter(folder.journal) as journal:
        run.poll()
        journal.append(RunFinished(step=120, reason="stopped", seconds=1.0, loss=1.4, eval_loss=None))
    run.poll()
    assert not run.has_gone and not run.is_interrupted


@in_event_loop
async def test_what_happens_on_a_screen_that_is_not_shown_is_reported_and_marked_until_it_is_looked_at():
    async with open_screens(bench=bench()) as screens:
        screens.bench.run = run = NewsRun(trained(60), True)
        await screens.press("2")
        await screens.shows("Enter edit")
        run.waiting = [RunProblem(step=61, kind="disk", message="[b]the disk\x1b is nearly full", hint="free some")]
        screens.bench.poll_run()
        await screens.shows("[b]the disk", "4 Train new 12%")
        run.waiting = [RunFailed(step=61, message="it broke", log_path="/data/log")]
        screens.bench.poll_run()
        await screens.shows("the run failed: it broke")
        await screens.press("down")
        await screens.shows("Enter edit", gone="it broke")
        await screens.press("4")
        # Its process may still be alive, but nothing can be requested any more.
        await screens.shows("4 Train failed", gone="p pause")
        run.waiting = [RunProblem(step=62, kind="disk", message="again", hint="")]
        screens.bench.poll_run()
        await screens.settled()
        assert not screens.bench.unseen_pages, "it is seen there"


@pytest.mark.parametrize(
    ("reason", "words"),
    [("done", ("the run finished after 61 steps,", "held-out loss 1.4000")), ("stopped", ("stopped at step 61",))],
)
@in_event_loop
async def test_that_a_run_ended_is_reported_on_another_screen_however_soon_after_other_news(reason, words):
    async with open_screens(bench=bench()) as screens:
        screens.bench.run = run = NewsRun(trained(60), True)
        await screens.press("2")
        await screens.shows("Enter edit")
        run.waiting = [EvalDone(step=60, loss=1.5, loss_sum=15.0, tokens=10, seconds=1.0, scheduled=True, best=True)]
        screens.bench.poll_run()
        await screens.shows("held-out loss 1.5000")
        run.waiting = [RunFinished(step=61, reason=reason, seconds=9.0, loss=1.4, eval_loss=1.4, model_step=61)]
        screens.bench.poll_run()
        await screens.shows(*words, "4 Train new")


@pytest.mark.full
@in_event_loop
async def test_a_run_that_ends_while_it_is_asked_how_to_leave_it_is_left_and_what_is_unsaved_is_asked_then():
    async with open_screens(bench=bench()) as screens:
        screens.bench.run = run = CannedRun(trained(60), True)
        screens.bench.apply({"training.seed": 5}, "")
        screens.app.tick()
        await screens.press("4", "q")
        await screens.shows("A run is active in this process.")
        run.alive = False
        screens.app.tick()
        await screens.shows("settings that are not saved", gone="A run is active")
        await screens.press("q")
        await screens.until(lambda: screens.ended)


@pytest.mark.full
@in_event_loop
async def test_a_long_notice_takes_two_lines_above_the_keys_and_what_is_cut_in_ascii_ends_with_a_tilde():
    async with open_screens(bench=bench(ASCII), size=(60, 20)) as screens:
        await screens.press("2")
        text = await screens.shows("recipe quickstart")
        assert text.isascii() and "?" not in text.removesuffix("? help"), text
        assert screens.lines[1].endswith("no file yet ok can start"), "and a blank before what stands at the end"
        screens.bench.show_notice("a sentence that is too long for a line" * 4)
        screens.app.draw()
        await screens.shows("Enter edit", "? help", "| a sentence", " ~\n")
        assert screens.lines[-3].startswith("| a sentence") and len(screens.lines[-2]) < 60


@in_event_loop
async def test_a_page_that_comes_while_the_terminal_goes_is_no_crash():
    with pytest.raises(NoMatches):  # which the pilot raises, of a page without its parts
        async with open_screens(bench=bench()) as screens:
            screens.bench.go(3)
            screens.app.leave(ExitReason.LOST)
            await screens.until(lambda: screens.ended)
    assert not screens.app.crash


@in_event_loop
async def test_what_is_waited_for_stays_in_the_last_line(monkeypatch):
    async with open_screens(bench=bench()) as screens:
        shown = screens.bench
        monkeypatch.setattr(type(shown), "is_planning", property(lambda _: True))
        await screens.press("t")
        await screens.shows("planning ...")
        for _ in range(20):
            shown.tick()
        assert shown.notice == ("planning ...", "dim"), "it is not there yet"
        await screens.press("2")
        assert not shown.start_wanted, "the next key ends the wish"
        await screens.shows("2 Config", gone="planning ...")


@pytest.mark.full
@in_event_loop
async def test_a_change_beside_a_run_is_for_the_next_one_and_another_start_says_that_both_would_be_slower():
    run = CannedRun(trained(60), True)
    run.is_trained_here = False
    async with open_screens(bench=bench()) as screens:
        screens.bench.run = run
        await screens.press("2")
        await screens.shows("profile")
        screens.app.show_setting("training.learning_rate")
        await screens.shows("training.learning_rate")
        await screens.press("l")
        await screens.shows("applies to the next run: the active run keeps its settings")
        await screens.press("t")
        await screens.shows("other run", "quickstart-1802 is training: both runs would be slower", "Enter start")
        await screens.press("escape")
        run.alive = False
        await screens.press("t")
        await screens.shows("Enter start", gone="already training")


@in_event_loop
async def test_the_question_before_a_start_names_what_others_use():
    busy = CannedBench(lambda: Request(), replace(CPU, load_of_others=9.5), UNICODE)
    async with open_screens(bench=busy) as screens:
        await screens.press("t")
        shown = await screens.shows("other programs keep the cores busy (load 9.5);", "Enter start")
        time = figure_texts(busy.plan)["time"]
        assert f"time        {time}" in shown
        assert busy.plan.busy_words.endswith("expect about 2.1 times longer while they run")
        (line,) = [one for one in plan_lines(busy.plan) if one.startswith("time  ")]
        assert line.endswith(busy.plan.busy_words) and time.removeprefix("~") in line


@in_event_loop
async def test_a_plan_is_made_anew_when_a_run_ends(monkeypatch):
    planned = []
    monkeypatch.setattr(CannedBench, "config_changed", lambda _: planned.append(1))
    async with open_screens(bench=bench()) as screens:
        screens.bench.run = run = CannedRun(trained(60), True)
        screens.app.tick()
        assert not planned
        run.alive = False
        screens.app.tick()
        screens.app.tick()
        assert planned == [1], "its steps were measured, and its data is prepared"


@in_event_loop
async def test_the_last_line_beside_a_run_of_another_process_has_the_keys_of_the_run_and_not_those_of_a_new_one():
    run = CannedRun(trained(60), True)
    run.is_trained_here = False
    async with open_screens(bench=bench()) as screens:
        screens.bench.run = run
        await screens.press("4")
        text = await screens.shows("p pause", "S stop")
        assert "t start" not in text and "n new run" not in text
        run.alive = False
        screens.app.draw()
        await screens.shows("t start", "n new run")
