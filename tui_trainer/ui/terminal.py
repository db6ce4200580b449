"""The terminal: whether it can show the screens, keeping everything else off it, and text on its way to it.

The screen is written to a duplicate of the terminal. File descriptors 1 and 2 go to a log file while it is up, so that
no warning of a C library, no child process and no stray print can land in the middle of it. A terminal may be slow,
stalled or gone: it never makes the program wait. Pictures that nobody reads are let go, and that this happened is
remembered.
"""

import os
import select
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO

from tui_trainer.errors import InputError
from tui_trainer.terminal.standard_files import PatientStream

# Mode switches and the brackets around a frame: never let go, or the terminal stays in a mode.
_ALWAYS_KEPT_CHARACTERS = 64
_SWITCHES_KEPT = 200
SMALLEST_WIDTH = 60
SMALLEST_HEIGHT = 20
_LOGS_KEPT = 5


class PatientWriter(PatientStream):
    """Of pictures: nobody waits for any, and those that are not read are let go.

    About two pictures of a large terminal have room: more would be the past, and a slow link shows it for seconds.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._lost = False

    def _drop(self, text: str) -> None:
        # Nobody wants to see the past when the link is back: only the newest mode switches stay.
        short = [one for one in (*self._pending, text) if len(one) <= _ALWAYS_KEPT_CHARACTERS]
        self._pending = deque(short[-_SWITCHES_KEPT:])
        self._pending_characters = sum(map(len, self._pending))
        self._lost = True

    def _wait(self) -> None:
        pass

    def settle(self) -> None:
        """Wait, a second at most, until what was written is on the terminal: before somebody else writes there."""
        with self._changed:
            super()._wait()

    def take_lost(self) -> bool:
        """Whether pictures were let go and the terminal reads again: then the whole screen must be drawn anew."""
        with self._changed:
            if not self._lost or self._pending or self._gone:
                return False
            self._lost = False
            return True

    def isatty(self) -> bool:
        return True


def refuse_unfit(environment: Mapping[str, str], command: str = "") -> None:
    """Raises InputError when standard input or error is no terminal, or one that cannot place a cursor."""
    hint = f"to run without screens: tui-trainer {command} --no-ui".replace("  ", " ")
    for number, name in ((0, "standard input"), (2, "standard error")):
        if not os.isatty(number):
            raise InputError(f"{name} is not a terminal, so the screens cannot be shown", hint=hint)
    term = environment.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        shown = f"TERM is {term!r}" if term else "TERM is not set"
        raise InputError(f"{shown}: this terminal cannot position the cursor", hint=hint)


def speaks_unicode(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal is likely to show more than ASCII, by the encoding that the user's locale names."""
    if environment.get("TERM") == "linux":  # the console, whose font has 512 signs and none of Braille
        return False
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environment.get(name)
        # For the locale C, and for one that is not installed, Python sets LC_CTYPE to this (PEP 538).
        if value and (name, value) != ("LC_CTYPE", "C.UTF-8"):
            return "utf" in value.lower()
    # No locale at all is usual in containers, whose terminals are somewhere else and speak UTF-8.
    return True


def ends_with_its_connection(environment: Mapping[str, str]) -> bool:
    """Whether somebody sits at the other end of an SSH connection, and no terminal multiplexer holds this terminal."""
    is_remote = any(map(environment.get, ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT")))
    return is_remote and not any(map(environment.get, ("TMUX", "STY", "ZELLIJ")))


def has_mouse(environment: Mapping[str, str]) -> bool:
    """Whether the terminal hands on the mouse; tmux only where its user said so, and then it selects text by itself."""
    if "TMUX" not in environment:
        return True
    command = ["tmux", "display-message", "-p", "#{mouse}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=1, check=False).stdout.strip() == b"1"
    except (OSError, subprocess.SubprocessError):
        return False


def hung_up(fd: int = 0) -> bool:
    """Whether nobody is at the other end of the terminal any more; sees it without a SIGHUP as well."""
    poll = select.poll()
    poll.register(fd, 0)
    with suppress(OSError):
        return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    return True


class TerminalGuard:
    """While entered, descriptors 1 and 2 are a log file and `sys.__stderr__` is the terminal."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.log_path: Path | None = None
        self.log: IO[str] | None = None
        self._kept: list[int] = []
        self._streams: tuple[object, ...] = ()

    def __enter__(self) -> "TerminalGuard":
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self._streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self._kept = [os.dup(1), os.dup(2)]
        self.terminal = PatientWriter(os.dup(2))
        self.terminal.start()
        log_fd = self._open_log()
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        os.close(log_fd)
        self.log = os.fdopen(os.dup(1), "w", encoding="utf-8", errors="replace", buffering=1)
        sys.__stdout__ = sys.__stderr__ = self.terminal  # type: ignore[misc, assignment]
        sys.stdout = sys.stderr = self.log
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        assert self.log is not None
        self.terminal.stop()
        if not self.terminal.is_alive():
            os.close(self.terminal.fileno())
        with suppress(OSError, ValueError):
            self.log.flush()
        for number, kept in zip((1, 2), self._kept, strict=True):
            os.dup2(kept, number)
            os.close(kept)
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc, assignment]
        with suppress(OSError):
            self.log.close()
        if self.log_path is not None:
            with suppress(OSError):
                if self.log_path.stat().st_size == 0:
                    self.log_path.unlink()

    def _open_log(self) -> int:
        """A private log in the state folder, a nameless temporary file where that cannot be written."""
        try:
            self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._clear_old()
            path = self._logs / f"screen-{os.getpid()}.log"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except OSError:
            with suppress(OSError), tempfile.TemporaryFile() as file:
                return os.dup(file.fileno())
            return os.open(os.devnull, os.O_WRONLY)
        self.log_path = path
        return fd

    def _clear_old(self) -> None:
        """Logs of processes that have ended, but for the newest."""
        ended: list[tuple[float, Path]] = []
        for path in self._logs.glob("screen-*.log"):
            number = path.stem.removeprefix("screen-")
            with suppress(OSError):
                if not (number.isdecimal() and Path(f"/proc/{number}").exists()):
                    ended.append((path.stat().st_mtime, path))
        for _, path in sorted(ended)[:-_LOGS_KEPT]:
            with suppress(OSError):
                path.unlink()
