"""Coming back to a run, and watching one without screens."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from tests.programs import journals, run_program, start_program
from tui_trainer.launching.open_run import open_new
from tui_trainer.ui.watch import CurrentRun


@pytest.mark.e2e
def test_resume_opens_the_screens_and_goes_on(open_terminal, small_config, environment):
    config = small_config(steps=400)
    terminal = open_terminal(config)
    terminal.start_run()
    terminal.wait_for_steps(5)
    terminal.press("S")
    terminal.wait_for("Save and stop?")
    terminal.press("enter")
    terminal.wait_for("Stopped at step")
    terminal.press("q")
    assert terminal.wait_for_end() == 3
    stopped = terminal.steps[-1]
    again = open_terminal("resume", "last")
    again.wait_for("of 400")
    again.wait_for("finished")
    assert again.steps == list(range(1, 401)) and stopped < 400
    again.press("q")
    assert again.wait_for_end() == 0


@pytest.mark.e2e
def test_a_run_is_watched_without_screens_and_ctrl_c_ends_only_the_watching(tmp_path, small_config, environment):
    small_config(steps=100_000)
    log = (tmp_path / "log").open("wb")
    files = [os.open(os.devnull, os.O_RDONLY), log.fileno(), log.fileno()]
    run = start_program(
        [str(tmp_path / "small.toml"), "--no-ui"], files=files, environment=environment, folder=tmp_path
    )
    try:
        journal = _wait_for_steps(tmp_path, 5)
        read, write = os.pipe()
        watching = start_program(
            ["attach", "--no-ui", "--json"], files=[files[0], write, log.fileno()], environment=environment,
            folder=tmp_path,
        )  # fmt: skip
        os.close(write)
        with os.fdopen(read) as lines:
            first = json.loads(lines.readline())
            assert first["event"] in {json.loads(line)["event"] for line in journal.read_text().splitlines()}
            watching.send_signal(signal.SIGINT)
            assert watching.wait(1500) == 0
        assert run.poll() is None
        run.send_signal(signal.SIGTERM)
        assert run.wait(1500) == 3
    finally:
        run.kill()
        log.close()
    ended = run_program(["attach", "--no-ui"], environment=environment, folder=tmp_path)
    assert ended.returncode == 3 and "stopped at step" in ended.stdout


@pytest.mark.full
def test_a_run_of_this_process_is_stopped_without_a_file(tiny_config):
    opened = open_new(tiny_config("own", {"training.max_steps": 1_000_000}))
    opened.folder.control.mkdir()
    run = CurrentRun(opened)
    run.start()
    while not (run.poll() and run.state.step):
        assert run.alive
        time.sleep(0.02)
    assert run.ask("save").startswith(f"{opened.folder.control}: cannot request save")
    run.read_new_events()
    assert run.ask("stop") == ""
    run.wait(1500)
    assert run.exit_code == 3
    # What was read before the end does not contain it, and the run has not gone without a word.
    run.apply_new_events()
    assert not run.has_gone and not run.is_interrupted
    run.poll()
    assert run.state.status == "stopped" and not run.has_gone


def _wait_for_steps(folder, least):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        for journal in journals(folder):
            if journal.read_text().count('"StepDone"') >= least:
                return journal
        time.sleep(0.05)
    raise AssertionError("no steps")
