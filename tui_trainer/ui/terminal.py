"""The terminal: whether it can show the screens, how to keep other output off it, and how to write screens to it.

The screens are written to a duplicate of the terminal's descriptor. Meanwhile, descriptors 1 and 2 are a log file, so
that warnings of C libraries, child processes and stray prints do not appear on the screen. The program never waits for
a slow or closed terminal: frames that are not read are dropped, and the screen is drawn again later.
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
from typing import IO

from tui_trainer.errors import InputError
from tui_trainer.terminal.standard_files import PatientStream

# Texts up to this length switch a mode, or start or end a frame. They are kept, so that no mode stays on.
_ALWAYS_KEPT_CHARACTERS = 64
_SWITCHES_KEPT = 200
SMALLEST_WIDTH = 60
SMALLEST_HEIGHT = 20
_LOGS_KEPT = 5


class PatientWriter(PatientStream):
    """Output stream for frames. Writing never waits: frames that the terminal does not read are dropped.

    It holds about two frames of a large terminal. With more, a slow link would show frames that are seconds old.
    """

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._lost = False

    def _drop(self, text: str) -> None:
        # Old frames are useless once the terminal reads again, so only the newest mode switches are kept.
        kept_pieces = [piece for piece in (*self._pending, text) if len(piece) <= _ALWAYS_KEPT_CHARACTERS]
        self._pending = deque(kept_pieces[-_SWITCHES_KEPT:])
        self._pending_characters = sum(map(len, self._pending))
        self._lost = True

    def _wait(self) -> None:
        pass

    def drain_output(self) -> None:
        """Wait up to a second until the terminal has read all output. Call before another program uses the terminal."""
        with self._changed:
            super()._wait()

    def consume_lost_flag(self) -> bool:
        """Return whether the screen must be redrawn, because frames were dropped and the terminal now reads again."""
        with self._changed:
            if not self._lost or self._pending or self._gone:
                return False
            self._lost = False
            return True

    def isatty(self) -> bool:
        return True


def refuse_unfit(environment: Mapping[str, str], command: str = "") -> None:
    """Raise InputError if standard input or error is no terminal, or if the terminal cannot position the cursor."""
    hint = f"to run without screens: tui-trainer {command} --no-ui".replace("  ", " ")
    for fd, name in ((0, "standard input"), (2, "standard error")):
        if not os.isatty(fd):
            raise InputError(f"{name} is not a terminal, so the screens cannot be shown", hint=hint)
    term = environment.get("TERM", "")
    if term in ("", "dumb", "unknown"):
        problem = f"TERM is {term!r}" if term else "TERM is not set"
        raise InputError(f"{problem}: this terminal cannot position the cursor", hint=hint)


def speaks_unicode(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal probably shows more than ASCII, judged by the encoding in the user's locale."""
    if environment.get("TERM") == "linux":  # the font of the Linux console has 512 characters and no Braille
        return False
    for name in ("LC_ALL", "LC_CTYPE", "LANG"):
        value = environment.get(name)
        # Python sets LC_CTYPE to this value if the locale is C or not installed (PEP 538).
        if value and (name, value) != ("LC_CTYPE", "C.UTF-8"):
            return "utf" in value.lower()
    # Containers usually have no locale, but the terminal is on another machine that uses UTF-8.
    return True


def ends_with_its_connection(environment: Mapping[str, str]) -> bool:
    """Return whether a lost connection closes the terminal: it belongs to SSH, without a multiplexer such as tmux."""
    is_remote = any(map(environment.get, ("SSH_CONNECTION", "SSH_TTY", "SSH_CLIENT")))
    return is_remote and not any(map(environment.get, ("TMUX", "STY", "ZELLIJ")))


def has_mouse(environment: Mapping[str, str]) -> bool:
    """Return whether the terminal reports mouse events. tmux reports them only if its user has enabled that."""
    if "TMUX" not in environment:
        return True
    command = ["tmux", "display-message", "-p", "#{mouse}"]
    try:
        return subprocess.run(command, capture_output=True, timeout=1, check=False).stdout.strip() == b"1"
    except (OSError, subprocess.SubprocessError):
        return False


def is_hung_up(fd: int = 0) -> bool:
    """Return whether the terminal has been closed, even if no SIGHUP was sent."""
    poll = select.poll()
    poll.register(fd, 0)
    with suppress(OSError):
        return any(event & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, event in poll.poll(0))
    return True


class TerminalGuard:
    """Context in which descriptors 1 and 2 are a log file, and `sys.__stderr__` writes to the terminal."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self.log_path: Path | None = None
        self.log: IO[str]

    def __enter__(self) -> "TerminalGuard":
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        self._streams = (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
        self._saved_fds = [os.dup(1), os.dup(2)]
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

    def __exit__(self, *_: object) -> None:
        self.terminal.stop()
        if not self.terminal.is_alive():
            os.close(self.terminal.fileno())
        with suppress(OSError, ValueError):
            self.log.flush()
        for fd, saved_fd in zip((1, 2), self._saved_fds, strict=True):
            os.dup2(saved_fd, fd)
            os.close(saved_fd)
        sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__ = self._streams  # type: ignore[misc]
        with suppress(OSError):
            self.log.close()
        if self.log_path is not None:
            with suppress(OSError):
                if self.log_path.stat().st_size == 0:
                    self.log_path.unlink()

    def _open_log(self) -> int:
        """Return the descriptor of a private log in the state folder, or of a temporary file if that fails."""
        try:
            self._logs.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._delete_old_logs()
            path = self._logs / f"screen-{os.getpid()}.log"
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except OSError:
            with suppress(OSError), tempfile.TemporaryFile() as file:
                return os.dup(file.fileno())
            return os.open(os.devnull, os.O_WRONLY)
        self.log_path = path
        return fd

    def _delete_old_logs(self) -> None:
        """Delete logs whose process has ended, except for the newest few."""
        ended_logs: list[tuple[float, Path]] = []
        for path in self._logs.glob("screen-*.log"):
            pid = path.stem.removeprefix("screen-")
            with suppress(OSError):
                if not (pid.isdecimal() and Path(f"/proc/{pid}").exists()):
                    ended_logs.append((path.stat().st_mtime, path))
        for _, path in sorted(ended_logs)[:-_LOGS_KEPT]:
            with suppress(OSError):
                path.unlink()
