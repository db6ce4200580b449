"""A real pseudo-terminal with the installed program in it, and a terminal emulator that reads what it draws."""

from __future__ import annotations

import json
import os
import re
import select
import termios
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyte
import pytest
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from tests.programs import Program, journals, start_program
from tests.ui.fake_program import FakeProgram

KEYS = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C",
    "left": "\x1b[D", "home": "\x1b[H", "end": "\x1b[F", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "backspace": "\x7f", "space": " ", "ctrl+c": "\x03", "ctrl+l": "\x0c", "ctrl+p": "\x10", "ctrl+r": "\x12",
}  # fmt: skip
PATIENCE_SECONDS = 1500.0
_LOOK_SECONDS = 0.1
_CONFIG = """
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
cpu_threads = 1
max_steps = {steps}
effective_batch_size = {rows}
learning_rate = 1e-2

[evaluation]
eval_steps = 0
max_eval_rows = 8

[checkpoint]
save_steps = 0

[logging]
sample_steps = {sample_steps}
logging_steps = 1
"""
_SEQUENCE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*\x07|\x1b.?|[\x00-\x1f\x7f-\x9f]", re.DOTALL)


class Terminal:
    """A pseudo-terminal of `columns` x `rows` cells; `start` gets its other end and starts a program there."""

    def __init__(self, start: Callable[[int], Any], columns: int, rows: int, cwd: Path) -> None:
        self.cwd = cwd
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.bytes_read = self._journal_bytes = 0
        self.raw = bytearray()
        self._events: list[dict] = []
        self.master, slave = os.openpty()
        termios.tcsetwinsize(slave, (rows, columns))
        self.process = start(slave)
        os.close(slave)

    def read(self, seconds: float = 0.05) -> None:
        """Take in what was drawn within so many seconds; of a program that has ended, all that is left."""
        has_ended, until = not self.alive, time.monotonic() + seconds
        while not self.hung_up and (has_ended or time.monotonic() < until):
            if not select.select([self.master], [], [], 0 if has_ended else max(until - time.monotonic(), 0))[0]:
                return
            try:
                data = os.read(self.master, 65536)
            except OSError:  # nobody holds the other end any more
                return
            self.bytes_read += len(data)
            self.raw += data
            # pyte takes the letter of Kitty's keyboard sequences for text.
            self._stream.feed(data)

    @property
    def hung_up(self) -> bool:
        return self.master < 0

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def send(self, keys: str | bytes) -> None:
        data = keys.encode() if isinstance(keys, str) else keys
        while data:
            data = data[os.write(self.master, data) :]

    @property
    def lines(self) -> list[str]:
        # Not `screen.display`: it stumbles over half of a wide sign that was written over.
        rows, columns = range(self.screen.lines), range(self.screen.columns)
        return ["".join(self.screen.buffer[row][column].data for column in columns) for row in rows]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.lines)

    @property
    def sequences(self) -> list[str]:
        """Every escape sequence and control character that was sent, whole where it is one of a terminal (CSI)."""
        return _SEQUENCE.findall(self.raw.decode(errors="ignore"))

    def wait_for(self, *texts: str, gone: str = "", seconds: float = PATIENCE_SECONDS) -> str:
        """The screen once it shows all of `texts` and not `gone`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            shown = self.text
            if all(text in shown for text in texts) and not (gone and gone in shown):
                return shown
            if not self.alive:
                self.read()
                shown = self.text
                assert all(text in shown for text in texts), f"ended before {texts} was shown:\n{shown}"
                return shown
            self.read()
        raise AssertionError(f"{texts} (without {gone!r}) did not come within {seconds} s:\n{self.text}")

    def press(self, *keys: str) -> None:
        """Press keys by name; anything else is typed as it is.

        Escape comes last, and what it closes is waited for: a busy program that reads it together with the next key
        takes both for one key with Alt.
        """
        assert "escape" not in keys[:-1]
        for key in keys:
            self.send(KEYS.get(key, key))
            self.read(0.02)

    def press_unread(self, *keys: str) -> None:
        """Press keys without taking in what they draw."""
        for key in keys:
            self.send(KEYS.get(key, key))

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        termios.tcsetwinsize(self.master, (rows, columns))

    def hang_up(self) -> None:
        """Close this side of the pseudo-terminal, as a lost connection does."""
        os.close(self.master)
        self.master = -1

    def let_pass(self, seconds: float, *, reading: bool = True) -> float:
        """The length of a measurement: how long it really was. The process may end meanwhile."""
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0 and self.alive:
            if reading and not self.hung_up:
                self.read(min(left, _LOOK_SECONDS))
            else:
                time.sleep(min(left, _LOOK_SECONDS))
        return time.monotonic() - began

    def read_until_quiet(self, seconds: float = PATIENCE_SECONDS) -> None:
        """Until nothing came for more than a tick of the program."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            before = self.bytes_read
            self.let_pass(1.3)
            if self.bytes_read == before:
                return
        raise AssertionError(f"it was still drawing after {seconds} s:\n{self.text}")

    @property
    def events(self) -> list[dict]:
        """The journal of the only run, as far as it is written. Each line is read once: a run makes thousands."""
        for path in journals(self.cwd):
            with path.open("rb") as journal:
                journal.seek(self._journal_bytes)
                for line in journal:
                    if not line.endswith(b"\n"):
                        break  # its rest would come as a line of its own
                    self._events.append(json.loads(line))
                    self._journal_bytes += len(line)
        return self._events

    @property
    def steps(self) -> list[int]:
        return [event["step"] for event in self.events if event["event"] == "StepDone"]

    def wait_for_steps(self, least: int, seconds: float = PATIENCE_SECONDS, *, reading: bool = True) -> None:
        """Until the run has made so many steps."""
        until = time.monotonic() + seconds
        while len(self.steps) < least:
            assert time.monotonic() < until, f"{len(self.steps)} of {least} steps after {seconds} s:\n{self.text}"
            assert self.alive, f"it ended after {len(self.steps)} of {least} steps:\n{self.text}"
            self.let_pass(_LOOK_SECONDS, reading=reading)

    def start_run(self) -> None:
        """From any screen, with two keys."""
        self.wait_for("t start")
        self.press("t")
        self.wait_for("Start ", "memory", "Enter")
        self.press("enter")

    def wait_for_end(self, seconds: float = PATIENCE_SECONDS, *, reading: bool = True) -> int:
        """The exit code; 128 and the number for a signal."""
        until = time.monotonic() + seconds
        while self.alive and time.monotonic() < until:
            self.let_pass(0.05, reading=reading)
        if reading and not self.hung_up:
            self.read()
        if self.alive:
            raise AssertionError(f"it did not end within {seconds} s:\n{self.text}\n{self.process.stacks()}")
        code = self.process.wait()
        return code if code >= 0 else 128 - code


@pytest.fixture(scope="session", autouse=True)
def styles_parsed_once() -> Iterator[None]:
    """Each application parses the same styles anew: a tenth of the processor time of the tests of screens."""
    plain, parsed = Stylesheet._parse_rules, {}

    def parse_rules(self: Stylesheet, css: str, read_from: tuple[str, str], *rest: Any, **more: Any) -> list[RuleSet]:
        key = (css, read_from, rest, *sorted(more.items()), *sorted(self._variables.items()))
        if key not in parsed:
            parsed[key] = plain(self, css, read_from, *rest, **more)
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_rules)
        yield


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """What the program sees: a home of its own, a terminal with 256 colours, no network."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    home = tmp_path / "home"
    home.mkdir()
    return kept | {
        "TERM": "xterm-256color",
        "TUI_TRAINER_HOME": str(home),
        "XDG_CONFIG_HOME": str(tmp_path / "config"),
        "HF_HUB_OFFLINE": "1",
        "LC_ALL": "C.UTF-8",
    }


@pytest.fixture
def open_terminal(tmp_path: Path, environment: dict[str, str]) -> Iterator:
    """Opens the program: `open_terminal("--set", "training.max_steps=20", size=(80, 24))`.

    `prelude` is Python that runs in the program's process before it begins; `controlling=False` takes the hang-up
    signal away.
    """
    opened: list[Terminal] = []

    def open_one(
        *arguments: str,
        size: tuple[int, int] = (80, 24),
        prelude: str = "",
        controlling: bool = True,
        folder: str = "work",
        **more: str,
    ) -> Terminal:
        cwd = tmp_path / folder
        cwd.mkdir(exist_ok=True)

        def start(slave: int) -> Program:
            return start_program(
                arguments, files=[slave] * 3, environment=environment | more, folder=cwd, prelude=prelude,
                controlling=controlling,
            )  # fmt: skip

        terminal = Terminal(start, *size, cwd)
        opened.append(terminal)
        return terminal

    yield open_one
    for terminal in opened:
        terminal.process.kill()
        terminal.process.wait()
        if not terminal.hung_up:
            terminal.hang_up()


def write_small_config(folder: Path, *, steps: int = 3000, rows: int = 8, text: str = "", sample_steps: int = 0) -> str:
    data = folder / "data.txt"
    data.write_text(text or "\n".join(f"{n} times {m} is {n * m}." for n in range(40) for m in range(40)))
    path = folder / "small.toml"
    path.write_text(_CONFIG.format(data=data, steps=steps, rows=rows, sample_steps=sample_steps))
    return str(path)


@pytest.fixture
def small_config(tmp_path: Path) -> Callable[..., str]:
    """Writes the config of a run of seconds, a few milliseconds to a step with 8 rows: `small_config(steps=400)`."""

    return partial(write_small_config, tmp_path)


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeProgram]:
    """Stands for the program wherever screens begin one of its commands."""
    made = FakeProgram(tmp_path / "program", monkeypatch)
    yield made
    made.close()
