"""Standard input, output and error, any of which may be closed, or have nobody at the other end, or somebody who does
not read: Ctrl+S, `| less`, a connection that hangs.
"""

import io
import json
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, Literal

from tui_trainer.errors import EXIT_FAILED
from tui_trainer.terminal.safe_text import one_line

_PATIENCE_SECONDS = 1.0
_LIMIT_CHARACTERS = 64_000
# A terminal that sends Ctrl+C to a whole process group may reach this process twice, once through its parent.
ONE_PRESS_SECONDS = 0.3


def open_standard_files() -> None:
    """Where a standard file is closed, the first file that is opened would take its number, and prints go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # many libraries ask it for something
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        getattr(sys, name).reconfigure(errors="replace")


def fd_of(stream: Any) -> int | None:
    """The descriptor of a stream that Python has opened; None for any other, and for one that is closed."""
    if isinstance(stream, io.TextIOWrapper):
        with suppress(OSError, ValueError):
            return stream.fileno()
    return None


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another program has left the terminal in that mode
            select.select([], [fd], [])


class PatientStream(threading.Thread):
    """Text on its way to somebody who may be slow or stalled, or be gone: nobody here waits for longer than a second,
    and then not again until something is read. What finds no room is let go; who reads again is told of it.

    Asking first whether a terminal takes text is not enough: it says yes when it has room for one character.
    """

    encoding, errors = "utf-8", "replace"

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True, name="patient-output")
        self._fd, self._process = fd, os.getpid()
        self._pending: deque[str] = deque()
        self._pending_characters = 0
        # Of the kind that its owner may take again: a signal may come while it is held.
        self._changed = threading.Condition()
        self._is_stalled = self._stopping = self._gone = False
        self._lost_lines, self._lets_go = 0, False

    def write(self, text: str) -> int:
        if os.getpid() != self._process:  # a fork has no threads
            with suppress(OSError):
                write_all(self._fd, text.encode(self.encoding, self.errors))
            return len(text)
        with self._changed:
            if self._gone or self._stopping:
                return len(text)
            # One text always has room; the end of a line, which print() writes by itself, goes where the line went.
            if text != "\n":
                waits = self._pending_characters
                self._lets_go = waits > 0 and waits + len(text) > _LIMIT_CHARACTERS
            if self._lets_go:
                self._let_go(text)
                return len(text)
            self._pending.append(text)
            self._pending_characters += len(text)
            self._changed.notify_all()
            self._wait()
        return len(text)

    def _let_go(self, text: str) -> None:
        self._lost_lines += text.count("\n")

    def _wait(self) -> None:
        """So that what another stream prints next stands behind it."""
        if not self._is_stalled:
            is_written = self._changed.wait_for(lambda: self._gone or not self._pending_characters, _PATIENCE_SECONDS)
            self._is_stalled = not is_written

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def fileno(self) -> int:
        return self._fd

    def run(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._stopping:
                    self._changed.wait()
                if not self._pending:
                    return
                text = "".join(self._pending)
                self._pending.clear()
            try:
                write_all(self._fd, text.encode(self.encoding, self.errors))
            except OSError:
                with self._changed:
                    self._gone = True
                    self._pending.clear()
                    self._changed.notify_all()
                return
            with self._changed:
                if not self._pending:
                    self._is_stalled = False
                if self._lost_lines:
                    subject = "1 line was" if self._lost_lines == 1 else f"{self._lost_lines:,} lines were"
                    words = f"{subject} skipped here because the output was not read in time"
                    self._pending.append(f"tui-trainer: {words}\n")
                    self._lost_lines = 0
                self._pending_characters = sum(map(len, self._pending))
                self._changed.notify_all()

    def stop(self) -> None:
        """Write what waits; who does not read is left after a second."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self.is_alive():
            self.join(_PATIENCE_SECONDS)


@contextmanager
def patient(name: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Meanwhile nothing that is printed there waits for its reader, by a library in any thread neither."""
    stream = getattr(sys, name)
    fd = fd_of(stream)
    if fd is None or stat.S_ISREG(os.fstat(fd).st_mode):
        yield
        return
    stream.flush()
    instead = PatientStream(fd)
    instead.start()
    setattr(sys, name, instead)
    try:
        yield
    finally:
        instead.stop()
        if getattr(sys, name) is instead:
            setattr(sys, name, stream)


def tell(sentence: str) -> None:
    """One line on standard error, whatever stands in the sentence. That nobody hears it changes no exit code."""
    if sys.stderr is not None:  # print() would take None for standard output
        with suppress(OSError, ValueError):
            print(f"tui-trainer: {one_line(sentence)}", file=sys.stderr, flush=True)


class Interrupts:
    """The first Ctrl+C asks for an end, the second one is it."""

    def __init__(self) -> None:
        self._first: float | None = None

    def note(self) -> None:
        now = monotonic()
        if self._first is None:
            self._first = now
        elif now - self._first > ONE_PRESS_SECONDS:
            try:
                tell("quit at once without saving; `tui-trainer resume` resumes from the latest checkpoint")
            finally:
                os._exit(EXIT_FAILED)


def show_progress(what: str, done: float, total: float | None, unit: str) -> None:
    """How far work is that comes before a run, in place on a terminal's last line; gone when it is done."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    share = f"{done / total:4.0%} of " if total else ""
    line = "" if total and done >= total else f"{what} {share}{total or done:,.0f} {unit}"
    with suppress(OSError, ValueError):
        # Without wrapping: half of a line that is too long for the terminal would stay there.
        print(f"\r\x1b[K\x1b[?7l{one_line(line, 79)}\x1b[?7h", end="", file=sys.stderr, flush=True)


def write_progress(what: str, done: float, total: float | None, unit: str) -> None:
    """The same as a line of JSON on standard error, for programs."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(json.dumps({"what": what, "done": done, "total": total, "unit": unit}), file=sys.stderr, flush=True)


def leave_output(exit_code: int) -> None:
    """After Ctrl+C: what was printed goes out within a second, or this process ends without it."""
    flushing = threading.Thread(target=flush_output, daemon=True)
    flushing.start()
    flushing.join(_PATIENCE_SECONDS)
    if flushing.is_alive():
        # The interpreter would wait for the same reader when it ends.
        os._exit(exit_code)


def flush_output() -> None:
    if sys.stdout is not None:
        with suppress(ValueError):  # closed
            sys.stdout.flush()


def silence_output() -> None:
    """What is still in the buffer would raise once more when the interpreter flushes it at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
