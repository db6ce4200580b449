"""Rehearsals that were begun on the screens: each in a process of its own, one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tui_trainer.bench.rehearsal_process import RehearsalProcess
    from tui_trainer.ui.measuring import Bench


class Rehearsals:
    """None beside a run; it ends with the screens."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.process: RehearsalProcess | None = None

    def start(self) -> str:
        """Of the config as it is now. Why not; empty: it goes on."""
        from tui_trainer.bench.rehearsal_process import RehearsalProcess

        if self.process is not None and self.process.alive:
            return ""
        loaded = self._bench.document.loaded if self._bench.document else None
        if self._bench.run_is_alive:
            return "a run trains: beside it a rehearsal would measure neither memory nor time"
        if loaded is None:
            return "the config is still being read"
        try:
            self.process = RehearsalProcess(loaded, self._bench.chosen_gpu)
        except OSError as error:
            return f"no process can be started: {error.strerror or error}"
        return ""

    def poll(self) -> None:
        """Once a second. How it ended is told, wherever one is."""
        if (process := self.process) is not None and process.poll():
            found = process.result
            words = process.lines[-1] if found else f"not rehearsed: {process.reason}"
            self._bench.tell(words, "good" if found and found["is_ready"] else "bad")
            # The plan goes by the seconds that were measured.
            self._bench.config_changed()

    def end(self) -> None:
        if self.process is not None and self.process.alive:
            self.process.cancel()
            self.process.let_go()
