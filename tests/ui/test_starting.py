"""Starting, stopping and leaving: what may happen at the same time, and what must not be lost."""

from __future__ import annotations

import asyncio
import shutil
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.ui.pictures import screen_text
from tui_trainer.config.load import Request
from tui_trainer.errors import EXIT_STOPPED, Problem
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.drafts import draft_for
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import RunState
from tui_trainer.ui import starting
from tui_trainer.ui.app import TrainerApp
from tui_trainer.ui.dialogs import TextDialog
from tui_trainer.ui.keymap import Keymap
from tui_trainer.ui.main import _afterwards
from tui_trainer.ui.spans import UNICODE
from tui_trainer.ui.workbench import Workbench

PATIENCE_SECONDS = 30.0
LOOK_SECONDS = 0.02


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


@asynccontextmanager
async def opened(request: Request, size: tuple[int, int] = (80, 24)):
    """The application, its config read and planned."""
    app = TrainerApp(Workbench(lambda: request, probe(), UNICODE), Keymap())
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: bool(app.bench.findings) or bool(app.crash))
        yield app, pilot


async def until(pilot, ready) -> None:
    for _ in range(int(PATIENCE_SECONDS / LOOK_SECONDS)):
        if ready():
            return
        await pilot.pause(LOOK_SECONDS)
    raise AssertionError(screen_text(pilot.app))


class Busy:
    """A run of this process that is alive, and cannot always be asked."""

    is_ours = alive = True
    refusals = ()
    is_interrupted = False

    def __init__(self, answers: list[str]) -> None:
        self.answers, self.candidates = answers, []
        self.state = RunState()
        self.folder = SimpleNamespace(name="busy", root=Path("/nowhere"))
        self.events = []

    def ask(self, requested: str) -> str:
        self.candidates.append(requested)
        return self.answers.pop(0)

    def poll(self) -> bool:
        return False


def test_an_error_in_background_work_ends_the_screens_with_a_report(request_of_seconds, monkeypatch):
    def broken(*_, **__):
        raise ZeroDivisionError("nobody expects this")

    monkeypatch.setattr("tui_trainer.checklist.gather.gather", broken)

    async def go() -> TrainerApp:
        async with opened(request_of_seconds) as (app, pilot):
            await until(pilot, lambda: not app.is_running)
        return app

    with pytest.raises(ZeroDivisionError):
        asyncio.run(go())


def test_a_fix_of_the_checklist_survives_a_lost_connection(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            assert draft_for(request_of_seconds) is None
            assert not app.bench.apply({"evaluation.eval_steps": 0.25}, "a fix")
            assert dict(draft_for(request_of_seconds).edits) == {"evaluation.eval_steps": 0.25}
            await pilot.press("3", "u")
            assert draft_for(request_of_seconds) is None

    asyncio.run(go())


def test_edits_of_an_earlier_session_stay_until_somebody_decides(request_of_seconds):
    async def earlier() -> None:
        async with opened(request_of_seconds) as (app, _):
            app.bench.apply({"training.max_steps": 7}, "")

    async def later() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            await until(pilot, lambda: "were not saved" in screen_text(app))
            await pilot.press("escape")
            app.bench.apply({"training.seed": 5}, "")
            assert dict(draft_for(request_of_seconds).edits) == {"training.max_steps": 7, "training.seed": 5}

    asyncio.run(earlier())
    asyncio.run(later())


def test_no_second_run_begins_while_one_is_alive(request_of_seconds, tmp_path):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, _):
            starting.offer_start(app.bench)
            app.bench.run = Busy([])
            starting.start(app.bench)
            starting.offer_resume(app.bench)
            assert "one at a time" in app.bench.notice[0]
            assert not list((tmp_path / "runs").glob("*"))

    asyncio.run(go())


def test_a_stop_that_cannot_be_asked_for_is_asked_again(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, _):
            app.bench.run = busy = Busy(["the disk is full", "the disk is full", ""])
            starting.stop_and_leave(app.bench)
            assert app.bench.notice == ("the disk is full", "bad")
            for _ in range(5):
                app.bench.tick()
            assert busy.candidates == ["stop"] * 3

    asyncio.run(go())


def test_the_wish_to_start_ends_with_the_next_key(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            app.bench._planned_revision = -1
            await pilot.press("t")
            assert app.bench.start_wanted
            await pilot.press("2")
            assert not app.bench.start_wanted

    asyncio.run(go())


def test_a_run_that_is_refused_says_why_and_leaves_nothing(request_of_seconds, tmp_path):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            (tmp_path / "sums.txt").unlink()
            starting.start(app.bench)
            await until(pilot, lambda: "The run was refused" in screen_text(app))
            assert "sums.txt" in screen_text(app)
            assert app.bench.run is None
            assert not list((tmp_path / "runs").glob("*"))

    asyncio.run(go())


def test_an_ended_run_is_told_in_the_shell_after_another_one_was_opened_or_it_was_renamed(
    request_of_seconds, tmp_path, capsys
):
    endless = Request(assignments=(*request_of_seconds.assignments, "training.max_steps=1000000"))

    async def go() -> TrainerApp:
        async with opened(endless) as (app, pilot):
            starting.start(app.bench)
            own = app.bench.run
            await until(pilot, lambda: own.state.step > 0)
            app.bench.ask_run("stop")
            await until(pilot, lambda: not own.alive)
            shutil.copytree(own.folder.root, tmp_path / "other")
            app.bench.attach_to(RunFolder(tmp_path / "other"))
            assert app.pages["runs"]._rename(own.folder.root, "told-at-the-end") == ""
        return app

    app = asyncio.run(go())
    signals = SimpleNamespace(heard=[], ask_for_stop=False)
    assert _afterwards(app, app.bench, signals, tmp_path) == EXIT_STOPPED
    told = capsys.readouterr().out
    assert "stopped at step" in told and "told-at-the-end" in told


@pytest.fixture
def request_of_a_model_elsewhere(request_of_seconds, tmp_path, monkeypatch) -> Request:
    """A model that only the catalogue knows: it can be planned, and not be trained."""
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    settings = ("data.max_length=16", f"data.path={tmp_path / 'sums.txt'}", "training.max_steps=20")
    return Request(assignments=settings, shortcuts={"model.model_name_or_path": "distilbert/distilgpt2"})


def test_a_model_that_is_not_on_this_machine_is_planned_and_refused_at_the_start(
    request_of_a_model_elsewhere, tmp_path
):
    async def go() -> None:
        async with opened(request_of_a_model_elsewhere) as (app, pilot):
            assert app.bench.plan is not None and app.bench.plan.parameters.value > 80_000_000
            await pilot.press("t")
            await until(pilot, lambda: "This cannot start yet" in screen_text(app))
            assert "`tui-trainer download" in screen_text(app)
            await pilot.press("escape")
            # Also by the way that asks nothing.
            starting.start(app.bench)
            await pilot.pause()
            assert "The run was refused" in screen_text(app)
            assert app.bench.run is None and not (tmp_path / "runs").exists()

    asyncio.run(go())


def test_a_problem_that_planning_finds_stands_beside_its_setting(request_of_seconds, tmp_path):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            app.bench.apply({"data.path": str(tmp_path / "nothing-here")}, "")
            await until(pilot, lambda: not app.bench.is_planning)
            assert [problem.key for problem in app.bench.document.problems] == ["data.path"]
            await pilot.press("2")
            assert "1 problem" in screen_text(app)

    asyncio.run(go())


def test_a_name_that_no_run_can_have_is_refused_in_the_config(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, _):
            app.bench.apply({"output.name": "a/b"}, "")
            assert [problem.key for problem in app.bench.document.problems] == ["output.name"]

    asyncio.run(go())


def test_who_leaves_with_edits_that_are_in_no_file_can_save_them_first(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            app.bench.apply({"training.max_steps": 7}, "")
            await pilot.press("q", "s")
            assert isinstance(app.dialog, TextDialog) and "Save as" in screen_text(app) and app.page.place == "config"
            await pilot.press("enter")
            assert app.dialog is None and not app.bench.has_unsaved_edits
            await pilot.press("q")
            assert not app.is_running

    asyncio.run(go())


def test_a_window_that_is_too_small_takes_no_keys_but_leaves(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds, size=(60, 15)) as (app, pilot):
            await pilot.press("t", "enter", "2", "r")
            assert app.bench.current == 0 and app.bench.run is None and not app.takes_text
            assert "needs 80x24" in screen_text(app)
            await pilot.press("q")
            assert not app.is_running

    asyncio.run(go())


def test_an_editor_that_is_not_there_is_told(request_of_seconds, monkeypatch):
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", "no-such-editor --wait")

    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            await pilot.press("2", "e")
            assert "there is no program no-such-editor" in app.bench.notice[0]

    asyncio.run(go())


def test_a_stop_that_could_not_be_asked_for_is_not_asked_of_another_run(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, _):
            app.bench.run, other = Busy(["the disk is full"]), Busy([""])
            app.bench.ask_run("stop")
            app.bench.put_on_the_table(other)
            app.bench.tick()
            assert other.candidates == []

    asyncio.run(go())


def test_a_refusal_waits_until_nobody_types(request_of_seconds):
    async def go() -> None:
        async with opened(request_of_seconds) as (app, pilot):
            await pilot.press("2", "/")
            refusals = [(Problem(message="the data is gone"),)]
            app.bench.take_refusals = lambda: refusals.pop() if refusals else ()
            app.tick()
            await pilot.press(*"code")
            assert app.dialog is None and app.page.filter_field.value == "code"
            await pilot.press("enter")
            app.tick()
            assert "the data is gone" in screen_text(app) or app.dialog is not None

    asyncio.run(go())
