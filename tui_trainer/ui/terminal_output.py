"""Text on its way to a terminal that may be slow, stalled or gone: it never makes the program wait.

Pictures that nobody reads are let go, and that this happened is remembered. A terminal that is gone is given up at
once.
"""

import os
import select
import sys
import threading
from collections import deque
from types import TracebackType
from typing import Any

# About two pictures of a large terminal: more would be the past, and a slow link shows it for seconds.
_LIMIT_CHARACTERS = 64_000
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
            # One picture always has room, however large the terminal is.
            if self._pending_characters and self._pending_characters + len(text) > _LIMIT_CHARACTERS:
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


class LastWords:
    """While entered, prints to a terminal hold nothing up, and the exit waits for them no longer than a second.

    Asking first whether the terminal takes text is not enough: it says yes when it has room for one character.
    """

    def __init__(self) -> None:
        self._writers: dict[int, PatientWriter] = {}
        self._streams: tuple[Any, Any] = (None, None)

    def __enter__(self) -> "LastWords":
        self._streams = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._patient(sys.stdout), self._patient(sys.stderr)
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.end()
        sys.stdout, sys.stderr = self._streams

    def end(self) -> None:
        for writer in self._writers.values():
            writer.stop()

    def _patient(self, stream: Any) -> Any:
        """The stream itself where it is no terminal; one writer where both streams are the same terminal."""
        if stream is None or not stream.isatty():
            return stream
        terminal = os.fstat(stream.fileno()).st_rdev
        if terminal not in self._writers:
            self._writers[terminal] = PatientWriter(stream.fileno())
            self._writers[terminal].start()
        return self._writers[terminal]
