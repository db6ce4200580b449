"""The run that this process carries out: started from here, watched through its journal, asked through its controls.

It belongs to `main`, not to the application: the screens may go, the run stays until its thread has ended.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from tui_trainer import lines
from tui_trainer.errors import FolderError
from tui_trainer.runs import controls
from tui_trainer.runs.events import (
    CheckpointSaved,
    EpochDone,
    EvalDone,
    Event,
    Progress,
    RunFailed,
    RunProblem,
    StepDone,
)
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.state import RunState
from tui_trainer.safe_text import one_line
from tui_trainer.ui.spans import Role

if TYPE_CHECKING:
    from tui_trainer.launching.carry_out import Outcome
    from tui_trainer.launching.start import OpenRun
    from tui_trainer.planning.plan import Plan

EVENTS_KEPT = 500
_LOG_TAIL_BYTES = 16_384


class CurrentRun:
    """One run and what is known about it. `poll` takes in what the journal has since."""

    def __init__(self, run: OpenRun, plan: Plan | None = None) -> None:
        from tui_trainer.launching.thread import RunThread

        self.run = run
        self.plan = plan
        self.state = RunState()
        self.events: deque[tuple[str, Role]] = deque(maxlen=EVENTS_KEPT)
        self._reader = JournalReader(run.folder.journal)
        self._told_failing = ""
        self._last_kind: type[Event] | None = None
        self.state.name = run.folder.name
        self._thread = RunThread(run)

    def start(self) -> None:
        """Begin. The thread is no daemon: the process stays until the run has ended."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def outcome(self) -> Outcome | None:
        return self._thread.outcome

    def wait(self, timeout_seconds: float | None = None) -> None:
        self._thread.join(timeout_seconds)

    def poll(self) -> bool:
        """Fold what is new. Whether anything was."""
        news = self._reader.read_new()
        for event in news:
            self.state.apply(event)
            self._note(event)
        reason = self.run.journal.failing
        if reason and reason != self._told_failing:
            self._told_failing = reason
            self._add(f"the journal cannot be written ({one_line(reason)}): training goes on, unseen", "bad")
        return bool(news)

    def ask(self, action: controls.Action) -> str:
        """Ask for pause, resume, save, evaluate or stop. A sentence when it cannot be asked, else nothing."""
        try:
            controls.request(self.run.folder.control, action)
        except FolderError as error:
            return str(error)
        return ""

    @property
    def exit_code(self) -> int:
        """As without a screen: 0 done, 1 failed, 2 wrong input, 3 stopped early with a checkpoint."""
        return self.outcome.exit_code if self.outcome else 0

    def _note(self, event: Event) -> None:
        if isinstance(event, StepDone | Progress):
            return
        if isinstance(event, RunFailed):
            self._add(f"failed: {one_line(event.message)}", "bad")
        elif text := lines.event_line(event, self.state):
            role: Role = "warn" if isinstance(event, RunProblem) else "text"
            if isinstance(event, CheckpointSaved) or (isinstance(event, EvalDone) and not event.best):
                role = "dim"
            passing = isinstance(event, EvalDone | EpochDone)
            if passing and self._last_kind is type(event):
                # What comes again and again stands in one line, or it would push everything else away.
                self.events.pop()
            self._last_kind = type(event)
            for line in text.split("\n"):
                self._add(one_line(line), role)

    def _add(self, text: str, role: Role) -> None:
        self.events.append((text, role))


def tail_of(path: Path | None, most: int) -> list[str]:
    """The last lines of what programs wrote to standard output and error, made safe to show."""
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _LOG_TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # A progress bar writes over its line: what it ended with is what a terminal would show.
    rows = [row.rstrip("\r").rpartition("\r")[2] for row in text.split("\n")]
    return [one_line(row) for row in rows if row.strip()][-most:]
