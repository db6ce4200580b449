"""Start a process, read its output, end it, and report why it failed."""

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

KILLED_REASON: Final = "killed, probably because memory ran out"
# Time between the cancelling of a process and its killing, in seconds.
_PATIENCE_SECONDS: Final = 5.0
_CHUNK_BYTES: Final = 1 << 16
# A library that prints without line breaks cannot fill more memory than this.
_LINE_BYTES: Final = 1 << 26
_LAST_BYTES: Final = 4096
_WORDS_CHARACTERS: Final = 600


class Child:
    """A child process. Its standard output is a socket, and so is its standard input if it `is_asked`."""

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
        """Start the process. Raises OSError.

        A process that leads its own `group` is ended together with its children, and Ctrl+C in the terminal does not
        reach it. A process with its own `session` also outlives the terminal, but its priority only counts within the
        session (sched(7), autogroup). `output` is a file to print to instead of the socket, because /dev/stdout cannot
        be opened on a socket. `errors` is a file or a descriptor for standard error; None for a temporary file.
        """
        self._started, self._kill_at = monotonic(), inf
        self._rest = self._last_line = b""
        self._owned_errors = tempfile.TemporaryFile() if errors is None else None  # noqa: SIM115  # closed by `stop_reading`
        self._errors = self._owned_errors if errors is None or isinstance(errors, int) else errors
        self._errors_begin = self._errors.seek(0, os.SEEK_END) if self._errors else 0
        self._channel, child_socket = socket.socketpair()
        try:
            self.process = self._spawn(
                command,
                stdin=child_socket if is_asked else None if group == "ours" else subprocess.DEVNULL,
                stdout=output or child_socket,
                stderr=self._errors or errors,
                env=environment,
                start_new_session=group == "session",
                process_group=0 if group == "group" else None,
            )
        except BaseException:
            self.stop_reading()
            raise
        finally:
            child_socket.close()

    def _spawn(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(command, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: Any) -> None:
        """Wait until the process has ended. If an exception was raised, kill the process after five seconds."""
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
        """Exit code of the process; the negative signal number if a signal ended it, None while it runs."""
        return self.process.poll()

    def write(self, words: bytes) -> None:
        """Write to the standard input of a process that `is_asked`. Do nothing if the process has ended."""
        with suppress(OSError):
            self._channel.sendall(words)

    def read_lines(self, seconds: float | None = 0.0) -> list[bytes] | None:
        """Return new lines of output. Wait up to `seconds` for the first one, or without a limit for None.

        Return None once all processes that hold the other end of the socket have closed it.
        """
        if self._channel.fileno() < 0:
            return None
        lines: list[bytes] = []
        poller = select.poll()
        # `poll` accepts at most 2**31 milliseconds.
        milliseconds = None if seconds is None else 1000 * min(max(seconds, 0.0), 1e6)
        poller.register(self._channel, select.POLLIN)
        while poller.poll(milliseconds):
            milliseconds = 0.0
            try:
                chunk = self._channel.recv(_CHUNK_BYTES)
            except OSError:  # the process closed its end without reading all its input
                chunk = b""
            if not chunk and not self._rest:
                return lines or None
            *complete, self._rest = (self._rest + (chunk or b"\n")).split(b"\n")
            if len(self._rest) > _LINE_BYTES:
                self._rest = b""
            # A line of JSON or of a traceback's frames does not explain a failure.
            self._last_line = next((line for line in reversed(complete) if line[:1].strip(b" \t{}")), self._last_line)
            lines += complete
        return lines

    def all_lines(self, until: float = inf) -> Iterator[bytes]:
        """Yield all lines of output. Raises TimeoutError when the monotonic clock reaches `until`."""
        while (lines := self.read_lines(None if until == inf else until - monotonic())) is not None:
            if not lines and monotonic() >= until:
                raise TimeoutError
            yield from lines

    def read_objects(self, until: float = inf) -> Iterator[dict[str, Any]]:
        """Yield the lines of output that are JSON objects. Raises TimeoutError when the clock reaches `until`."""
        return filter(None, map(json_object, self.all_lines(until)))

    @property
    def last_words(self) -> str:
        """Last line of standard error; if that goes to the socket too, the last line of output that is no JSON."""
        last_line = self._last_line
        if self._errors:
            last_line = b""
            with suppress(OSError):
                self._errors.seek(max(self._errors_begin, self._errors.seek(0, os.SEEK_END) - _LAST_BYTES))
                last_line = (self._errors.read().strip().splitlines() or [b""])[-1]
        return one_line(last_line.decode(errors="replace").strip(), _WORDS_CHARACTERS)

    @property
    def failure(self) -> str:
        """Reason why the process ended: that it was killed, or its last words, or its exit code."""
        code = self.process.wait()
        return KILLED_REASON if code == -signal.SIGKILL else self.last_words or exit_words(code)

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def cancel(self) -> None:
        """Send SIGINT, so that the process can clean up. The owner must kill a process that `is_overdue`."""
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
        """Cancel the process without waiting for it. A shell kills it if it does not end within a few seconds."""
        self.cancel()
        if self.exit_code is None:
            kill_command = f"sleep {_PATIENCE_SECONDS:.0f}; kill -s KILL -- -{self.process.pid}"
            Child(["/bin/sh", "-c", kill_command], errors=subprocess.STDOUT).forget()
        self.forget()

    def forget(self) -> None:
        """Let the process run without waiting for it. After a fork, this drops the parent's process."""
        self.stop_reading()
        if self.process.returncode is None:
            self.process.returncode = 0

    def stop_reading(self) -> None:
        """Close the socket, so that the process is not blocked by output that nobody reads."""
        self._channel.close()
        if self._owned_errors:
            self._owned_errors.close()

    def close(self) -> None:
        """Kill the process and wait until it has ended."""
        self.kill()
        self.stop_reading()
        self.process.wait()


def json_object(line: bytes | str) -> dict[str, Any] | None:
    """Return the JSON object in a line; None for any other line, such as the warning of a library."""
    with suppress(ValueError, RecursionError):
        if isinstance(value := json.loads(line), dict):
            return value
    return None


def exit_words(code: int) -> str:
    """Return an exit code in words: `exit code 3`, or `SIGTERM` if this signal ended the process."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def exit_phrase(code: int) -> str:
    """Return how a process ended, as the end of a sentence: `ended with exit code 3`."""
    return f"was {KILLED_REASON}" if code == -signal.SIGKILL else f"ended with {exit_words(code)}"
