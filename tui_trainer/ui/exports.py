"""Exports that were begun on the screens: each in a process of its own, one at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui_trainer.launching.export import ExportProcess
    from tui_trainer.runs.folder import RunFolder
    from tui_trainer.ui.measuring import Bench


class Exports:
    """Nobody waits for it. It goes on beside everything, and when the screens are left."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.newest: ExportProcess | None = None

    @property
    def alive(self) -> ExportProcess | None:
        return self.newest if self.newest is not None and self.newest.alive else None

    def start(self, folder: RunFolder, name: str) -> None:
        from tui_trainer.launching.export import ExportProcess

        if self.alive:
            return
        try:
            self.newest = ExportProcess(folder, name)
        except OSError as error:
            self._bench.tell(f"no process can be started: {error.strerror or error}", "bad")

    def is_of(self, root: Path) -> bool:
        return self.alive is not None and self.alive.run.root == root

    def poll(self) -> None:
        """Once a second. How it ended is told, wherever one is."""
        export = self.newest
        if export is None or not export.poll() or export.outcome is None:
            return
        if export.outcome.is_good:
            self._bench.tell(f"{export.run.name} is exported to {export.name}: {export.outcome.folder}", "good")
        elif not export.is_cancelled:
            self._bench.tell(f"{export.run.name} is not exported to {export.name}: {export.outcome.words[0]}", "bad")

    def let_go(self) -> None:
        if self.newest is not None:
            self.newest.let_go()
