"""Leave a run in every way that a terminal knows, and count how many go on.

    python -m tests.faults.terminal_sweep [--times N] [--start script|uv|tmux] [WAY ...]

A real shell with job control sits in a pseudo-terminal and starts the program: by its script, by `uv run`, or within
tmux. Prints a line for each way: how often of N it held, and for each failure what was seen.
"""

from __future__ import annotations

import argparse
import atexit
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from tests.ui.conftest import _CONFIG, Terminal

PROJECT = Path(__file__).parents[2]
STARTS = {
    "script": str(Path(sys.executable).with_name("tui-trainer")),
    "uv": f"uv run --no-sync --project {PROJECT} tui-trainer",
    "tmux": str(Path(sys.executable).with_name("tui-trainer")),
}
SHELL = ["bash", "--norc", "--noprofile", "-i"]
PROMPT = "ready> "
# One for all, so that what architectures consist of is asked once.
HOME = Path(tempfile.mkdtemp(prefix="terminal-sweep-home-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
QUICK, ENDLESS = {"training.max_steps": 600}, {"training.max_steps": 100_000}
LOOK_SECONDS, WAIT_SECONDS = 0.05, 120.0
# A save of 50 MB, an evaluation of thousands of rows: there most of the time is spent.
SAVING = {
    "training.max_steps": 40, "checkpoint.save_steps": 1,
    "model.scratch.hidden_size": 512, "model.scratch.num_hidden_layers": 2,
}  # fmt: skip
EVALUATING = {"training.max_steps": 60, "evaluation.eval_steps": 1, "evaluation.max_eval_rows": 20_000}


class Shell(Terminal):
    """A shell at the other end, and the run that was started from it."""

    def __init__(self, folder: Path, start: str) -> None:
        self.program = STARTS[start]
        self.tmux = ["tmux", "-L", f"sweep-{os.getpid()}", "-f", os.devnull] if start == "tmux" else []
        command = [*self.tmux, "new-session", *SHELL, ";", "set", "status", "off"] if self.tmux else SHELL
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(folder), "TERM": "xterm-256color", "LC_ALL": "C.UTF-8",
            "TUI_TRAINER_HOME": str(HOME), "HF_HUB_OFFLINE": "1", "PS1": PROMPT,
        }  # fmt: skip

        def start_shell(terminal: int) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                ["setsid", "--ctty", *command],
                stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder, env=environment,
            )  # fmt: skip

        super().__init__(start_shell, 100, 30, folder)
        self.wait_for(PROMPT.strip())

    def type(self, line: str) -> None:
        self.send(f"{line}\r")

    def open_and_start(self, settings: dict[str, object]) -> None:
        """Start the program, and in it the run."""
        more = "".join(f" --set {name}={value}" for name, value in settings.items())
        self.type(f"{self.program} small.toml{more}")
        self.start_run()

    def leave_training(self) -> None:
        self.press("q")
        self.wait_for("Quit?")
        self.press("l")
        until = time.monotonic() + WAIT_SECONDS
        while b"you may close this terminal" not in self.raw:
            assert time.monotonic() < until, self.text
            self.read()

    def close(self) -> None:
        if self.tmux:
            subprocess.run([*self.tmux, "kill-server"], check=False, capture_output=True)
        if not self.hung_up:
            self.hang_up()

    @property
    def trainer(self) -> psutil.Process | None:
        """The process of the program, however it was started."""
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                is_here = process.cwd() == str(self.cwd) and process.name() != "uv"
                if is_here and any("tui-trainer" in word for word in process.cmdline()):
                    return process
        return None

    def ended_with(self) -> str:
        """What the shell says that the program ended with."""
        self.wait_until("the end of the program", lambda: self.trainer is None)
        self.type("echo ended=$?.")
        self.wait_until("the shell", lambda: re.search(rb"ended=(\d+)\.", self.raw) is not None)
        return re.search(rb"ended=(\d+)\.", self.raw)[1].decode()

    def wait_until(self, what: str, holds: Callable[[], bool]) -> None:
        until = time.monotonic() + WAIT_SECONDS
        while not holds():
            assert time.monotonic() < until, f"{what} did not come within {WAIT_SECONDS:.0f} s:\n{self.text}"
            self.let_pass(LOOK_SECONDS)
            if self.hung_up:
                time.sleep(LOOK_SECONDS)

    def wait_for_more_steps(self, more: int = 5) -> None:
        wanted = len(self.steps) + more
        self.wait_until(f"{more} more steps", lambda: len(self.steps) >= wanted or self.is_finished)

    @property
    def is_finished(self) -> bool:
        return any(event["event"] in ("RunFinished", "RunFailed") for event in self.events)

    def assert_done(self, reason: str = "done") -> None:
        """The run has ended as it should, with every step, and its process is gone."""
        self.wait_until("the end of the run", lambda: self.is_finished)
        last = self.events[-1]
        assert last["event"] == "RunFinished" and last["reason"] == reason, last
        assert self.steps == list(range(1, len(self.steps) + 1)), "a step is missing"
        self.wait_until("the end of the process", lambda: self.trainer is None)

    def assert_terminal_is_given_back(self) -> None:
        """What is typed is echoed and carried out by the shell, on the first screen."""
        # tmux draws by itself.
        assert self.tmux or self.raw.rindex(b"\x1b[?1049l") > self.raw.rindex(b"\x1b[?1049h")
        self.type("echo $((6 * 7))back")
        self.wait_for("echo $((6 * 7))back", "42back")


def close_while(settings: dict[str, object], most: str = "") -> Callable[[Shell], None]:
    """Leave the screens, then close the terminal: at once, or in a run that spends most of its time with `most`."""

    def way(shell: Shell) -> None:
        shell.open_and_start(settings)
        if most:
            shell.wait_for_more_steps(2)
        shell.leave_training()
        assert most or not shell.steps, "it was too late to close the terminal while it loads"
        if most:
            shell.let_pass(random.uniform(0, 1))
        assert not shell.is_finished, "it was too late"
        shell.close()
        shell.assert_done()

    return way


def close_with_screens(shell: Shell) -> None:
    """The connection is lost without leaving first."""
    shell.open_and_start(QUICK)
    shell.wait_for_more_steps()
    shell.close()
    shell.assert_done()


def stop_and_continue_after_leaving(shell: Shell) -> None:
    """Ctrl+Z, bg, fg behind the screens; Ctrl+C saves and stops."""
    shell.open_and_start(ENDLESS)
    shell.wait_for_more_steps()
    shell.leave_training()
    _ctrl_z(shell)
    shell.type("bg")
    shell.wait_for_more_steps()
    shell.type("fg")
    shell.wait_for_more_steps()
    _ctrl_z(shell)
    shell.type("fg")
    shell.wait_for_more_steps()
    shell.press("ctrl+c")
    assert shell.ended_with() == "3"
    shell.assert_done("stopped")


def stop_and_close(shell: Shell) -> None:
    """Ctrl+Z, bg behind the screens, then the terminal is closed."""
    shell.open_and_start({"training.max_steps": 1500})
    shell.leave_training()
    _ctrl_z(shell)
    shell.type("bg")
    shell.wait_for_more_steps()
    shell.close()
    shell.assert_done()


def stop_and_continue_in_the_screens(shell: Shell) -> None:
    """Ctrl+Z, bg, fg within the screens: it trains in the background, and they are drawn anew."""
    shell.open_and_start(ENDLESS)
    shell.wait_for_more_steps()
    for key in ("fg", "bg"):
        _ctrl_z(shell)
        assert "and training are suspended" in shell.text
        shell.assert_terminal_is_given_back()
        _bring_back(shell, key)
    shell.press("2")
    shell.wait_for("recipe")
    _stop_by_keys(shell)


def stopped_without_warning(shell: Shell) -> None:
    """SIGSTOP, then fg, and bg and fg: the terminal is as the shell left it."""
    shell.open_and_start(ENDLESS)
    shell.wait_for_more_steps()
    trainer = shell.trainer
    for key in ("fg", "bg"):
        os.killpg(os.getpgid(trainer.pid), signal.SIGSTOP)
        shell.wait_until("stop", lambda: trainer.status() == psutil.STATUS_STOPPED)
        shell.let_pass(0.3)
        _bring_back(shell, key)
    _stop_by_keys(shell)


def in_the_background_from_the_start(shell: Shell) -> None:
    """Started with &: the screens come with fg."""
    shell.type(f"{shell.program} small.toml --set training.max_steps=400 &")
    shell.wait_until("the program", lambda: shell.trainer is not None)
    shell.let_pass(2.0)
    shell.type("fg")
    shell.start_run()
    shell.wait_for("finished", seconds=WAIT_SECONDS)
    shell.press("q")
    assert shell.ended_with() == "0"
    shell.assert_done()


def without_screens(prefix: str) -> Callable[[Shell], None]:
    def way(shell: Shell) -> None:
        """The terminal is closed under a run without screens."""
        shell.type(f"{prefix} {shell.program} small.toml --no-ui --set training.max_steps=2000 {'&' if prefix else ''}")
        shell.wait_until("the first steps", lambda: len(shell.steps) > 1)
        shell.close()
        shell.assert_done()

    return way


# Letters of other encodings, halves of letters, an old mouse's report, reports that no terminal sends.
STRAY = [
    b"\xff", b"\xe9", b"\xc3", b"\x80\x80", b"\xf0\x9f\x98", b"\x1b[M\xe0\xf0\x80", b"\x1b[M q!",
    b"\x1b[99999999999999999999u", b"\x1b[<9999999999999999999;1;1M", b"\x1b]11;rgb:\xff\xff\x07", b"\x00\x01\x02",
    b"\x1b[200~caf\xe9\x1b[201~", b"\x1b[200~\xff\xfe" + b"x" * 5000 + b"\x1b[201~", b"\x1b",
]  # fmt: skip


def stray_bytes(shell: Shell) -> None:
    """Bytes that are no text, no key and no report."""
    shell.open_and_start(ENDLESS)
    shell.wait_for_more_steps()
    for stray in STRAY:
        shell.send(stray)
        shell.let_pass(0.3)
    shell.wait_for_more_steps()
    shell.press("escape")
    shell.let_pass(0.5)
    shell.press("2")
    shell.wait_for("recipe")
    shell.press("escape")
    shell.let_pass(0.5)
    _stop_by_keys(shell)


def terminated_while_nobody_reads(shell: Shell) -> None:
    """The terminal reads no more, as with a hung ssh; then SIGTERM."""
    shell.open_and_start(ENDLESS)
    shell.wait_for_more_steps()
    wanted = len(shell.steps) + 50
    shell.press_unread("1", "2", "3", "4")
    until = time.monotonic() + WAIT_SECONDS
    while len(shell.steps) < wanted:
        assert time.monotonic() < until
        time.sleep(LOOK_SECONDS)
    trainer, before = shell.trainer, shell.steps[-1]
    trainer.send_signal(signal.SIGTERM)
    until = time.monotonic() + WAIT_SECONDS
    while not shell.is_finished:
        assert time.monotonic() < until, "SIGTERM was not answered"
        time.sleep(LOOK_SECONDS)
    shell.assert_done("stopped")
    print(f"    {shell.steps[-1] - before} steps after SIGTERM", file=sys.stderr)


def _ctrl_z(shell: Shell) -> None:
    seen = len(shell.raw)
    shell.send(b"\x1a")
    shell.wait_until("the shell", lambda: b"Stopped" in shell.raw[seen:])
    shell.wait_until("a stopped process", lambda: shell.trainer.status() == psutil.STATUS_STOPPED)


def _bring_back(shell: Shell, by: str) -> None:
    """The screens are drawn anew, by `fg` at once or after `bg`."""
    if by == "bg":
        shell.type("bg")
        shell.wait_for_more_steps()
    _clear(shell)
    shell.type("fg")
    shell.wait_for("of 100,000", "4 Train")
    shell.wait_for_more_steps()


def _stop_by_keys(shell: Shell) -> None:
    shell.press("q", "s")
    assert shell.ended_with() == "3"
    shell.assert_terminal_is_given_back()
    shell.assert_done("stopped")


def _clear(shell: Shell) -> None:
    shell.type("clear")
    shell.wait_until("a clear terminal", lambda: shell.text.strip() in (PROMPT.strip(), ""))


WAYS: dict[str, Callable[[Shell], None]] = {
    "leave, close while loading": close_while(QUICK),
    "leave, close while training": close_while(QUICK, "training"),
    "leave, close while evaluating": close_while(EVALUATING, "evaluating"),
    "leave, close while saving": close_while(SAVING, "saving"),
    "close with the screens up": close_with_screens,
    "leave, Ctrl+Z, bg, fg, Ctrl+Z, fg, Ctrl+C": stop_and_continue_after_leaving,
    "leave, Ctrl+Z, bg, close": stop_and_close,
    "Ctrl+Z, fg, Ctrl+Z, bg, fg in the screens": stop_and_continue_in_the_screens,
    "SIGSTOP, fg, SIGSTOP, bg, fg in the screens": stopped_without_warning,
    "started in the background, fg": in_the_background_from_the_start,
    "no screens, nohup, close": without_screens("nohup"),
    "no screens, close": without_screens(""),
    "stray bytes": stray_bytes,
    "SIGTERM while nobody reads the screens": terminated_while_nobody_reads,
}


@contextmanager
def shell_in_a_folder(start: str) -> Iterator[Shell]:
    folder = Path(tempfile.mkdtemp(prefix="terminal-sweep-"))
    (folder / "data.txt").write_text("\n".join(f"{n} times {m} is {n * m}." for n in range(40) for m in range(40)))
    (folder / "small.toml").write_text(_CONFIG.format(data="data.txt", steps=600, rows=8, sample_steps=0))
    shell = Shell(folder, start)
    try:
        yield shell
    finally:
        shell.close()
        while left := shell.trainer:
            left.kill()
            time.sleep(LOOK_SECONDS)
        shell.process.kill()
        shell.process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def sweep(way: str, start: str, times: int) -> list[str]:
    """What went wrong, each with what was seen."""
    wrong = []
    for _ in range(times):
        with shell_in_a_folder(start) as shell:
            try:
                WAYS[way](shell)
            except (AssertionError, OSError):
                wrong.append(f"{traceback.format_exc(limit=-2)}\n{shell.text}")
    return wrong


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ways", nargs="*", metavar="WAY", help="parts of their names")
    parser.add_argument("--times", type=int, default=20, metavar="N")
    parser.add_argument("--start", choices=STARTS, default="script")
    asked = parser.parse_args()
    failures = 0
    for name in WAYS:
        began = time.monotonic()
        if not asked.ways or any(part in name for part in asked.ways):
            wrong = sweep(name, asked.start, asked.times)
            failures += len(wrong)
            held, seconds = asked.times - len(wrong), time.monotonic() - began
            print(f"{asked.start}: {name}: {held} of {asked.times} ({seconds:.0f} s)", flush=True)
            for one in wrong:
                print("  " + one.replace("\n", "\n  "), flush=True)
    sys.exit(bool(failures))
