"""Standard input, output and error, made safe: each may be closed, and a reader may be gone or stalled.

A reader stalls after Ctrl+S, in `| less`, or when a connection hangs."""

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
# A terminal sends Ctrl+C to a whole process group, so one press may arrive twice, once through the parent.
ONE_PRESS_SECONDS = 0.3


def open_standard_files() -> None:
    """Open /dev/null for closed standard files. Otherwise the next opened file would get their number, and prints."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # many libraries use attributes of the stream
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
        getattr(sys, name).reconfigure(errors="replace")


def fd_of(stream: Any) -> int | None:
    """Return the file descriptor of a text stream; None if the stream is closed or has no descriptor."""
    if isinstance(stream, io.TextIOWrapper):
        with suppress(OSError, ValueError):
            return stream.fileno()
    return None


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another program has left the terminal in non-blocking mode
            select.select([], [fd], [])


class PatientStream(threading.Thread):
    """Output stream that never blocks its writers for longer than a second, whatever its reader does.

    A thread does the writing. After a stall of a second, writers no longer wait until the reader has read something.
    Text beyond the buffer's limit is dropped, and a line reports how many lines are missing. Polling the terminal
    before a write would not suffice, because a terminal with room for a single character counts as writable."""

    encoding, errors = "utf-8", "replace"

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True, name="patient-output")
        self._fd, self._process = fd, os.getpid()
        self._pending: deque[str] = deque()
        self._pending_characters = 0
        # The condition's lock is reentrant, because a signal handler may print while the lock is held.
        self._changed = threading.Condition()
        self._is_stalled = self._stopping = self._gone = False
        self._lost_lines, self._drops_text = 0, False

    def write(self, text: str) -> int:
        if os.getpid() != self._process:  # after a fork, the writing thread does not exist
            with suppress(OSError):
                write_all(self._fd, text.encode(self.encoding, self.errors))
            return len(text)
        with self._changed:
            if self._gone or self._stopping:
                return len(text)
            # One text always has room. print() writes a line break separately: it is kept or dropped as its line was.
            if text != "\n":
                pending_characters = self._pending_characters
                self._drops_text = pending_characters > 0 and pending_characters + len(text) > _LIMIT_CHARACTERS
            if self._drops_text:
                self._drop(text)
                return len(text)
            self._pending.append(text)
            self._pending_characters += len(text)
            self._changed.notify_all()
            self._wait()
        return len(text)

    def _drop(self, text: str) -> None:
        self._lost_lines += text.count("\n")

    def _wait(self) -> None:
        """Wait until the text is written, so that a later print to another stream appears after it."""
        if not self._is_stalled:
            is_written = self._changed.wait_for(lambda: self._gone or not self._pending_characters, _PATIENCE_SECONDS)
            self._is_stalled = not is_written

    def flush(self) -> None:
        """Do nothing, because the thread writes text as soon as it can."""

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
                    message = f"{subject} skipped here because the output was not read in time"
                    self._pending.append(f"tui-trainer: {message}\n")
                    self._lost_lines = 0
                self._pending_characters = sum(map(len, self._pending))
                self._changed.notify_all()

    def stop(self) -> None:
        """Write the pending text and end the thread. Give up after a second if nobody reads."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self.is_alive():
            self.join(_PATIENCE_SECONDS)


@contextmanager
def never_blocking_stream(name: Literal["stdout", "stderr"]) -> Iterator[None]:
    """Replace a stream by a `PatientStream` within the block, also for libraries, unless it is a regular file."""
    stream = getattr(sys, name)
    fd = fd_of(stream)
    if fd is None or stat.S_ISREG(os.fstat(fd).st_mode):
        yield
        return
    stream.flush()
    replacement = PatientStream(fd)
    replacement.start()
    setattr(sys, name, replacement)
    try:
        yield
    finally:
        replacement.stop()
        if getattr(sys, name) is replacement:
            setattr(sys, name, stream)


def print_to_stderr(sentence: str) -> None:
    """Print a sentence as one line on standard error. A failure to print is ignored."""
    if sys.stderr is not None:  # print() would replace None by standard output
        with suppress(OSError, ValueError):
            print(f"tui-trainer: {one_line(sentence)}", file=sys.stderr, flush=True)


class Interrupts:
    """Counter of Ctrl+C presses: after the first the caller ends cleanly; the second ends the process at once."""

    def __init__(self) -> None:
        self._first_at: float | None = None

    def note(self) -> None:
        now = monotonic()
        if self._first_at is None:
            self._first_at = now
        elif now - self._first_at > ONE_PRESS_SECONDS:
            try:
                print_to_stderr(
                    "ended at once, without saving; `tui-trainer resume` resumes from the latest checkpoint"
                )
            finally:
                os._exit(EXIT_FAILED)


def show_progress(what: str, done: float, total: float | None, unit: str) -> None:
    """Show the progress of work on the last line of a terminal. The line is cleared when the work is done."""
    if sys.stderr is None or not sys.stderr.isatty():
        return
    share_text = f"{done / total:4.0%} of " if total else ""
    line = "" if total and done >= total else f"{what} {share_text}{total or done:,.0f} {unit}"
    with suppress(OSError, ValueError):
        # Line wrapping is off: otherwise part of a long line would not be cleared.
        print(f"\r\x1b[K\x1b[?7l{one_line(line, 79)}\x1b[?7h", end="", file=sys.stderr, flush=True)


def write_progress(what: str, done: float, total: float | None, unit: str) -> None:
    """Write the progress of work as a JSON line on standard error, for a program that reads it."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            print(json.dumps({"what": what, "done": done, "total": total, "unit": unit}), file=sys.stderr, flush=True)


def leave_output(exit_code: int) -> None:
    """Flush standard output after Ctrl+C. If nobody reads it for a second, end the process with `exit_code`."""
    flush_thread = threading.Thread(target=flush_output, daemon=True)
    flush_thread.start()
    flush_thread.join(_PATIENCE_SECONDS)
    if flush_thread.is_alive():
        # An ordinary exit would wait for the same reader.
        os._exit(exit_code)


def flush_output() -> None:
    if sys.stdout is not None:
        with suppress(ValueError):  # the stream is closed
            sys.stdout.flush()


def silence_output() -> None:
    """Send buffered and later output to /dev/null, so that flushing it at exit does not raise again."""
    null_fd = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_fd, sys.stdout.fileno())
    os.close(null_fd)
