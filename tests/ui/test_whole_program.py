"""The installed program under a real pseudo-terminal: everything by keyboard, from the first screen to the shell."""

from __future__ import annotations

import json
import os
import signal
import termios
from pathlib import Path

import pytest

from tests.combinations import first_by_default
from tui_trainer.config.load import Request
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.start import load_config, open_new

CONFIG = """
[task]
type = "char_lm"

[data]
path = "{data}"
max_length = 32

[model.scratch]
hidden_size = 32
num_hidden_layers = 1
num_attention_heads = 2

[training]
max_steps = {steps}
effective_batch_size = 8
learning_rate = 1e-2

[evaluation]
eval_steps = {eval_steps}
max_eval_rows = 8

[checkpoint]
save_steps = 0

[logging]
sample_steps = 0
logging_steps = 1
"""


@pytest.fixture
def config(tmp_path: Path):
    """Writes the config of a run of seconds: `config(steps=400)`."""

    def write(*, steps: int = 3000, eval_steps: int = 0, text: str = "") -> str:
        data = tmp_path / "data.txt"
        data.write_text(text or "\n".join(f"{n} times {m} is {n * m}." for n in range(40) for m in range(40)))
        path = tmp_path / "small.toml"
        path.write_text(CONFIG.format(data=data, steps=steps, eval_steps=eval_steps))
        return str(path)

    return write


def journal_of(terminal_home: str | Path) -> list[dict]:
    (journal,) = Path(terminal_home).glob("work/runs/*/journal.jsonl")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def kinds(events: list[dict]) -> list[str]:
    return [event["event"] for event in events]


@pytest.mark.parametrize("size", first_by_default([(80, 24), (200, 50)]), ids=["80x24", "200x50"])
def test_everything_by_keyboard(open_terminal, config, tmp_path, size):
    terminal = open_terminal(config(eval_steps=1), size=size)
    modes_before = termios.tcgetattr(terminal.master)
    terminal.wait_for("1 Hardware", "threads", "problems")
    terminal.press("2")
    terminal.wait_for("learning_rate" if size[0] > 100 else "profile", "steps")

    # Three settings edited, one rejected.
    for key, value in (("learning_rate", "2e-3"), ("weight_decay", "0.05"), ("max_length", "24")):
        terminal.press("/", *key, "enter", "enter")
        terminal.press(*["backspace"] * 20, *value, "enter")
        terminal.wait_for(key, value)
        terminal.press("escape")
        terminal.wait_for("t start", gone=f"/ {key}")
    terminal.press("/", *"warmup_steps", "enter", "enter", *["backspace"] * 20, *"-3", "enter")
    terminal.wait_for("-3 is below 0")
    terminal.press("escape")
    terminal.wait_for("Enter edit")
    terminal.press("escape")
    terminal.wait_for("t start", gone="/ warmup_steps")
    # From the last changed setting up to the learning rate: the small screen does not show all of them.
    terminal.press("c", *["up"] * 6)
    shown = terminal.wait_for("weight_decay", "2e-3")
    assert not [line for line in shown.splitlines() if "warmup_steps" in line and "-3" in line]
    terminal.press("c")

    # A fix of the checklist, applied and taken back.
    terminal.press("3")
    terminal.wait_for("fix", "eval", gone="looking")
    terminal.press("o")
    for _ in range(12):
        if "evaluation.eval_steps:" in terminal.text:
            break
        before = terminal.text
        terminal.press("down")
        # One after the other: below the last one is the first.
        for _ in range(300):
            terminal.read(0.2)
            if terminal.text != before:
                break
    terminal.wait_for("evaluation.eval_steps:")
    terminal.press("a")
    terminal.wait_for("applied: evaluation.eval_steps")
    terminal.press("u")
    terminal.wait_for("undid")

    # A run: started, paused, resumed, evaluated, saved, stopped.
    terminal.press("t")
    terminal.wait_for("Start", "steps", "memory")
    terminal.press("enter")
    terminal.wait_for("training", "of 3,000", seconds=90)
    terminal.press("p")
    terminal.wait_for("paused")
    terminal.press("p")
    terminal.wait_for("training", gone="paused ")
    terminal.press("s")
    terminal.wait_for("saved at step")
    (stop_and_leave if size[0] == 80 else leave_with_a_run_alive)(terminal)
    assert terminal.wait_for_end() == 3

    events = journal_of(tmp_path)
    applied = [event["action"] for event in events if event["event"] == "ControlApplied"]
    assert applied == ["pause", "resume", "save", "stop"]
    assert kinds(events)[-1] == "RunFinished" and events[-1]["reason"] == "stopped"
    steps = [event["step"] for event in events if event["event"] == "StepDone"]
    assert steps == list(range(1, len(steps) + 1))
    assert termios.tcgetattr(terminal.master) == modes_before
    for sequence in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?1003l", b"\x1b[?1004l", b"\x1b[?2004l", b"\x1b[<u"):
        assert sequence in terminal.raw[-4000:], sequence
    assert "tui-trainer resume" in terminal.raw[-600:].decode(errors="replace")


def stop_and_leave(terminal) -> None:
    """The run is stopped, and the program is left afterwards."""
    terminal.press("S")
    terminal.wait_for("Save and stop?")
    terminal.press("enter")
    # Stopped is what the journal says; the footer knows when its thread has ended, too.
    terminal.wait_for("stopped", "p resume")
    terminal.press("q")
    terminal.wait_for("Leave?", "in no file yet")
    terminal.press("q")


def leave_with_a_run_alive(terminal) -> None:
    """Quitting asks, and Ctrl+C stops nothing."""
    terminal.press("q")
    terminal.wait_for("Leave?")
    terminal.press("escape")
    terminal.wait_for("training", gone="Leave?")
    terminal.press("ctrl+c")
    terminal.wait_for("Ctrl+C stops nothing")
    terminal.press("q", "s")


def test_a_new_user_trains_after_two_keys(open_terminal):
    terminal = open_terminal(
        "--set", "training.max_steps=3", "--set", "data.max_chars=20000", "--set", "evaluation.max_eval_rows=8"
    )
    terminal.wait_for("t start")
    terminal.press("t")
    terminal.wait_for("Start quickstart?")
    terminal.press("enter")
    terminal.wait_for("finished", "try", seconds=120)
    terminal.press("q")
    assert terminal.wait_for_end() == 0


def wait_for_steps(terminal, tmp_path: Path, least: int) -> None:
    """Until the journal has so many steps."""
    for _ in range(600):
        terminal.read(0.1)
        journals = list(tmp_path.glob("work/runs/*/journal.jsonl"))
        if journals and journals[0].read_text().count('"StepDone"') >= least:
            return
    raise AssertionError(f"no {least} steps:\n{terminal.text}")


def start_run(terminal) -> None:
    terminal.wait_for("t start")
    terminal.press("t")
    terminal.wait_for("Start")
    terminal.press("enter")


def what_was_learnt(events: list[dict]) -> list[tuple]:
    names = ("step", "loss_sum", "tokens", "lr", "grad_norm")
    return [tuple(event[name] for name in names) for event in events if event["event"] == "StepDone"]


@pytest.mark.e2e
def test_keys_change_nothing_that_is_learnt(open_terminal, config, tmp_path, monkeypatch):
    path = config(steps=200)
    terminal = open_terminal(path)
    start_run(terminal)
    wait_for_steps(terminal, tmp_path, 30)
    terminal.press("s", "e", "2", "3", "4", "p")
    terminal.wait_for("paused")
    terminal.press("p")
    terminal.wait_for("finished", seconds=120)
    terminal.press("q")
    assert terminal.wait_for_end() == 0
    shown = journal_of(tmp_path)
    pressed = [event["action"] for event in shown if event["event"] == "ControlApplied"]
    assert pressed == ["save", "evaluate", "pause", "resume"]

    # In this process: torch is loaded only once more.
    (tmp_path / "alone" / "work").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "alone" / "work")
    assert carry_out(open_new(load_config(Request(config_file=Path(path))))).exit_code == 0
    alone = journal_of(tmp_path / "alone")
    assert len(what_was_learnt(alone)) == 200
    assert what_was_learnt(shown) == what_was_learnt(alone)


@pytest.mark.e2e
def test_another_terminal_sees_the_whole_curve_and_its_keys_work(open_terminal, config, environment, tmp_path):
    first = open_terminal(config())
    start_run(first)
    wait_for_steps(first, tmp_path, 40)
    second = open_terminal("attach", "last", size=(120, 35))
    second.wait_for("training", "loss", "events")
    second.press("p")
    second.wait_for("paused")
    first.wait_for("paused")
    paused_at = len(what_was_learnt(journal_of(tmp_path)))
    second.wait_for(f"step {paused_at:>5,} of 3,000")
    second.press("q")
    assert second.wait_for_end() == 0, "a viewer leaves without asking and without stopping anything"
    first.press("p")
    wait_for_steps(first, tmp_path, paused_at + 5)
    first.press("q", "s")
    assert first.wait_for_end() == 3


def test_sigterm_gives_the_terminal_back_and_saves(open_terminal, config, tmp_path):
    terminal = open_terminal(config())
    start_run(terminal)
    wait_for_steps(terminal, tmp_path, 20)
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.wait_for_end() == 3
    assert b"\x1b[?1049l" in terminal.raw
    events = journal_of(tmp_path)
    assert events[-1]["event"] == "RunFinished" and events[-1]["reason"] == "stopped"
    assert "CheckpointSaved" in kinds(events)


def test_sigterm_without_a_run_ends_the_screens(open_terminal):
    terminal = open_terminal()
    terminal.wait_for("t start")
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.wait_for_end() == 128 + signal.SIGTERM
    assert b"\x1b[?1049l" in terminal.raw


@pytest.mark.e2e
def test_a_gain_is_measured_from_the_checklist_while_the_list_is_used(open_terminal, config):
    terminal = open_terminal(config(), size=(120, 35))
    terminal.wait_for("1 Hardware", "threads", "problems")
    terminal.press("3")
    terminal.wait_for("fix", "eval", gone="looking")
    terminal.press("M")
    terminal.wait_for("measuring", "round 1 of 3")
    terminal.press("down", "down", "escape")
    terminal.wait_for("the measuring has ended; what was measured until then is kept", gone="round 1 of 3")
    terminal.press("q")
    assert terminal.wait_for_end() == 0
