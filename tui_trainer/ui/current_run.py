"""The run that this process carries out.

It belongs to `main`, not to the application: the screens may go, the run stays until its thread has ended.
"""

from tui_trainer.errors import EXIT_FAILED, Problem
from tui_trainer.launching.carry_out import Outcome
from tui_trainer.launching.start import OpenRun
from tui_trainer.launching.thread import RunThread
from tui_trainer.safe_text import one_line
from tui_trainer.ui.watch import WatchedRun


class CurrentRun(WatchedRun):
    """One run in a thread of this process."""

    is_ours = True

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run.folder)
        self.is_remembered = run.remembered
        self._journal = run.journal
        self._told_failing = ""
        self._thread = RunThread(run)

    def start(self) -> None:
        """Begin. The thread is no daemon: the process stays until the run has ended."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def outcome(self) -> Outcome | None:
        """How it ended; None before."""
        return self._thread.outcome

    @property
    def refusals(self) -> tuple[Problem, ...]:
        return self.outcome.problems if self.outcome else ()

    @property
    def exit_code(self) -> int:
        """As without a screen: 0 done, 1 failed, 2 wrong input, 3 stopped early with a checkpoint."""
        return self.outcome.exit_code if self.outcome else EXIT_FAILED

    def wait(self, timeout_seconds: float) -> None:
        self._thread.join(timeout_seconds)

    def poll(self) -> bool:
        news = super().poll()
        reason = self._journal.failing
        if reason and reason != self._told_failing:
            self._told_failing = reason
            self._add(f"the journal cannot be written ({one_line(reason)}): training goes on, unseen", "bad")
            return True
        return news
