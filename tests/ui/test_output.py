"""What reaches the terminal: nothing of other programs, nothing that holds the run up, and what it can show."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

# More than a pseudo-terminal and the writer hold together.
PAGES_TURNED, MORE_BYTES_THAN_FIT, KEY_SECONDS = 30, 300_000, 0.12
TOAST = "\u258c"
LOG = ("straight to one", "straight to two", "from a child", "from its error", "from print")

WRITES_INSIDE_A_STEP = r"""
import faulthandler, os, subprocess
from tui_trainer.runs.journal import JournalWriter

append, done = JournalWriter.append, []

def append_and_write(self, *events):
    append(self, *events)
    if any(getattr(event, "step", 0) >= 5 for event in events) and not done:
        done.append(True)
        faulthandler.dump_traceback(all_threads=False)
        os.write(1, b"straight to one \x1b[2J\x1b]0;owned\x07\n")
        os.write(2, b"straight to two \x1b[31;1H\x9b2J [bold red]\n")
        subprocess.run(["sh", "-c", "echo from a child; echo from its error >&2"], check=True)
        print("from print \x1b[?1049l", flush=True)

JournalWriter.append = append_and_write
"""


@pytest.mark.e2e
def test_a_stalled_reader_costs_no_step_and_gets_the_whole_screen_later(open_terminal, small_config, tmp_path):
    config = small_config(steps=100_000, rows=32)
    # Two of the same: what the one that is read sends is more than the other one's terminal can hold.
    read, stalled = (
        open_terminal(config, size=(200, 50), folder=name, TUI_TRAINER_HOME=str(tmp_path / f"home of {name}"))
        for name in ("read", "stalled")
    )
    for terminal in (read, stalled):
        terminal.start_run()
    for terminal in (read, stalled):
        terminal.wait_for("of 100,000")
        terminal.wait_for_steps(20)
    drawn_before = read.bytes_read, stalled.bytes_read

    def press(*keys: str) -> None:
        for key in keys:
            read.press_unread(key)
            stalled.press_unread(key)
            read.let_pass(KEY_SECONDS)

    # Whole pictures until none has room any more, small ones into the room that is left, and then a page that is new.
    while read.bytes_read - drawn_before[0] < MORE_BYTES_THAN_FIT:
        press("4", "ctrl+l", "2", "ctrl+l")
    press(*["down", "up"] * PAGES_TURNED, "3")
    stalled.wait_for_steps(len(stalled.steps) + 200, reading=False)
    steps = stalled.steps
    assert steps == list(range(1, len(steps) + 1))
    os.kill(read.process.pid, signal.SIGTERM)
    assert read.wait_for_end() == 3

    # Once it reads again, the whole screen is there without a key: what a fresh drawing shows. The header counts steps.
    shown = lines_at_rest(stalled)
    assert stalled.bytes_read - drawn_before[1] < (read.bytes_read - drawn_before[0]) / 2, "pictures were let go"
    assert any("finding" in line for line in shown)
    stalled.press("ctrl+l")
    assert lines_at_rest(stalled) == shown

    # And SIGTERM gets through while nobody reads.
    stalled.press_unread(*["4", "ctrl+l", "2"] * PAGES_TURNED)
    stalled.wait_for_steps(len(stalled.steps) + 100, reading=False)
    os.kill(stalled.process.pid, signal.SIGTERM)
    assert stalled.wait_for_end(reading=False) == 3
    assert "CheckpointSaved" in [event["event"] for event in stalled.events]
    assert stalled.events[-1]["reason"] == "stopped"


@pytest.mark.full
def test_what_programs_write_goes_to_the_log_pane_and_not_to_the_screen(open_terminal, small_config, environment):
    terminal = open_terminal(small_config(steps=100_000), size=(120, 40), prelude=WRITES_INSIDE_A_STEP)
    terminal.start_run()
    terminal.wait_for_steps(10)
    terminal.wait_for("of 100,000")
    # The last sign may have come in part.
    sent = terminal.raw.decode(errors="ignore")
    assert not [text for text in LOG if text in sent]
    terminal.press("L")
    # What was written as a sequence of a terminal is shown as signs, and does nothing.
    terminal.wait_for(*LOG, "\u241b[2J\u241b]0;owned\u2407", "[bold red]", "\u241b[?1049l")
    (log,) = Path(environment["TUI_TRAINER_HOME"]).rglob("screen-*.log")
    assert b"most recent call first" in log.read_bytes(), "a traceback of faulthandler is there as well"
    assert "\x1b[2J" not in terminal.sequences and "\x1b[?1049l" not in terminal.sequences
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.wait_for_end() == 3
    assert terminal.sequences.count("\x1b[?1049l") == 1
    assert "38" in colours_of(terminal) and not terminal.raw.isascii(), "256 colours, and signs of all kinds"


@pytest.mark.e2e
def test_every_size_is_the_terminals_and_is_drawn_right_while_it_trains(open_terminal, small_config):
    terminal = open_terminal(small_config(steps=100_000), size=(60, 20), COLUMNS="80", LINES="24")
    terminal.wait_for("start here", "? help")
    assert terminal.lines[-1].endswith("? help"), terminal.text
    terminal.start_run()
    # The number of steps is cut at 60 columns.
    terminal.wait_for("training", "step", " of 1")
    for columns, rows in ((80, 24), (59, 20), (200, 50)):
        terminal.resize(columns, rows)
        if columns < 60:
            terminal.wait_for("needs 60x20", f"terminal: {columns}x{rows}", "training continues", gone="events")
            assert len([line for line in terminal.lines if line.strip()]) == 3
            continue
        terminal.wait_for("4 Train", "step", "events", "machine" if columns == 200 else "speed", gone="needs")
        # Page 2 stands still but for the machine's memory: what came after the change of size is what a fresh drawing
        # shows.
        terminal.press("2")
        terminal.wait_for("hardware_profile")
        shown = lines_at_rest(terminal)
        terminal.press("ctrl+l")
        assert _without_memory(lines_at_rest(terminal)) == _without_memory(shown)
        assert all(len(line) == columns for line in shown)
        terminal.press("4")
    os.kill(terminal.process.pid, signal.SIGTERM)
    assert terminal.wait_for_end() == 3


def lines_at_rest(terminal):
    """Below the header, which counts steps; without what the doctor tells in a corner meanwhile, on a busy machine."""
    for _ in range(5):
        terminal.wait_for(gone=TOAST)
        terminal.read_until_quiet()
        if TOAST not in terminal.text:
            return terminal.lines[1:]
    raise AssertionError(f"a corner is never free:\n{terminal.text}")


def _without_memory(lines):
    """Without what other programs use at this moment: two lines, and a bar beside the settings."""
    return [
        line.partition(" machine ")[0] for line in lines if not line.startswith("machine") and " in use " not in line
    ]


KINDS = {
    "16 colours, C locale": ({"TERM": "xterm", "LC_ALL": "C"}, []),
    "no colour, ascii": ({"NO_COLOR": "1"}, ["--ascii"]),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.slow if "no colour" in kind else pytest.mark.e2e) for kind in KINDS]
)
def test_all_screens_and_dialogs_on_every_kind_of_terminal(open_terminal, small_config, kind):
    variables, arguments = KINDS[kind]
    terminal = open_terminal(*arguments, small_config(steps=60, sample_steps=20), size=(120, 35), **variables)
    terminal.wait_for("t start", "libraries")
    terminal.press("2")
    terminal.wait_for("max_length", "can start")
    terminal.press("p")
    terminal.wait_for("Choose a recipe")
    terminal.press("escape")
    terminal.wait_for("t start", gone="Choose a recipe")
    terminal.press("3")
    terminal.wait_for("finding", gone="checking")
    terminal.press(":")
    terminal.wait_for("Search actions, settings", "Checklist: up")
    terminal.press("\u00fc", "q", "z")
    terminal.wait_for("No matches")
    terminal.press("escape")
    terminal.wait_for("t start", gone="No matches")
    terminal.press("?")
    terminal.wait_for("Keys")
    terminal.press("escape")
    terminal.wait_for("t start", gone="Keys")
    terminal.start_run()
    terminal.wait_for("finished", "you type", seconds=120)
    terminal.press("w")
    terminal.wait_for("Try the model")
    terminal.press("enter")
    terminal.wait_for("Enter to generate again")
    terminal.press("escape")
    terminal.wait_for("you type", gone="Enter to generate again")
    terminal.press("q")
    assert terminal.wait_for_end() == 0

    colours = colours_of(terminal)
    assert terminal.raw.isascii(), sorted({sign for sign in terminal.raw.decode() if not sign.isascii()})
    assert bool(colours) == ("no colour" not in kind) and not colours & {"38", "48"}


def colours_of(terminal) -> set[str]:
    """The parameters of graphic renditions that are colours; the default colours (39, 49) are none."""
    codes = {code for one in terminal.sequences if one.endswith("m") for code in one[2:-1].split(";")}
    return {code for code in codes if re.fullmatch(r"[34][0-8]|9[0-7]|10[0-7]", code)}
