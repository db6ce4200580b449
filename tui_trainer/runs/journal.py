"""journal.jsonl: the append-only events of a run, written by one process and read by any number of others.

The writer never raises for a full or broken disk: the lines wait in memory while training continues, and `failing` has
the reason. If a kill leaves an incomplete line, the next writer ends it, and readers skip and count it. `lock.py`
excludes a second writer.
"""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from tui_trainer.errors import FolderError, system_reason
from tui_trainer.runs import events
from tui_trainer.units import KIB, MIB

PENDING_LIMIT_BYTES: Final = 64 * MIB
CHUNK_BYTES: Final = 4 * MIB
END_BYTES: Final = 256 * KIB


class JournalWriter:
    """Writer that appends events to the journal. Several threads of one process may use it."""

    def __init__(
        self,
        path: Path,
        *,
        pending_limit_bytes: int = PENDING_LIMIT_BYTES,
        on_failure: Callable[[str | None], None] = lambda reason: None,
    ) -> None:
        """Open the journal, or raise FolderError. `on_failure` gets `failure_reason` whenever that changes."""
        self.path = path
        self._fd = _open_for_appending(path)
        self._limit_bytes = pending_limit_bytes
        self._lock = threading.Lock()
        self._write_error: str | None = None
        self._sync_error: str | None = None
        self._other_writer_error: str | None = None
        self._on_failure = on_failure
        self._reported_reason: str | None = None
        self._last_step = 0
        self._is_working = False
        # The file ends within a line, whose rest must be written before anything else.
        self._mid_line = _ends_torn(self._fd)
        self._pending = bytearray(b"\n" if self._mid_line else b"")
        self._write_pending()

    @property
    def failure_reason(self) -> str | None:
        """Reason why the last write or sync failed, in this process or in one that currently writes in its place."""
        return self._write_error or self._sync_error or self._other_writer_error

    def set_other_writer_error(self, reason: str | None) -> None:
        """Record why another process, which writes in place of this one, cannot write; None if it can."""
        self._other_writer_error = reason

    def _report_failing(self) -> None:
        if self.failure_reason != self._reported_reason:
            self._reported_reason = self.failure_reason
            self._on_failure(self.failure_reason)

    def append(self, *new_events: events.Event) -> None:
        """Write the events. Lines that cannot be written are tried again at the next call."""
        lines = "".join([events.to_line(event) + "\n" for event in new_events]).encode("ascii")
        with self._lock:
            for event in new_events:
                self._last_step = max(self._last_step, event.step)
                if isinstance(event, events.PhaseChanged | events.RunFinished | events.RunFailed):
                    self._is_working = isinstance(event, events.PhaseChanged) and event.phase != "paused"
            self._write(lines)

    def append_from_thread(self, event: events.Event) -> None:
        """Write an event of a thread other than the training thread, with the newest step.

        Does nothing before the first phase of this start, during a pause, after the run's end and after `close`.
        """
        with self._lock:
            if self._fd >= 0 and self._is_working:
                self._write(f"{events.to_line(replace(event, step=self._last_step))}\n".encode("ascii"))

    def read_newest_step(self) -> None:
        """Read the newest step, which `append_from_thread` uses, from the file that another process has written to."""
        with self._lock:
            self._last_step = max(self._last_step, _newest_step(self.path))

    def take_over(self) -> None:
        """Resume writing after another process wrote to the file. Ends the last line if it is incomplete."""
        self._other_writer_error = None
        with self._lock:
            if self._fd >= 0 and not self._pending and _ends_torn(self._fd):
                self._mid_line, self._pending = True, bytearray(b"\n")
                self._write_pending()

    def sync(self) -> None:
        if self._fd < 0:
            return
        try:
            os.fsync(self._fd)
            self._sync_error = None
        except OSError as error:
            self._sync_error = system_reason(error)
        self._report_failing()

    def close(self) -> None:
        """Try once more to write the pending lines, then close the file."""
        with self._lock:
            self._write_pending()
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, lines: bytes) -> None:
        self._pending += lines
        self._write_pending()
        self._trim_pending()

    def _write_pending(self) -> None:
        try:
            while self._pending:
                written_bytes = os.write(self._fd, self._pending)
                self._mid_line = self._pending[written_bytes - 1] != _NEWLINE
                del self._pending[:written_bytes]
            self._write_error = None
        except OSError as error:
            self._write_error = system_reason(error)
        self._report_failing()

    def _trim_pending(self) -> None:
        """Drop the oldest pending lines above the limit, but keep the rest of a line that is already partly written."""
        excess_bytes = len(self._pending) - self._limit_bytes
        if excess_bytes <= 0:
            return
        start = self._pending.index(_NEWLINE) + 1 if self._mid_line else 0
        end = self._pending.find(_NEWLINE, start + excess_bytes - 1) + 1
        del self._pending[start:end]


def _newest_step(path: Path) -> int:
    """Return the step of the last StepDone or RunStarted in the last MiB of the file; 0 if there is none."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - MIB))
        for line in reversed(file.read().splitlines()):
            with suppress(ValueError):
                if isinstance(event := events.from_line(line), events.StepDone | events.RunStarted):
                    return event.step
    return 0


class JournalReader:
    """Reader that follows a growing journal, which may not exist yet. `skipped` counts the lines that were not events.

    A journal that was replaced or shortened is read again from its start.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.skipped = 0
        self.failure_reason: str | None = None
        self._offset_bytes = 0
        self._inode = 0
        self._tail = b""
        self._tail_too_long = False

    @property
    def damage(self) -> str:
        """Sentence about the lines that could not be read; empty if there are none."""
        plural = "s" if self.skipped > 1 else ""
        return f"skipped {self.skipped:,} unreadable line{plural} of the journal" if self.skipped else ""

    def read_new(self) -> list[events.Event]:
        """Return the events of all lines that were completed since the last call."""
        return list(self.stream())

    def stream(self) -> Iterator[events.Event]:
        """Yield the events that `read_new` would return, in bounded memory. The caller must consume all events."""
        try:
            fd = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.failure_reason = None if isinstance(error, FileNotFoundError) else system_reason(error)
            return
        try:
            status = os.fstat(fd)
            if status.st_ino != self._inode or status.st_size < self._offset_bytes:  # replaced
                self._offset_bytes, self._tail, self._tail_too_long = 0, b"", False
            self._inode = status.st_ino
            while chunk := self._read_chunk(fd):
                yield from self._events(chunk)
        finally:
            os.close(fd)

    def _read_chunk(self, fd: int) -> bytes:
        try:
            # A buffer for a whole chunk may be refused when memory is short, so it is no larger than needed.
            unread_bytes = os.fstat(fd).st_size - self._offset_bytes
            chunk = os.pread(fd, min(CHUNK_BYTES, unread_bytes), self._offset_bytes) if unread_bytes > 0 else b""
        except OSError as error:
            self.failure_reason = system_reason(error)
            return b""
        self.failure_reason = None
        self._offset_bytes += len(chunk)
        return chunk

    def _events(self, chunk: bytes) -> Iterator[events.Event]:
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        if self._tail_too_long and lines:
            self._tail_too_long = False
            del lines[0]
        if len(self._tail) > events.LINE_LIMIT_BYTES:
            self.skipped += not self._tail_too_long
            self._tail_too_long = True
        if self._tail_too_long:
            self._tail = b""
        for line in filter(None, lines):
            if (event := _event_or_none(line)) is None:
                self.skipped += 1
            else:
                yield event


def last_events(path: Path) -> Iterator[events.Event]:
    """Return the events in the last 256 KiB of a journal. Raises OSError."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - END_BYTES))
        return events_in(file.read())


def events_in(block: bytes) -> Iterator[events.Event]:
    """Return the events in a part of a journal. Skips lines that are not events."""
    parsed_events = map(_event_or_none, block.split(b"\n"))
    return (event for event in parsed_events if event is not None)


_NEWLINE: Final = ord("\n")


def _event_or_none(line: bytes) -> events.Event | None:
    if len(line) > events.LINE_LIMIT_BYTES:
        return None
    try:
        return events.from_line(line)
    except ValueError:
        return None


def _open_for_appending(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        raise FolderError(f"the journal cannot be opened: {system_reason(error)}", where=str(path)) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise FolderError("the journal is not a regular file", where=str(path), hint="move it elsewhere")
    with suppress(OSError):  # a journal that was copied may be readable by others
        os.fchmod(fd, 0o600)
    return fd


def _ends_torn(fd: int) -> bool:
    size_bytes = os.fstat(fd).st_size
    return size_bytes > 0 and os.pread(fd, 1, size_bytes - 1) != b"\n"
