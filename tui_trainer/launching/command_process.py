"""A command of this program in a process of its own, for screens that neither load torch nor wait."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from tui_trainer.terminal.safe_text import one_line

SENTENCE: Final = "tui-trainer: "
"""Stands before what the program itself says, beside warnings of libraries."""
_PATIENCE_SECONDS: Final = 5.0
_CHUNK_BYTES: Final = 1 << 16
_SENTENCE_CHARACTERS: Final = 600
_NOTHING_DONE: Final = (0.0, None, "")


def program(*arguments: str) -> list[str]:
    """The command line of this program with this Python. -P: a torch.py in the folder that the user stands in is not
    ours."""
    return [sys.executable, "-P", "-m", "tui_trainer", *arguments]


class CommandProcess:
    """It goes on whether anybody looks or not. What it prints comes to `_hear`, its end to `_end`."""

    _started: float | None = None

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return 0.0 if self._started is None else monotonic() - self._started

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError where no process can be started."""
        self.is_cancelled = False
        self.alive = True
        self._started, self._kill_at = monotonic(), 0.0
        self._rest = b""
        self._process = subprocess.Popen(
            program(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=os.environ | environment,
            # A group of its own: a hang-up of the terminal does not end it, and a cancel ends its children as well.
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout
        os.set_blocking(self._output.fileno(), False)

    def _hear(self, line: str) -> None:
        raise NotImplementedError

    def _end(self, exit_code: int) -> None:
        raise NotImplementedError

    def poll(self) -> bool:
        """Take in what it has told since. Whether it has ended, and nobody knew."""
        if not self.alive:
            return False
        # Asked first: what it tells before its end is read then.
        exit_code = self._process.poll()
        self._read()
        if exit_code is not None:
            self.alive = False
            self.let_go()
            self._end(exit_code)
        elif self.is_cancelled and monotonic() > self._kill_at:
            self._signal(signal.SIGKILL)
        return exit_code is not None

    def cancel(self) -> None:
        """End it, and leave nothing half-made; a later `poll` knows when it has."""
        if self.alive and not self.is_cancelled:
            self.is_cancelled, self._kill_at = True, monotonic() + _PATIENCE_SECONDS
            # As Ctrl+C: it removes what it has written.
            self._signal(signal.SIGINT)

    def end(self) -> None:
        """Cancel it where nobody looks any more: one that does not end by itself is killed, and not waited for."""
        self.cancel()
        self.let_go()
        later = f"sleep {_PATIENCE_SECONDS:.0f}; kill -s KILL -- -{self._process.pid}"
        none = subprocess.DEVNULL
        killer = subprocess.Popen(
            ["/bin/sh", "-c", later], stdin=none, stdout=none, stderr=none, start_new_session=True
        )
        # Both may outlive this process, which does not wait for them.
        killer.returncode = 0
        if self._process.poll() is None:
            self._process.returncode = 0

    def let_go(self) -> None:
        """Nobody reads any more: it must not wait for a reader."""
        self._output.close()

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _read(self) -> None:
        while not self._output.closed:
            try:
                new = os.read(self._output.fileno(), _CHUNK_BYTES)
            except BlockingIOError:
                return
            if not new:
                return
            *lines, self._rest = (self._rest + new).split(b"\n")
            for line in lines:
                self._hear(line.decode(errors="replace"))


class JsonProcess(CommandProcess):
    """A command that prints JSON. `part` is what it does now, `progress` how much of that is done, of how much and in
    which unit, and `lines` are what it has told so far; `result` is None until it is over, and `reason` says why there
    is none."""

    cancelled = "cancelled"
    progress: tuple[float, float | None, str] = _NOTHING_DONE
    _indented: tuple[str, ...] = ()
    """Lines of an object that is not whole yet."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError where no process can be started."""
        self.lines: list[str] = []
        self.part, self.reason = "loading libraries", ""
        self.result: dict[str, Any] | None = None
        self.exit_code: int | None = None
        super().__init__([*arguments, "--json"], environment)

    @property
    def patch(self) -> dict[str, Any]:
        """Settings that are better; empty: none were found."""
        return {}

    def _take(self, told: dict[str, Any]) -> None:
        """One object of JSON. Raises LookupError or TypeError where it is not of the command."""
        self.result = told

    def _hear(self, line: str) -> None:
        if line.startswith(SENTENCE):
            self.part = self.reason = one_line(line.removeprefix(SENTENCE), _SENTENCE_CHARACTERS)
            self.progress = _NOTHING_DONE
            return
        if self._indented or line == "{":
            self._indented += (line,)
            if line != "}":
                return
            line, self._indented = "\n".join(self._indented), ()
        # Libraries warn on standard error.
        with suppress(ValueError, LookupError, TypeError):
            told = json.loads(line)
            if told.keys() == {"what", "done", "total", "unit"}:
                self.part, self.progress = str(told["what"]), (float(told["done"]), told["total"], str(told["unit"]))
            else:
                self._take(told)

    def _end(self, exit_code: int) -> None:
        self.exit_code = exit_code
        if self.is_cancelled:
            self.reason = self.cancelled
        self.reason = self.reason or f"the process ended with exit code {exit_code}"
