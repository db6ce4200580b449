"""A run in a thread of this process, owned and joined by `main()`: it is no daemon, so that no exit tears a save.

The thread never calls back. What it does is read from the journal; what it should do is written to `control.json`, but
for a stop.
"""

import threading

from tui_trainer.errors import FolderError
from tui_trainer.launching.carry_out import Outcome, carry_out, is_refused
from tui_trainer.launching.start import OpenRun
from tui_trainer.runs import registry


class RunThread:
    """One run. `outcome` is there once `alive` is false."""

    def __init__(self, run: OpenRun) -> None:
        self.run = run
        self.outcome: Outcome | None = None
        self._thread = threading.Thread(target=self._work, name="training", daemon=False)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask for it, as a signal handler may. It is answered whatever the disk does."""
        self.run.controls.stop()

    def join(self, timeout_seconds: float | None = None) -> None:
        self._thread.join(timeout_seconds)

    def _work(self) -> None:
        self.outcome = outcome = carry_out(self.run)
        if is_refused(self.run, outcome):
            discard(self.run)


def discard(run: OpenRun) -> None:
    """Take back the folder of a run that was refused before it had a plan."""
    try:
        gone = run.folder.discard()
    except FolderError:
        return
    if gone:
        registry.forget(run.folder.root)
