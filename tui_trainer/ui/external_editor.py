"""A text in the user's own editor, while the screens stand back."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from textual.app import App


def edit_text_in(app: App[None], command: list[str], text: str) -> str:
    """What the text is when the editor has ended. Raises OSError or ValueError when it cannot be run."""
    if not command:
        raise ValueError("no editor is named")
    with tempfile.TemporaryDirectory(prefix="tui-trainer-") as folder:
        path = Path(folder) / "settings.toml"
        path.write_text(text, encoding="utf-8")
        # Repaints while the screens stand back would fill a queue that nobody empties.
        with app.batch_update(), app.suspend():
            # Descriptors 1 and 2 are the log: the editor gets the terminal itself.
            terminal = sys.__stderr__.fileno() if sys.__stderr__ else 2
            code = subprocess.run(
                [*command, str(path)], stdin=0, stdout=terminal, stderr=terminal, check=False
            ).returncode
        if code:
            raise ValueError(f"it ended with code {code}")
        return path.read_text(encoding="utf-8", errors="replace") if os.path.lexists(path) else text
