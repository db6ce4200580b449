"""Start a process, read what it prints, end it, and report why it failed."""

import json
import os
import select
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import IO, Any, Final, Literal, Self

from tui_trainer.terminal.safe_text import one_line

KILLED: Final = "killed, probably because memory ran out"
# From a cancel until the process is killed.
_PATIENCE_SECONDS: Final = 5.0
_CHUNK_BYTES: Final = 1 << 16
# Limits the memory that a library can fill by printing without line breaks.
_LINE_BYTES: Final = 1 << 26
_LAST_BYTES: Final = 4096
_WORDS_CHARACTERS: Final = 600


class Child:
    """A process with a socket as its standard output, and as its standard input if it `is_asked`."""

    is_cancelled = False

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        group: Literal["session", "group", "ours"] = "session",
        is_asked: bool = False,
        output: IO[bytes] | None = None,
        errors: IO[bytes] | int | None = None,
    ) -> None:
        """Start it. Raises OSError.

        A process `group` is ended as a whole, and Ctrl+C in the terminal does not reach it. A process in its own
        `session` also outlives the terminal, but its priority only counts within the session (sched(7), autogroup).
        `output`: a file to print to instead of the socket, because /dev/stdout cannot be opened on a socket. `errors`:
        a file or a file descriptor; None for a temporary file.
        """
        self._started, self._kill_at = monotonic(), inf
        self._rest = self._last_line = b""
        self._owned_errors = tempfile.TemporaryFile() if errors is None else None  # noqa: SIM115  # closed by `stop_reading`
        self._errors = self._owned_errors if errors is None or isinstance(errors, int) else errors
        self._errors_begin = self._errors.seek(0, os.SEEK_END) if self._errors else 0
        self._channel, theirs = socket.socketpair()
        try:
            self.process = self._spawn(
                command,
                stdin=theirs if is_asked else None if group == "ours" else subprocess.DEVNULL,
                stdout=output or theirs,
                stderr=self._errors or errors,
                env=environment,
                start_new_session=group == "session",
                process_group=0 if group == "group" else None,
            )
        except BaseException:
            self.stop_reading()
            raise
        finally:
            theirs.close()

    def _spawn(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Wait until the process ends. After an error, for example Ctrl+C, it is killed after five seconds."""
        self.stop_reading()
        if raised[0]:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(_PATIENCE_SECONDS)
            self.process.kill()
        self.process.wait()

    @property
    def seconds(self) -> float:
        """Time since the start, in seconds."""
        return monotonic() - self._started

    @property
    def exit_code(self) -> int | None:
        """Exit code; negative for a signal, None while the process runs."""
        return self.process.poll()

    def write(self, words: bytes) -> None:
        """Write to a process that `is_asked`; do nothing if it has ended."""
        with suppress(OSError):
            self._channel.sendall(words)

    def read_lines(self, seconds: float | None = 0.0) -> list[bytes] | None:
        """Return the new lines, waiting up to `seconds` for the first one (None: without a limit).

        Return None once every process that holds the other end of the socket has closed it.
        """
        if self._channel.fileno() < 0:
            return None
        lines: list[bytes] = []
        readable = select.poll()
        # `poll` takes no more than 2**31 milliseconds.
        milliseconds = None if seconds is None else 1000 * min(max(seconds, 0.0), 1e6)
        readable.register(self._channel, select.POLLIN)
        while readable.poll(milliseconds):
            milliseconds = 0.0
            try:
                new = self._channel.recv(_CHUNK_BYTES)
            except OSError:  # the other end was closed before all was read from it
                new = b""
            if not new and not self._rest:
                return lines or None
            *whole, self._rest = (self._rest + (new or b"\n")).split(b"\n")
            if len(self._rest) > _LINE_BYTES:
                self._rest = b""
            # JSON and the frames of a traceback do not explain a failure.
            self._last_line = next((line for line in reversed(whole) if line[:1].strip(b" \t{}")), self._last_line)
            lines += whole
        return lines

    def all_lines(self, until: float = inf) -> Iterator[bytes]:
        """Yield all lines until the end. Raises TimeoutError when the monotonic clock reaches `until`."""
        while (lines := self.read_lines(None if until == inf else until - monotonic())) is not None:
            if not lines and monotonic() >= until:
                raise TimeoutError
            yield from lines

    def objects(self, until: float = inf) -> Iterator[dict[str, Any]]:
        """Yield the lines that are JSON objects. Raises TimeoutError."""
        return filter(None, map(json_object, self.all_lines(until)))

    @property
    def last_words(self) -> str:
        """The last line of standard error, or of the output if both go to the same place."""
        words = self._last_line
        if self._errors:
            words = b""
            with suppress(OSError):
                self._errors.seek(max(self._errors_begin, self._errors.seek(0, os.SEEK_END) - _LAST_BYTES))
                words = (self._errors.read().strip().splitlines() or [b""])[-1]
        return one_line(words.decode(errors="replace").strip(), _WORDS_CHARACTERS)

    @property
    def failure(self) -> str:
        """Why the process ended: it was killed, or its last words, or its exit code."""
        code = self.process.wait()
        return KILLED if code == -signal.SIGKILL else self.last_words or exit_words(code)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def cancel(self) -> None:
        """Send the signal of Ctrl+C, so that the process can clean up. The owner kills it once it `is_overdue`."""
        if self.exit_code is None and not self.is_cancelled:
            self.is_cancelled, self._kill_at = True, monotonic() + _PATIENCE_SECONDS
            self.send_signal(signal.SIGINT)

    @property
    def is_overdue(self) -> bool:
        return monotonic() > self._kill_at

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.process.kill()

    def end(self) -> None:
        """Cancel the process without waiting. A shell kills it if it does not end, even after this program."""
        self.cancel()
        if self.exit_code is None:
            later = f"sleep {_PATIENCE_SECONDS:.0f}; kill -s KILL -- -{self.process.pid}"
            Child(["/bin/sh", "-c", later], errors=subprocess.STDOUT).forget()
        self.forget()

    def forget(self) -> None:
        """Let the process run alone: do not wait for it. After a fork it belongs to the parent process."""
        self.stop_reading()
        if self.process.returncode is None:
            self.process.returncode = 0

    def stop_reading(self) -> None:
        """Close the socket, so that the process does not wait for a reader."""
        self._channel.close()
        if self._owned_errors:
            self._owned_errors.close()

    def close(self) -> None:
        """Kill the process and wait until it has ended."""
        self.kill()
        self.stop_reading()
        self.process.wait()


def json_object(line: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object in a line; None for any other line, such as a library's warning."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(line), dict):
            return value
    return None


def exit_words(code: int) -> str:
    """Return `exit code 3`, or `SIGTERM` for a process ended by a signal."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def ending(code: int) -> str:
    """Return how a process ended, as the end of a sentence: `ended with exit code 3`."""
    return f"was {KILLED}" if code == -signal.SIGKILL else f"ended with {exit_words(code)}"
