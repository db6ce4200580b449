"""A run is handed to a process of its own: nothing of it is lost, whatever happens to the program that began it."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from tests.programs import journals, run_program
from tests.runs.journals import read_all
from tui_trainer.errors import RunError
from tui_trainer.launching.detached import open_detached, resume_detached
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.state import apply_events

STEPS = 800
ENDS_WITHIN_SECONDS = 180
NO_PYTHON = """
from types import SimpleNamespace
from tui_trainer.launching import command_process
command_process.sys = SimpleNamespace(executable="/bin/false")
"""


def run_in(folder: Path) -> RunFolder:
    (journal,) = journals(folder)
    return RunFolder.open(journal.parent)


def wait_until_finished(folder: RunFolder) -> None:
    until = time.monotonic() + ENDS_WITHIN_SECONDS
    while (state := apply_events(read_all(folder.journal))).status != "finished":
        assert time.monotonic() < until, (state.status, state.step)
        time.sleep(0.1)


def weights(folder: RunFolder) -> bytes:
    return (folder.model / "model.safetensors").read_bytes()


def wait_for_starts(terminal, count: int) -> None:
    until = time.monotonic() + ENDS_WITHIN_SECONDS
    while sum(event["event"] == "RunStarted" for event in terminal.events) < count:
        assert time.monotonic() < until, terminal.text
        terminal.read(0.1)


def detach(terminal) -> None:
    terminal.wait_for_steps(20)
    terminal.press("&")
    terminal.wait_for("Detach the run?")
    terminal.press("enter")


@pytest.fixture
def undisturbed(tmp_path, small_config, environment) -> bytes:
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    assert run_program([small_config(steps=STEPS), "--no-ui"], environment=environment, folder=folder).returncode == 0
    return weights(run_in(folder))


@pytest.mark.e2e
def test_a_run_goes_on_to_the_bit_whatever_happens_to_who_began_it(open_terminal, small_config, tmp_path, undisturbed):
    """The one is killed once another process has the run, the other leaves and loses its terminal meanwhile."""
    killed, left = (
        open_terminal(small_config(steps=STEPS), folder=name, TUI_TRAINER_HOME=str(tmp_path / f"home of {name}"))
        for name in ("killed", "left")
    )
    killed.start_run()
    detach(killed)
    left.start_run()
    left.wait_for_steps(20)
    left.press("q")
    left.wait_for("train in the background")
    left.press("d")
    left.hang_up()
    assert left.wait_for_end() == 0
    wait_for_starts(killed, 2)
    viewer = open_terminal("attach", "last", folder="killed", TUI_TRAINER_HOME=str(tmp_path / "home of killed"))
    killed.process.kill()
    killed.hang_up()
    viewer.wait_for(run_in(killed.cwd).name)
    for run in (run_in(killed.cwd), run_in(left.cwd)):
        wait_until_finished(run)
        assert weights(run) == undisturbed
        assert list(apply_events(read_all(run.journal)).steps) == list(range(1, STEPS + 1))


@pytest.mark.e2e
def test_a_run_that_no_process_takes_goes_on_where_it_was(open_terminal, small_config, undisturbed):
    terminal = open_terminal(small_config(steps=STEPS), prelude=NO_PYTHON)
    terminal.start_run()
    detach(terminal)
    wait_for_starts(terminal, 2)
    terminal.wait_for("finished")
    terminal.press("q")
    assert terminal.wait_for_end() == 0
    assert weights(run_in(terminal.cwd)) == undisturbed


@pytest.mark.e2e
def test_a_run_is_begun_and_resumed_detached_on_the_command_line(tmp_path, small_config, environment):
    def run(*words: str):
        return run_program(words, environment=environment, folder=tmp_path)

    config = small_config(steps=1_000_000)
    begun = run(config, "--detach")
    assert begun.returncode == 0, begun.stderr
    pid = int(re.search(r"training in background process (\d+)", begun.stdout)[1])
    assert os.getsid(pid) == pid
    again = run("resume", "last", "--detach")
    assert again.returncode == 2 and f"in use by process {pid}" in again.stderr
    assert run("stop", "last").returncode == 0
    assert run("attach", "last", "--no-ui").returncode == 3
    resumed = run("resume", "last", "--detach", "--json")
    assert resumed.returncode == 0 and '"pid"' in resumed.stdout, resumed.stderr
    assert run("stop", "last").returncode == 0
    assert run("attach", "last", "--no-ui").returncode == 3
    starts = [line for line in run_in(tmp_path).journal.read_text().splitlines() if '"RunStarted"' in line]
    assert len(starts) == 2


def test_a_process_that_ends_at_once_is_an_error_with_its_words(tiny_config, tmp_path, monkeypatch):
    loaded = tiny_config("own")
    folder = open_detached(loaded, estimated_plan(loaded)).folder
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho a warning\necho no memory >&2\nexit 7\n")
    program.chmod(0o700)
    monkeypatch.setattr("tui_trainer.launching.command_process.sys.executable", str(program))
    with pytest.raises(RunError, match="exit code 7: no memory"):
        resume_detached(folder)
    monkeypatch.setattr("tui_trainer.launching.command_process.sys.executable", str(tmp_path / "none"))
    with pytest.raises(RunError, match="no background process could be started"):
        resume_detached(folder)


@pytest.mark.full
def test_within_a_job_of_slurm_nothing_is_detached(tiny_config, monkeypatch):
    loaded = tiny_config("own")
    plan = estimated_plan(loaded)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(Exception, match="end with this Slurm job"):
        open_detached(loaded, plan)
    assert not Path(loaded.config.output.runs_dir).exists() or not list(Path(loaded.config.output.runs_dir).iterdir())
