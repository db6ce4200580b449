"""A real pseudo-terminal with the installed program in it, and a terminal emulator that reads what it draws."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pyte
import pytest

KEYS = {
    "enter": "\r", "escape": "\x1b", "tab": "\t", "up": "\x1b[A", "down": "\x1b[B", "right": "\x1b[C",
    "left": "\x1b[D", "home": "\x1b[H", "end": "\x1b[F", "pageup": "\x1b[5~", "pagedown": "\x1b[6~",
    "backspace": "\x7f", "space": " ", "ctrl+c": "\x03", "ctrl+l": "\x0c", "ctrl+p": "\x10", "ctrl+r": "\x12",
}  # fmt: skip
PATIENCE_SECONDS = 60.0


class Terminal:
    """The program at the other end of a pseudo-terminal of `columns` x `rows` cells."""

    def __init__(self, arguments: list[str], columns: int, rows: int, environment: dict[str, str], cwd: Path) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.bytes_read = 0
        self.raw = bytearray()
        self.process = pexpect.spawn(
            sys.executable,
            ["-m", "tui_trainer", *arguments],
            dimensions=(rows, columns),
            env=environment,
            cwd=str(cwd),
            timeout=PATIENCE_SECONDS,
        )
        self.process.delaybeforesend = None

    def read(self, seconds: float = 0.05) -> None:
        """Take in what was drawn within so many seconds."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            try:
                data = self.process.read_nonblocking(65536, timeout=left)
            except pexpect.TIMEOUT:
                return
            except pexpect.EOF:
                return
            self.bytes_read += len(data)
            self.raw += data
            # pyte takes the letter of Kitty's keyboard sequences for text.
            self._stream.feed(data)

    @property
    def lines(self) -> list[str]:
        return list(self.screen.display)

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def wait_for(self, *texts: str, gone: str = "", seconds: float = PATIENCE_SECONDS) -> str:
        """The screen once it shows all of `texts` and not `gone`."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            shown = self.text
            if all(text in shown for text in texts) and not (gone and gone in shown):
                return shown
            if not self.process.isalive():
                self.read()
                shown = self.text
                assert all(text in shown for text in texts), f"ended before {texts} was shown:\n{shown}"
                return shown
            self.read()
        raise AssertionError(f"{texts} (without {gone!r}) did not come within {seconds} s:\n{self.text}")

    def press(self, *keys: str) -> None:
        """Press keys by name; anything else is typed as it is."""
        for key in keys:
            self.process.send(KEYS.get(key, key))
            self.read(0.25 if key == "escape" else 0.02)

    def resize(self, columns: int, rows: int) -> None:
        self.screen.resize(rows, columns)
        self.process.setwinsize(rows, columns)

    def wait_for_end(self, seconds: float = PATIENCE_SECONDS) -> int:
        """The exit code; 128 and the number for a signal."""
        until = time.monotonic() + seconds
        while self.process.isalive() and time.monotonic() < until:
            self.read()
        self.read()
        assert not self.process.isalive(), f"it did not end within {seconds} s:\n{self.text}"
        self.process.wait()
        return self.process.exitstatus if self.process.exitstatus is not None else 128 + self.process.signalstatus


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
    """Opens the program: `open_terminal("--set", "training.max_steps=20", size=(80, 24))`."""
    opened: list[Terminal] = []

    def open_one(*arguments: str, size: tuple[int, int] = (80, 24), **more: str) -> Terminal:
        cwd = tmp_path / "work"
        cwd.mkdir(exist_ok=True)
        terminal = Terminal(list(arguments), *size, environment | more, cwd)
        opened.append(terminal)
        return terminal

    yield open_one
    for terminal in opened:
        if terminal.process.isalive():
            terminal.process.kill(9)
        terminal.process.close(force=True)
