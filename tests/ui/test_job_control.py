"""A shell with job control: Ctrl+Z, `bg`, `fg`, and the terminal closed; and bytes that mean nothing."""

from __future__ import annotations

import os
import re
import signal
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.faults.terminal_sweep import STRAY

pytestmark = pytest.mark.full

# The program becomes a job of a shell: it has the terminal until it stops, then the shell reads `fg` or `bg`.
AS_A_JOB = """
import os, signal

job = os.fork()
if job:
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(job, job)
    os.write(1, b"job=%d." % job)
    command = b"fg"
    while True:
        if command == b"fg":
            os.tcsetpgrp(0, job)
        os.killpg(job, signal.SIGCONT)
        if command == b"fg":
            status = os.waitpid(job, os.WUNTRACED)[1]
            if not os.WIFSTOPPED(status):
                os._exit(os.waitstatus_to_exitcode(status))
            os.tcsetpgrp(0, os.getpgrp())
            os.write(1, b"Stopped\\r\\n")
        command = os.read(0, 100).strip()
os.setpgid(0, 0)
"""


@pytest.fixture
def open_job(open_terminal):
    """Opens the program as a job of a shell; its process comes with the terminal."""
    jobs = []

    def open_one(*arguments, prelude=""):
        terminal = open_terminal(*arguments, prelude=AS_A_JOB + prelude)
        terminal.wait_for("t start")
        jobs.append(psutil.Process(int(re.search(rb"job=(\d+)\.", terminal.raw)[1])))
        return terminal, jobs[-1]

    yield open_one
    for job in jobs:
        with suppress(psutil.NoSuchProcess):
            job.kill()


def stop(terminal, job):
    seen = len(terminal.raw)
    terminal.send(b"\x1a")
    while b"Stopped" not in terminal.raw[seen:]:
        terminal.let_pass(0.1)
        assert terminal.alive
    assert job.status() == psutil.STATUS_STOPPED
    return bytes(terminal.raw[seen:])


def type_to_the_shell(terminal, command):
    """On a terminal that shows nothing else, so that what comes is new."""
    terminal.screen.reset()
    terminal.send(f"{command}\r")


def bring_back(terminal):
    """What is typed before the program has taken the terminal is the shell's, and dropped."""
    seen = len(terminal.raw)
    type_to_the_shell(terminal, "fg")
    while b"\x1b[?1049h" not in terminal.raw[seen:]:
        terminal.let_pass(0.1)
        assert terminal.alive


def leave_training(terminal):
    terminal.press("q")
    terminal.wait_for("Quit?")
    terminal.press("l")
    terminal.wait_for("you may close this terminal")


def test_the_run_goes_on_when_the_terminal_is_closed_after_leaving_ctrl_z_and_bg(open_job, small_config):
    """The shell's end sends the job SIGHUP, and SIGCONT."""
    terminal, job = open_job(small_config(steps=300))
    terminal.start_run()
    leave_training(terminal)
    stop(terminal, job)
    type_to_the_shell(terminal, "bg")
    terminal.hang_up()
    terminal.process.wait(1500)
    job.wait(1500)
    assert terminal.steps == list(range(1, 301))
    assert terminal.events[-1]["event"] == "RunFinished" and terminal.events[-1]["reason"] == "done"


def test_ctrl_z_gives_the_shell_the_terminal_bg_trains_on_and_fg_shows_it_again(open_job, small_config):
    terminal, job = open_job(small_config(steps=100_000))
    terminal.start_run()
    terminal.wait_for_steps(5)
    left = stop(terminal, job).decode(errors="replace")
    assert left.index("\x1b[?1049l") < left.index("and training are suspended: `bg` continues training")
    made = len(terminal.steps)
    terminal.let_pass(0.5)
    assert len(terminal.steps) == made

    type_to_the_shell(terminal, "bg")
    terminal.wait_for_steps(made + 20)
    assert "of 100,000" not in terminal.text, "it must not draw on the shell's terminal"
    bring_back(terminal)
    terminal.wait_for("of 100,000", "4 Train")
    # Also with a dialog open, and when nobody could prepare for it.
    terminal.press("?")
    terminal.wait_for("Keys")
    stop(terminal, job)
    bring_back(terminal)
    terminal.wait_for("Keys", "Esc close")
    terminal.press("escape")
    # What the program has not read yet would be the shell's.
    terminal.wait_for("of 100,000", gone="Esc close")
    os.killpg(job.pid, signal.SIGSTOP)
    terminal.wait_for("Stopped")
    bring_back(terminal)
    terminal.wait_for("of 100,000", "4 Train")

    leave_training(terminal)
    stop(terminal, job)
    type_to_the_shell(terminal, "bg")
    terminal.wait_for_steps(len(terminal.steps) + 20)
    type_to_the_shell(terminal, "fg")
    while os.tcgetpgrp(terminal.master) != job.pid:
        terminal.let_pass(0.1)
    terminal.press("ctrl+c")
    assert terminal.wait_for_end() == 3
    assert terminal.events[-1]["reason"] == "stopped"


def test_sigterm_in_the_background_saves_and_touches_no_terminal(open_job, small_config):
    terminal, job = open_job(small_config(steps=100_000))
    terminal.start_run()
    terminal.wait_for_steps(5)
    stop(terminal, job)
    type_to_the_shell(terminal, "bg")
    terminal.wait_for_steps(len(terminal.steps) + 20)
    seen = len(terminal.raw)
    job.terminate()
    while terminal.events[-1]["event"] != "RunFinished":
        terminal.let_pass(0.1)
    assert terminal.events[-1]["reason"] == "stopped"
    type_to_the_shell(terminal, "fg")
    assert terminal.wait_for_end() == 3
    assert b"\x1b[?1049" not in terminal.raw[seen:]


def test_no_byte_of_the_terminal_ends_the_screens(open_terminal, small_config, environment):
    terminal = open_terminal(small_config(steps=100_000))
    terminal.start_run()
    terminal.wait_for_steps(5)
    for stray in STRAY:
        terminal.send(stray)
        terminal.let_pass(0.2)
    terminal.press("escape")
    terminal.let_pass(0.5)
    terminal.press("2")
    terminal.wait_for("recipe", "value")
    # Nobody could continue this process: its parent is of another session.
    terminal.send(b"\x1a")
    terminal.wait_for("there is no shell to resume it")
    terminal.wait_for_steps(len(terminal.steps) + 5)
    terminal.press("4", "q")
    terminal.wait_for("Quit?")
    terminal.press("s")
    assert terminal.wait_for_end() == 3
    assert not [*Path(environment["TUI_TRAINER_HOME"]).rglob("crash-*")]


@pytest.mark.parametrize("way", ["closed", "left when it trains"])
def test_a_run_that_is_just_being_started_is_not_lost(open_terminal, small_config, way):
    terminal = open_terminal(
        small_config(steps=300),
        prelude="""
import time
from pathlib import Path
from tui_trainer.launching import open_run as start

open_new = start.open_new

def waits(*arguments, **more):
    while not Path("go").exists():
        time.sleep(0.01)
    return open_new(*arguments, **more)

start.open_new = waits
""",
    )
    terminal.start_run()
    terminal.wait_for("starting ...")
    if way == "closed":
        terminal.hang_up()
        (terminal.cwd / "go").touch()
    else:
        terminal.press("q")
        terminal.wait_for("A run is starting")
        (terminal.cwd / "go").touch()
        terminal.wait_for("A run is active in this process")
        terminal.press("l")
    assert terminal.wait_for_end() == 0
    assert terminal.steps == list(range(1, 301)) and terminal.events[-1]["event"] == "RunFinished"
