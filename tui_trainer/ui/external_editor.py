"""A text in the user's own editor, while the screens stand back."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App


def edit_text_in(app: App[None], command: list[str], text: str) -> str:
    """What the text is when the editor has ended. Raises OSError or ValueError when it cannot be run."""
    if not command:
        raise ValueError("no editor is named")
    if shutil.which(command[0]) is None:
        raise ValueError(f"there is no program {command[0]}")
    with tempfile.TemporaryDirectory(prefix="tui-trainer-") as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(text, encoding="utf-8")
        # Repaints while the screens stand back would fill a queue that nobody empties.
        with app.batch_update(), app.suspend():
            # Descriptors 1 and 2 are the log: the editor gets the terminal itself.
            terminal = sys.__stderr__.fileno() if sys.__stderr__ else 2
            process = subprocess.Popen(
                [*command, str(path)], stdin=0, stdout=terminal, stderr=terminal, process_group=0
            )
            code = process.returncode = _in_foreground(process.pid)
        if code:
            raise ValueError(f"it ended with code {code}")
        return path.read_text(encoding="utf-8", errors="replace") if os.path.lexists(path) else text


def _in_foreground(pid: int) -> int:
    """The exit code of a process that has the terminal to itself: its Ctrl+C and Ctrl+Z are not for training."""
    ours = os.getpgrp()
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        with suppress(OSError):  # no terminal of ours to give away
            os.tcsetpgrp(0, pid)
        while True:
            _, status = os.waitpid(pid, os.WUNTRACED)
            if not os.WIFSTOPPED(status):
                return os.waitstatus_to_exitcode(status)
            # There is no shell that could bring a suspended editor back.
            os.killpg(pid, signal.SIGCONT)
    finally:
        with suppress(OSError):
            os.tcsetpgrp(0, ours)
        signal.signal(signal.SIGTTOU, before)
