"""Textual's Linux driver with a writer that never makes the application wait.

Textual's own writer holds 30 writes and then blocks the event loop for as long as the link is stalled: no key, no
signal and no exit would get through. This one lets pictures go that nobody reads, remembers that it did, and gives up
at once on a terminal that is gone.
"""

from __future__ import annotations

import os
import select
import threading
from collections import deque
from typing import Any

from textual.drivers.linux_driver import LinuxDriver

_LIMIT_CHARACTERS = 200_000
# Mode switches and the brackets around a frame: never let go, or the terminal stays in a mode.
_ALWAYS_KEPT_CHARACTERS = 64
_SWITCHES_KEPT = 200
_PATIENCE_SECONDS = 1.0


class PatientWriter(threading.Thread):
    """Writes text to a terminal from a thread of its own."""

    def __init__(self, fd: int) -> None:
        super().__init__(daemon=True, name="terminal-output")
        self._fd = fd
        self._pending: deque[str] = deque()
        self._pending_characters = 0
        self._changed = threading.Condition()
        self._stopping = False
        self._gone = False
        self._lost = False

    def write(self, text: str) -> None:
        """Queue a text. When too much waits, the pictures that wait are let go. Never blocks."""
        with self._changed:
            if self._gone:
                return
            if self._pending_characters + len(text) > _LIMIT_CHARACTERS:
                # Nobody wants to see the past when the link is back: only the newest mode switches stay.
                short = [one for one in (*self._pending, text) if len(one) <= _ALWAYS_KEPT_CHARACTERS]
                self._pending = deque(short[-_SWITCHES_KEPT:])
                self._pending_characters = sum(map(len, self._pending))
                self._lost = True
                return
            self._pending.append(text)
            self._pending_characters += len(text)
            self._changed.notify()

    def take_lost(self) -> bool:
        """Whether pictures were let go and the terminal reads again: then the whole screen must be drawn anew."""
        with self._changed:
            if not self._lost or self._pending or self._gone:
                return False
            self._lost = False
            return True

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        return True

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
                _write_all(self._fd, text.encode("utf-8", "replace"))
            except OSError:
                with self._changed:
                    self._gone = True
                    self._pending.clear()
                return
            with self._changed:
                self._pending_characters = sum(map(len, self._pending))

    def stop(self) -> None:
        """Write what waits; a terminal that does not read is left after a second."""
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self.is_alive():
            self.join(_PATIENCE_SECONDS)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another program has left the terminal in that mode
            select.select([], [fd], [])


class PatientDriver(LinuxDriver):
    """`LinuxDriver` that makes its writer itself: whatever is put in `_writer_thread` is replaced by a patient one."""

    _patient: PatientWriter | None = None

    @property
    def _writer_thread(self) -> Any:
        return self._patient

    @_writer_thread.setter
    def _writer_thread(self, wanted: Any) -> None:
        self._patient = None if wanted is None else PatientWriter(wanted.fileno())

    def take_lost(self) -> bool:
        """See PatientWriter."""
        return self._patient is not None and self._patient.take_lost()
