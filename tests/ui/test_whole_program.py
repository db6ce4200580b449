"""The installed program under a real pseudo-terminal: everything by keyboard, from the first screen to the shell."""

from __future__ import annotations

import os
import re
import signal
import termios
from pathlib import Path

import pytest

from tests.runs.journals import read_all
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs.events import StepDone


@pytest.mark.full
def test_everything_by_keyboard(open_terminal, small_config):
    terminal = open_terminal(small_config(steps=100_000))
    modes_before = termios.tcgetattr(terminal.master)
    terminal.wait_for("1 Hardware", "threads", "problems")
    terminal.press("F")
    terminal.wait_for("the mouse selects text of the terminal: F makes clicks work here")
    assert "\x1b[?1003l" in terminal.sequences
    terminal.press("F")
    terminal.wait_for("clicks work here: F lets the mouse select text of the terminal")
    terminal.press("2")
    terminal.wait_for("profile", "can start")
    terminal.press("/", *"weight_decay", "enter", "enter", *["backspace"] * 20, *"0.05", "enter")
    terminal.wait_for("weight_decay", "0.05", "Enter edit", "steps 100 k")
    terminal.start_run()
    terminal.wait_for("training", "of 100,000")
    terminal.press("p")
    terminal.wait_for("paused")
    terminal.press("p")
    terminal.wait_for("training", gone="paused ")
    terminal.press("s")
    terminal.wait_for("saved at step")
    terminal.press("ctrl+c")
    terminal.wait_for("Ctrl+C stops nothing here")

    # The screens are left, the run trains on, and Ctrl+C in the shell saves and stops it.
    terminal.press("q")
    terminal.wait_for("Quit?", "l train on in this terminal", "s save, stop")
    terminal.press("l")
    # Its lines scroll by while the terminal reads.
    terminal.wait_for("/100000")
    assert b"continues: you may close this terminal" in terminal.raw
    for sequence in ("\x1b[?1049l", "\x1b[?25h", "\x1b[?1003l", "\x1b[?1004l", "\x1b[?2004l", "\x1b[<u"):
        assert sequence in terminal.sequences, sequence
    terminal.wait_for_steps(len(terminal.steps) + 50)
    terminal.press("ctrl+c")
    assert terminal.wait_for_end() == 3
    assert "saved checkpoints/" in terminal.text and terminal.text.count("stopped at step") == 1
    assert "tui-trainer resume" in terminal.raw[-600:].decode(errors="replace")
    assert termios.tcgetattr(terminal.master) == modes_before

    events = terminal.events
    applied = [event["action"] for event in events if event["event"] == "ControlApplied"]
    assert applied == ["pause", "resume", "save", "stop"]
    assert events[-1]["event"] == "RunFinished" and events[-1]["reason"] == "stopped"
    assert terminal.steps == list(range(1, len(terminal.steps) + 1))


@pytest.mark.e2e
def test_keys_change_nothing_that_is_learnt(open_terminal, small_config, tmp_path, monkeypatch):
    path = small_config(steps=200)
    terminal = open_terminal(path)
    terminal.start_run()
    terminal.wait_for_steps(30)
    terminal.press("s", "E", "2", "3", "4", "p")
    terminal.wait_for("paused")
    terminal.press("p")
    terminal.wait_for("finished", seconds=120)
    terminal.press("q")
    assert terminal.wait_for_end() == 0
    pressed = [event["action"] for event in terminal.events if event["event"] == "ControlApplied"]
    assert pressed == ["save", "evaluate", "pause", "resume"]

    # In this process: torch is loaded only once more.
    (tmp_path / "alone").mkdir()
    monkeypatch.chdir(tmp_path / "alone")
    run = open_new(load_config(Request(config_file=Path(path))))
    assert execute_run(run).exit_code == 0
    alone = [event for event in read_all(run.folder.journal) if isinstance(event, StepDone)]
    names = ("step", "loss_sum", "tokens", "lr", "grad_norm")
    learnt = [tuple(event[name] for name in names) for event in terminal.events if event["event"] == "StepDone"]
    assert len(learnt) == 200
    assert learnt == [tuple(getattr(event, name) for name in names) for event in alone]


@pytest.mark.e2e
def test_another_terminal_sees_the_whole_curve_its_keys_work_and_it_tries_the_model(open_terminal, small_config):
    first = open_terminal(small_config(steps=100_000))
    first.start_run()
    first.wait_for_steps(40)
    second = open_terminal("attach", "last", size=(120, 35))
    second.wait_for("training", "loss", "events")
    second.press("p")
    second.wait_for("paused")
    first.wait_for("paused")
    paused_at = len(first.steps)
    second.wait_for(f"step {paused_at:>7,} of 100,000")
    second.press("p", "s")
    second.wait_for("saved at step")
    second.press("w")
    status = second.wait_for("training continues; on the CPU")
    saved = re.search(r"latest checkpoint: step (\d+),", status)
    assert saved and int(saved[1]) >= paused_at
    second.press(*"3 times", "enter")
    second.wait_for("weights of step-", "on the CPU")
    second.press("escape")
    first.wait_for_steps(len(first.steps) + 20)
    second.wait_for("events", gone="Try the model")
    third = open_terminal("attach", "last", "--view")
    third.wait_for("view", "training", "loss")
    third.press("S")
    third.wait_for("stop: this is a read-only view")
    third.press("q")
    assert third.wait_for_end() == 0
    said = third.text.replace("\n", "")
    assert " of 100,000; " in said and "attach" in said and "shows the run" in said
    second.press("q")
    assert second.wait_for_end() == 0, "a viewer leaves without asking and without stopping anything"
    first.press("q", "s")
    assert first.wait_for_end() == 3


def test_sigterm_without_a_run_ends_the_screens(open_terminal):
    terminal = open_terminal()
    terminal.wait_for("t start")
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.wait_for_end() == 128 + signal.SIGTERM
    assert b"\x1b[?1049l" in terminal.raw
