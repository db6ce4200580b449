"""Commands of this program as child processes, for screens that must neither load torch nor wait."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from tui_trainer.terminal.safe_text import one_line
from tui_trainer.worker.child import Child, exit_phrase, json_object

SENTENCE: Final = "tui-trainer: "
"""Prefix of the program's own messages. Lines without it are warnings of libraries."""
_SENTENCE_CHARACTERS: Final = 600
_NOTHING_DONE: Final = (0.0, None, "")


def program(*arguments: str) -> list[str]:
    """Return the command line of this program. `-P` keeps Python from importing a torch.py of the current folder."""
    return [sys.executable, "-P", "-m", "tui_trainer", *arguments]


class JsonProcess(Child):
    """A command of this program that prints JSON, in a process that also continues after the screens are closed.

    `part` is its current activity, and `progress` the amount done, the total and the unit. `lines` are texts
    to show. `result` is None until the command has succeeded. `reason` says why the command failed."""

    alive = True
    """False once `poll` has noticed the end of the process."""
    cancelled_words = "cancelled"
    part, reason = "loading libraries", ""
    progress: tuple[float, float | None, str] = _NOTHING_DONE
    result: dict[str, Any] | None = None
    _indented: tuple[str, ...] = ()
    """Lines of a JSON object that is not complete yet."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command. Raises OSError if no process can be started."""
        self.lines: list[str] = []
        super().__init__(program(*arguments, "--json"), os.environ | environment, errors=subprocess.STDOUT)

    @property
    def patch(self) -> dict[str, Any]:
        """Better settings that the command found, by key; empty if it found none."""
        return {}

    def poll(self) -> bool:
        """Handle new output of the command. Returns whether the process has ended since the last call."""
        if not self.alive:
            return False
        # The exit status is read before the output, so that no line before the end is missed.
        exit_code = self.exit_code
        for line in self.read_lines() or ():
            self._handle_line(line.decode(errors="replace"))
        if exit_code is not None:
            self.alive = False
            self.stop_reading()
            self._end(exit_code)
        elif self.is_overdue:
            self.kill()
        return not self.alive

    def _take(self, fields: dict[str, Any]) -> None:
        """Handle a JSON object that the command printed. Raises LookupError or TypeError for any other object."""
        self.result = fields

    def _handle_line(self, line: str) -> None:
        if line.startswith(SENTENCE):
            self.part = self.reason = one_line(line.removeprefix(SENTENCE), _SENTENCE_CHARACTERS)
            self.progress = _NOTHING_DONE
            return
        if self._indented or line == "{":
            self._indented += (line,)
            if line != "}":
                return
            line, self._indented = "\n".join(self._indented), ()
        # Other lines are warnings of libraries, as standard error is read too.
        fields = json_object(line) or {}
        with suppress(ValueError, LookupError, TypeError):
            if fields.keys() == {"what", "done", "total", "unit"}:
                self.part = str(fields["what"])
                self.progress = float(fields["done"]), fields["total"], str(fields["unit"])
            elif fields:
                self._take(fields)

    def _end(self, exit_code: int) -> None:
        if self.is_cancelled:
            self.reason = self.cancelled_words
        elif exit_code < 0 or not (self.reason or self.last_words):
            self.reason = f"the process {exit_phrase(exit_code)}"
        else:
            self.reason = self.reason or self.last_words
