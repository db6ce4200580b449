"""Starting, stopping and leaving: what may happen at the same time, and what must not be lost."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.ui.pictures import in_event_loop
from tests.ui.screens import open_screens
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_STOPPED, Problem
from tui_trainer.launching.drafts import draft_for
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import RunState
from tui_trainer.ui import starting
from tui_trainer.ui.dialogs import TextDialog
from tui_trainer.ui.main import _afterwards


@pytest.fixture
def request_of_seconds(tmp_path: Path) -> Request:
    """A config whose run takes a moment."""
    data = tmp_path / "sums.txt"
    data.write_text("\n".join(f"{n} and {m} are {n + m}." for n in range(40) for m in range(20)))
    settings = {
        "data.path": data, "data.max_length": 16, "model.scratch.hidden_size": 16, "model.scratch.num_hidden_layers": 1,
        "model.scratch.num_attention_heads": 2, "training.max_steps": 20, "evaluation.eval_steps": 1,
    }  # fmt: skip
    return Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))


class Busy:
    """A run of this process that is alive, and cannot always be asked."""

    is_ours = alive = True
    refusals = ()
    is_interrupted = False

    def __init__(self, answers: list[str]) -> None:
        self.answers, self.candidates = answers, []
        self.state = RunState()
        self.folder = SimpleNamespace(name="busy", root=Path("/nowhere"))
        self.events, self.has_report = [], False

    def ask(self, requested: str) -> str:
        self.candidates.append(requested)
        return self.answers.pop(0)

    def look(self) -> None:
        pass

    def take(self) -> bool:
        return False


@in_event_loop
async def test_an_error_in_background_work_ends_the_screens_with_a_report(request_of_seconds, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("nobody expects this")

    monkeypatch.setattr("tui_trainer.advice.gather.gather", broken)
    with pytest.raises(ZeroDivisionError):
        async with open_screens(request_of_seconds) as screens:
            await screens.until(lambda: screens.ended)


@in_event_loop
async def test_edits_survive_a_lost_connection_stay_until_somebody_decides_and_can_be_saved_first(request_of_seconds):
    async with open_screens(request_of_seconds) as screens:
        assert draft_for(request_of_seconds) is None
        assert not screens.bench.apply({"evaluation.eval_steps": 0.25}, "a fix")
        await screens.settled()
        assert dict(draft_for(request_of_seconds).edits) == {"evaluation.eval_steps": 0.25}
        await screens.press("3", "u")
        await screens.settled()
        assert draft_for(request_of_seconds) is None
        screens.bench.apply({"training.max_steps": 7}, "")

    async with open_screens(request_of_seconds) as screens:
        await screens.shows(" not saved.")
        await screens.press("escape")
        screens.bench.apply({"training.seed": 5}, "")
        await screens.settled()
        assert dict(draft_for(request_of_seconds).edits) == {"training.max_steps": 7, "training.seed": 5}
        await screens.press("q")
        await screens.shows("Leave?", "s save first")
        await screens.press("s")
        await screens.shows("Save as", "2 Config")
        await screens.press("enter")
        await screens.until(lambda: not screens.bench.has_unsaved_edits)
        await screens.press("q")
        await screens.until(lambda: screens.ended)


@in_event_loop
async def test_one_run_at_a_time_and_a_stop_that_cannot_be_asked_for_is_asked_again(request_of_seconds, tmp_path):
    async with open_screens(request_of_seconds) as screens:
        bench = screens.bench
        starting.offer_start(bench)
        await screens.shows("Enter start")
        bench.run = busy = Busy(["the disk is full", "the disk is full", "", "the disk is full"])
        await screens.press("enter")
        await screens.shows("one at a time")
        starting.offer_resume(bench)
        assert "one at a time" in bench.notice[0] and not list((tmp_path / "runs").glob("*"))
        starting.stop_and_leave(bench)
        await screens.until(lambda: bench.notice == ("the disk is full", "bad"))
        bench.leave_when_over = False
        for _ in range(5):
            bench.tick()
            await screens.settled()
        assert busy.candidates == ["stop"] * 3
        bench.ask_run("stop")
        await screens.settled()
        other = Busy([""])
        bench.put_on_the_table(other)
        bench.tick()
        await screens.settled()
        assert other.candidates == [], "it is not asked of another run"
        bench.run = None

        bench._planned_revision = -1
        await screens.press("t")
        assert bench.start_wanted
        await screens.press("2")
        assert not bench.start_wanted, "the next key ends the wish"
        bench._planned_revision = bench.document.revision
        await screens.press("/")
        refusals = [(Problem(message="the data is gone"),)]
        bench.take_refusals = lambda: refusals.pop() if refusals else ()
        screens.app.tick()
        await screens.press(*"code")
        await screens.shows("/ code", gone="the data is gone"), "a refusal waits until nobody types"
        await screens.press("enter")
        screens.app.tick()
        await screens.shows("The run was refused", "the data is gone")


@in_event_loop
async def test_what_cannot_be_used_is_said_beside_its_setting_and_a_run_that_is_refused_leaves_nothing(
    request_of_seconds, tmp_path, monkeypatch
):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "no-such-editor --wait")
    async with open_screens(request_of_seconds) as screens:
        bench = screens.bench
        await screens.press("2", "e")
        await screens.shows("there is no program no-such-edi")
        bench.apply({"output.name": "a/b"}, "")
        await screens.until(lambda: [problem.key for problem in bench.document.problems] == ["output.name"])
        bench.apply({"output.name": "", "data.path": str(tmp_path / "nothing-here")}, "")
        await screens.until(lambda: [problem.key for problem in bench.document.problems] == ["data.path"])
        await screens.shows("1 problem")
        bench.apply({"data.path": str(tmp_path / "sums.txt")}, "")
        await screens.shows("no problems", "plan    memory")
        (tmp_path / "sums.txt").unlink()
        starting.start(bench)
        await screens.shows("The run was refused", "there is no file or folder")
        assert bench.run is None and not list((tmp_path / "runs").glob("*"))


@in_event_loop
async def test_an_ended_run_is_told_in_the_shell_after_another_one_was_opened_or_it_was_renamed(
    request_of_seconds, tmp_path, capsys
):
    endless = Request(assignments=(*request_of_seconds.assignments, "training.max_steps=1000000"))
    async with open_screens(endless) as screens:
        bench = screens.bench
        starting.start(bench)
        await screens.until(lambda: bench.own_run and bench.own_run.state.step > 0)
        own = bench.own_run
        bench.ask_run("stop")
        await screens.until(lambda: not own.alive)
        shutil.copytree(own.folder.root, tmp_path / "other")
        bench.attach_to(RunFolder(tmp_path / "other"))
        await screens.until(lambda: bench.run is not own)
        await screens.press("5")
        await screens.shows(own.folder.name[:20])
        dialog = TextDialog("Rename", [], "", lambda _: None)
        screens.app.pages["runs"]._rename(own.folder.root, "told-at-the-end", dialog)
        await screens.shows("renamed to told-at-the-end")
    signals = SimpleNamespace(heard=[], ask_for_stop=False)
    assert _afterwards(screens.app, bench, signals, tmp_path) == EXIT_STOPPED
    told = capsys.readouterr().out
    assert "stopped at step" in told and "told-at-the-end" in told


@pytest.fixture
def request_of_a_model_elsewhere(request_of_seconds, tmp_path, monkeypatch) -> Request:
    """A model that only the catalogue knows: it can be planned, and not be trained."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    settings = ("data.max_length=16", f"data.path={tmp_path / 'sums.txt'}", "training.max_steps=20")
    return Request(assignments=settings, shortcuts={"model.model_name_or_path": "distilbert/distilgpt2"})


@in_event_loop
async def test_a_model_that_is_not_on_this_machine_is_planned_and_refused_at_the_start(
    request_of_a_model_elsewhere, tmp_path
):
    async with open_screens(request_of_a_model_elsewhere) as screens:
        assert screens.bench.plan is not None and screens.bench.plan.parameters.value > 80_000_000
        await screens.press("t")
        await screens.shows("This cannot start yet", "press D on Config")
        await screens.press("escape")
        # Also by the way that asks nothing.
        starting.start(screens.bench)
        await screens.shows("The run was refused")
        assert screens.bench.run is None and not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("is_attaching", "asked"), [(False, ["A run is alive"]), (True, [])])
def test_nobody_is_asked_for_a_run_to_watch_while_one_is_opened(is_attaching, asked):
    """`attach` reads the journal in the background, and the question would cover the run when it is there."""
    headings = []
    app = SimpleNamespace(ask=lambda heading, rows, answers: headings.append(heading))
    bench = SimpleNamespace(run=None, is_attaching=is_attaching, app=app)
    starting.offer_to_watch(bench, [RunFolder(Path("runs/one"))])
    assert headings == asked
