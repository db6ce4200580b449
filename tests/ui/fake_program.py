"""A program in place of Python for the commands that screens begin: it prints what a test says, and ends when told."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

_SCRIPT = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >> begun
cat says 2> /dev/null
read code < ends
cat ends_with 2> /dev/null
exit "$code"
"""


class FakeProgram:
    """What is begun with `sys.executable` from now on. One command goes on at a time, until `end` or a signal."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self._folder, program = folder, folder / "python"
        program.write_text(_SCRIPT)
        program.chmod(0o700)
        os.mkfifo(folder / "ends")
        # Open at both ends: neither side waits for the other.
        self._ends = os.open(folder / "ends", os.O_RDWR)
        monkeypatch.setattr(sys, "executable", str(program))

    @property
    def commands(self) -> list[str]:
        """The arguments of what was begun, without the interpreter's own."""
        begun = self._folder / "begun"
        lines = begun.read_text().splitlines() if begun.exists() else []
        return [line.removeprefix("-P -m tui_trainer ").removesuffix(" --json") for line in lines]

    def says(self, *told: str | dict[str, Any]) -> None:
        """Lines of the next command; a dict is one of JSON."""
        self._write("says", told)
        self._write("ends_with", ())

    def end(self, *told: str | dict[str, Any], code: int = 0) -> None:
        """Let the command that goes on end, after some more lines."""
        self._write("ends_with", told)
        os.write(self._ends, f"{code}\n".encode())

    def close(self) -> None:
        os.close(self._ends)

    def _write(self, name: str, told: tuple[str | dict[str, Any], ...]) -> None:
        lines = [one if isinstance(one, str) else json.dumps(one) for one in told]
        (self._folder / name).write_text("".join(f"{line}\n" for line in lines))
