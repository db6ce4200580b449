"""A command of this program in a process of its own, for screens that neither load torch nor wait."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.child import Child, ending, json_object

SENTENCE: Final = "tui-trainer: "
"""Stands before what the program itself says, beside warnings of libraries."""
_SENTENCE_CHARACTERS: Final = 600
_NOTHING_DONE: Final = (0.0, None, "")


def program(*arguments: str) -> list[str]:
    """The command line of this program with this Python. -P: a torch.py in the folder that the user stands in is not
    ours."""
    return [sys.executable, "-P", "-m", "tui_trainer", *arguments]


class JsonProcess(Child):
    """A command that prints JSON, and goes on whether anybody looks or not. `part` is what it does now, `progress` how
    much of that is done, of how much and in which unit, and `lines` are what it has told; `result` is None until
    it is over, and `reason` says why there is none."""

    alive = True
    """Until `poll` has seen its end."""
    cancelled = "cancelled"
    part, reason = "loading libraries", ""
    progress: tuple[float, float | None, str] = _NOTHING_DONE
    result: dict[str, Any] | None = None
    _indented: tuple[str, ...] = ()
    """Lines of an object that is not whole yet."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Raises OSError where no process can be started."""
        self.lines: list[str] = []
        super().__init__(program(*arguments, "--json"), os.environ | environment, errors=subprocess.STDOUT)

    @property
    def patch(self) -> dict[str, Any]:
        """Settings that are better; empty: none were found."""
        return {}

    def poll(self) -> bool:
        """Take in what it has printed since. Return whether it has ended since."""
        if not self.alive:
            return False
        # Asked first: what it prints before its end is read then.
        exit_code = self.exit_code
        for line in self.read_lines() or ():
            self._hear(line.decode(errors="replace"))
        if exit_code is not None:
            self.alive = False
            self.stop_reading()
            self._end(exit_code)
        elif self.is_overdue:
            self.kill()
        return not self.alive

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
        told = json_object(line) or {}
        with suppress(ValueError, LookupError, TypeError):
            if told.keys() == {"what", "done", "total", "unit"}:
                self.part, self.progress = str(told["what"]), (float(told["done"]), told["total"], str(told["unit"]))
            elif told:
                self._take(told)

    def _end(self, exit_code: int) -> None:
        if self.is_cancelled:
            self.reason = self.cancelled
        elif exit_code < 0 or not (self.reason or self.last_words):
            self.reason = f"the process {ending(exit_code)}"
        else:
            self.reason = self.reason or self.last_words
