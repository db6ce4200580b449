"""The terminal goes away, or the screens do: no step is lost, and nobody is left behind with a broken shell."""

from __future__ import annotations

import os
import signal
import termios
from pathlib import Path

import pytest

STEPS, STEPS_TO_NOTICE = 260, 60
ROWS = 64

RAISES_WHEN_A_FILE_IS_THERE = """
from pathlib import Path
from tui_trainer.ui.screens import train_view

draw = train_view.rates_line

def rates_line(*state_and_width):
    if Path("tear").exists():
        raise RuntimeError("the picture tore")
    return draw(*state_and_width)

train_view.rates_line = rates_line
"""


def assert_no_step_is_missing(terminal, steps: int) -> None:
    assert terminal.steps == list(range(1, steps + 1))


@pytest.mark.e2e
def test_a_run_trains_on_without_its_terminal_and_ends_by_itself(open_terminal, small_config):
    terminal = open_terminal(small_config(steps=STEPS, rows=ROWS))
    terminal.wait_for("t start")
    terminal.start_run()
    terminal.wait_for_steps(20)
    terminal.hang_up()
    # The screens look for a terminal that is gone once a second.
    terminal.wait_for_steps(len(terminal.steps) + STEPS_TO_NOTICE)
    os.kill(terminal.process.pid, signal.SIGHUP)
    os.kill(terminal.process.pid, signal.SIGHUP)
    assert terminal.wait_for_end(180) == 0
    assert_no_step_is_missing(terminal, STEPS)
    last = terminal.events[-1]
    assert last["event"] == "RunFinished" and last["reason"] == "done"


@pytest.mark.e2e
def test_a_run_that_lost_its_terminal_still_saves_when_it_is_terminated(open_terminal, small_config):
    """No signal says that the terminal went: only the end of the input does."""
    terminal = open_terminal(small_config(steps=10_000, rows=ROWS), controlling=False)
    terminal.start_run()
    terminal.wait_for_steps(5)
    terminal.hang_up()
    terminal.wait_for_steps(len(terminal.steps) + 30)
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.wait_for_end() == 3
    kinds = [event["event"] for event in terminal.events]
    assert "CheckpointSaved" in kinds and terminal.events[-1]["reason"] == "stopped"
    assert_no_step_is_missing(terminal, len(terminal.steps))


@pytest.mark.full
def test_a_terminal_that_goes_before_any_run_ends_the_program(open_terminal):
    terminal = open_terminal(controlling=False)
    terminal.wait_for("t start")
    terminal.hang_up()
    assert terminal.wait_for_end() == 0


@pytest.mark.full
def test_an_error_of_the_screens_gives_the_terminal_back_and_the_run_goes_on(open_terminal, small_config, environment):
    terminal = open_terminal(small_config(steps=100_000), prelude=RAISES_WHEN_A_FILE_IS_THERE)
    modes_before = termios.tcgetattr(terminal.master)
    terminal.start_run()
    terminal.wait_for("of 100,000")
    terminal.wait_for_steps(10)
    (terminal.cwd / "tear").touch()
    terminal.wait_for("continues: you may close this terminal")
    terminal.wait_for_steps(len(terminal.steps) + 50)
    terminal.press("ctrl+c")
    assert terminal.wait_for_end() == 3

    assert termios.tcgetattr(terminal.master) == modes_before
    screen_left = terminal.raw.rindex(b"\x1b[?1049l")
    told = terminal.raw[screen_left:].decode()
    assert "the screens failed: RuntimeError: the picture tore" in told and "Traceback" not in told
    assert "\x1b[?25h" in told and "tui-trainer resume" in told
    (report,) = Path(environment["TUI_TRAINER_HOME"]).rglob("crash-*.txt")
    assert "Traceback" in report.read_text() and "the picture tore" in report.read_text()

    events = terminal.events
    assert events[-1]["event"] == "RunFinished" and events[-1]["reason"] == "stopped"
    saved = [event for event in events if event["event"] == "CheckpointSaved"]
    assert saved and saved[-1]["step"] == len(terminal.steps)
    assert_no_step_is_missing(terminal, len(terminal.steps))
