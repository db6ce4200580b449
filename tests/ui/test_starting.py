"""Starting, stopping and leaving: what may happen at the same time, and what must not be lost."""

from __future__ import annotations

import re
import shutil
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runs.journals import run_of, start, steps
from tests.tiny_models import save_tiny_model
from tests.trained_runs import write_rows
from tests.ui.canned import CPU, FINDINGS, CannedBench, CannedRun, open_canned, trained
from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tests.ui.test_new_run import conversations
from tui_trainer.cli import main
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_STOPPED
from tui_trainer.launching.drafts import draft_for
from tui_trainer.runs.controls import Controls
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.lock import RunLock
from tui_trainer.ui import starting
from tui_trainer.ui.main import _finish_run
from tui_trainer.ui.spans import UNICODE


@pytest.fixture
def request_of_seconds(tmp_path: Path) -> Request:
    """A config whose run takes a moment."""
    data = tmp_path / "sums.txt"
    data.write_text("\n".join(f"{n} and {m} are {n + m}." for n in range(40) for m in range(20)))
    settings = {
        "data.path": data, "data.max_length": 16, "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1,
        "model.scratch.num_attention_heads": 2, "training.max_steps": 20, "evaluation.eval_steps": 0,
    }  # fmt: skip
    return Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))


@in_event_loop
async def test_an_error_in_background_work_ends_the_screens_with_a_report():
    with pytest.raises(ZeroDivisionError):
        async with open_canned() as screens:
            tries, results = iter([ImportError("another thread imports it")]), []

            def import_again() -> str:
                for error in tries:
                    raise error
                return "imported"

            screens.bench.background.run_work("imports", import_again, results.append)
            await screens.until(lambda: results == ["imported"])
            screens.bench.background.run_work("work", lambda: 1 / 0, print)
            await screens.until(lambda: screens.ended)


@pytest.mark.full
@in_event_loop
async def test_edits_survive_a_lost_connection_stay_until_somebody_decides_and_can_be_saved_first(request_of_seconds):
    async with open_screens(request_of_seconds) as screens:
        assert draft_for(request_of_seconds) is None
        assert screens.bench.apply({"evaluation.eval_steps": 0.25}, "a fix")
        await screens.settled()
        assert dict(draft_for(request_of_seconds).edits) == {"evaluation.eval_steps": 0.25}
        await screens.press("3", "u")
        await screens.settled()
        assert draft_for(request_of_seconds) is None
        screens.bench.apply({"training.max_steps": 7}, "")

    async with open_screens(request_of_seconds) as screens:
        await screens.shows("unsaved edits of an earlier session", gone=" not saved.")
        await screens.press("t")
        await screens.shows("Enter start", "without unsaved edits of before; c can restore them", gone=" not saved.")
        await screens.press("c")
        await screens.ticks(" not saved.", "2 Config", gone="Enter start")
        await screens.press("escape")
        screens.bench.apply({"training.seed": 5}, "")
        await screens.settled()
        assert dict(draft_for(request_of_seconds).edits) == {"training.max_steps": 7, "training.seed": 5}
        await screens.press("q")
        await screens.shows("Quit?", "s save first")
        await screens.press("s")
        await screens.shows("Save as", "2 Config")
        await screens.press("enter")
        await screens.until(lambda: not screens.bench.has_unsaved_edits)
        await screens.press("q")
        await screens.until(lambda: screens.ended)


@in_event_loop
async def test_the_question_waits_for_the_checks_of_these_settings_and_an_early_enter_does_not_end_that():
    async with open_canned() as screens:
        bench, (_, failed, *calm) = screens.bench, FINDINGS
        assert bench.checks_mark()[0] == "1 fail 1 warn"
        bench._checked_revision = -1  # the settings have changed, and are being checked
        await screens.press("t")
        await screens.shows("checking the settings ...", gone="Enter start")
        await screens.press("enter")
        await screens.shows("checking the settings ...", gone="Enter start")
        bench._checked([failed, *calm])
        await screens.shows("checklist   1 fail   l shows the checks", "Enter start", gone="checking")
        await screens.press("escape")
        bench._checked_revision = -1
        # Another key is a change of mind.
        await screens.press("t", "2")
        bench._checked(calm)
        assert "Enter start" not in await screens.settled()


@pytest.mark.full
@in_event_loop
async def test_from_a_start_that_is_refused_to_the_field_with_its_choices(tmp_path):
    save_tiny_model(tmp_path / "llama", "llama")
    data = tmp_path / conversations(tmp_path)
    request = Request(shortcuts={"data.path": str(data), "model.model_name_or_path": str(tmp_path / "llama")})
    async with open_screens(request, ready=attrgetter("plan_problems")) as screens:
        await screens.press("t")
        await screens.shows("Cannot start yet", "chat models of this family use llama3", "u use task.chat_template")
        await screens.press("c")
        await screens.shows("task.chat_template \u2500", gone="Cannot start yet")
        await screens.press("enter")
        await screens.shows("the tokenizer has no chat template", "alpaca", "zephyr")
        await screens.press(*"ch", "tab", "enter", "t")
        await screens.shows("Start ", "task        chat", "checklist ", "Enter start")
        assert screens.bench.document.user_values()["task.chat_template"] == "chatml"
        assert not screens.bench.is_checking


@pytest.mark.full
@in_event_loop
async def test_a_rate_far_above_the_usual_one_is_in_the_question_and_in_the_lines_of_a_start(tmp_path, capsys):
    """The usual rate is that of the loss: 0.01 is high for DPO, though not for a tiny model in supervised training."""
    base = save_tiny_model(tmp_path / "llama", "llama")
    rows = [{"prompt": f"Hello {n}", "chosen": "Hi!", "rejected": f"No {n}."} for n in range(40)]
    data = write_rows(tmp_path / "pairs.jsonl", rows)
    settings = (
        "task.chat_template=chatml",
        "tuning.method=full",
        "training.learning_rate=0.01",
        "training.max_steps=1",
    )
    shortcuts = {"data.path": str(data), "model.model_name_or_path": str(base)}
    async with open_screens(Request(assignments=settings, shortcuts=shortcuts), ready=attrgetter("plan")) as screens:
        await screens.press("t")
        await screens.shows("rate        0.01 is ", "times the usual", "Enter start")
    words = [word for setting in settings for word in ("--set", setting)]
    assert main(["--no-ui", "--data", str(data), "--model", str(base), *words]) == 0
    warning = r"learning rate: 0.01 is [\d,]+ times the usual \S+ for this model, method and loss"
    assert re.search(warning, capsys.readouterr().out)


@in_event_loop
async def test_one_run_at_a_time_also_where_one_began_after_the_question(tmp_path):
    async with open_canned() as screens:
        await screens.press("t")
        await screens.shows("Enter start")
        screens.bench.run = CannedRun(trained(60), alive=True)
        await screens.press("enter")
        await screens.shows("a run is already active", gone="Enter start")
        assert not list((tmp_path / "runs").glob("*"))


@in_event_loop
async def test_a_stop_that_cannot_be_asked_for_is_asked_again_until_it_can_and_never_of_another_run(tmp_path):
    run, other = (run_of(tmp_path / "runs", name, start(100), *steps(1, 20)) for name in ("busy", "other"))
    asked = Controls(run.control)
    run.control.mkdir()
    with RunLock(run.lock), RunLock(other.lock):
        async with open_canned(size=(200, 50)) as screens:
            bench = screens.bench
            for folder in (run, other, run):
                bench.attach_to(folder)
                await screens.until(lambda folder=folder: bench.run and bench.run.folder == folder)
                if folder == run:
                    await screens.press("4", "S")
                    await screens.shows("Save and stop?")
                    await screens.press("enter")
                    await screens.shows("cannot request stop")
                screens.app.tick()
                await screens.settled()
            assert list(Controls(other.control).take_requests()) == []
            run.control.rmdir()
            heard: list[str] = []
            for _ in range(4):
                screens.app.tick()
                await screens.settled()
                heard += [one.action for one in asked.take_requests()]
            assert heard == ["stop"], "once it could be asked for, it is not asked again"


@in_event_loop
async def test_a_question_of_the_program_waits_until_nobody_types():
    async with open_canned() as screens:
        await screens.press("2", "/")
        screens.bench.ask_when_free(lambda: screens.app.ask("The run did not start", [], []))
        await screens.press(*"code")
        screens.app.tick()
        await screens.shows("/ code", gone="The run did not start")
        await screens.press("enter")
        await screens.ticks("The run did not start")


@pytest.mark.full
@in_event_loop
async def test_what_cannot_be_used_is_said_beside_its_setting_and_a_run_that_is_refused_leaves_nothing(
    request_of_seconds, tmp_path, monkeypatch
):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "no-such-editor --wait")
    async with open_screens(request_of_seconds) as screens:
        bench = screens.bench
        await screens.press("2", "e")
        await screens.shows("no-such-editor")
        bench.apply({"output.name": "a/b"}, "")
        await screens.until(lambda: [problem.key for problem in bench.document.problems] == ["output.name"])
        bench.apply({"output.name": "", "data.path": str(tmp_path / "nothing-here")}, "")
        await screens.until(lambda: [problem.key for problem in bench.document.problems] == ["data.path"])
        await screens.shows("1 problem")
        bench.apply({"data.path": str(tmp_path / "sums.txt")}, "")
        await screens.shows("can start", "plan    memory")
        (tmp_path / "sums.txt").unlink()
        starting.start(bench)
        await screens.shows("The run did not start", "there is no file or folder")
        assert bench.run is None and not list((tmp_path / "runs").glob("*"))


@pytest.mark.full
@in_event_loop
async def test_an_ended_run_is_reported_in_the_shell_after_another_one_was_opened_or_it_was_renamed(
    request_of_seconds, tmp_path, capsys
):
    endless = Request(assignments=(*request_of_seconds.assignments, "training.max_steps=1000000"))
    async with open_screens(endless) as screens:
        bench = screens.bench
        starting.start(bench)
        await screens.until(lambda: bench.local_run and bench.local_run.state.step > 0)
        own = bench.local_run
        bench.ask_run("stop")
        await screens.until(lambda: not own.alive)
        shutil.copytree(own.folder.root, tmp_path / "other")
        bench.attach_to(RunFolder(tmp_path / "other"))
        await screens.until(lambda: bench.run is not own)
        await screens.press("5", "/", *own.folder.name, "enter")
        await screens.shows(f"1 matching '{own.folder.name}'")
        await screens.press("N", "ctrl+u", *"told-at-the-end", "enter")
        await screens.shows("renamed to told-at-the-end")
    signals = SimpleNamespace(heard=[], ask_for_stop=False)
    assert _finish_run(screens.app, bench, signals, tmp_path) == EXIT_STOPPED
    told = capsys.readouterr().out
    assert "stopped at step" in told and "told-at-the-end" in told


@pytest.fixture
def request_of_a_model_elsewhere(request_of_seconds, tmp_path, monkeypatch) -> Request:
    """A model that only the catalogue knows: it can be planned, and not be trained."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    settings = ("data.max_length=16", f"data.path={tmp_path / 'sums.txt'}", "training.max_steps=20")
    return Request(assignments=settings, shortcuts={"model.model_name_or_path": "distilbert/distilgpt2"})


@pytest.mark.full
@in_event_loop
async def test_a_model_that_is_not_on_this_machine_is_planned_and_refused_at_the_start(
    request_of_a_model_elsewhere, tmp_path
):
    async with open_screens(request_of_a_model_elsewhere) as screens:
        assert screens.bench.plan is not None and screens.bench.plan.parameters.value > 80_000_000
        await screens.press("t")
        await screens.shows("Cannot start yet", "press d on Config")
        await screens.press("escape")
        # Also by the way that asks nothing.
        starting.start(screens.bench)
        await screens.shows("The run did not start")
        assert screens.bench.run is None and not (tmp_path / "runs").exists()


@in_event_loop
async def test_nobody_is_asked_for_a_run_to_watch_while_one_is_opened(tmp_path):
    """`attach` reads the journal in the background, and the question would cover the run when it is there."""
    with RunLock(run_of(tmp_path / "runs", "one", start(100)).lock):
        for is_attaching in (False, True):
            bench = CannedBench(lambda: Request(), CPU, UNICODE)
            bench.is_attaching = is_attaching
            async with open_canned(bench=bench) as screens:
                screens.app.find_living_runs()
                text = await (screens.settled() if is_attaching else screens.shows("A run is active"))
                assert ("A run is active" in text) != is_attaching
                await screens.press("escape", "4")
                await screens.shows("one is training in the background (5 shows it)", gone="Nothing is training")
                await screens.press("t")
                await screens.shows("other run   one is training in the background (5 shows it): both")
