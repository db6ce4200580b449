"""Runs that the screens show. Their state and events come from the journal; requests go through the control file.

`CurrentRun` trains in a thread of this process. It belongs to `main` and outlives the screens.
"""

import os
from collections import deque
from pathlib import Path
from threading import Lock

from textual.notifications import SeverityLevel

from tui_trainer.advice.examine import Doctor
from tui_trainer.errors import EXIT_FAILED, FolderError, Problem, RunError
from tui_trainer.launching.open_run import OpenRun
from tui_trainer.launching.run_lifecycle import Outcome, RunThread
from tui_trainer.lines import plan_and_events as lines
from tui_trainer.runs import controls, events, slurm
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.lock import is_under_way, read_lock_owner
from tui_trainer.runs.result import ending_words, kept_step
from tui_trainer.runs.state import RunState
from tui_trainer.runs.wording import interrupted_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.ui.spans import Role

EVENTS_KEPT = 500
_LOG_TAIL_BYTES = 16_384


class WatchedRun:
    """A run that the screens show. `read_new_events` reads new events from a disk that may be slow, and
    `apply_new_events` applies them.

    `apply_new_events` must be called in the thread that draws. `poll` calls both.
    """

    is_trained_here = False
    """Whether this process trains the run."""
    has_report = False

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.state = RunState(name=folder.name)
        self.doctor = Doctor(self.state)
        self.events: deque[tuple[str, Role]] = deque(maxlen=EVENTS_KEPT)
        self._job, self._job_words = slurm.WatchedJob(folder), ""
        self._reader = JournalReader(folder.journal)
        self._looking = Lock()
        self._new: deque[events.Event] = deque()
        self._is_alive = False
        self._shown = (False, False, False)
        self._last_kind: type[events.Event] | None = None
        self.news: list[tuple[str, SeverityLevel]] = []
        """Pairs of message and severity for a user who looks at another page. The workbench empties the list."""
        self.has_gone = False
        """Whether the run's process was killed while it was watched. The workbench reports this and resets it."""

    @property
    def alive(self) -> bool:
        """Whether a process owned the run, or a Slurm job for it ran or waited, at the last `read_new_events`."""
        return self._is_alive

    @property
    def takes_requests(self) -> bool:
        """Whether the run can be paused, saved or stopped. An ended run that still writes its report cannot."""
        # A Slurm job that is queued again may have a journal in which an earlier start has ended.
        return self.alive and (not self.state.has_ended or bool(self._job_words))

    @property
    def is_interrupted(self) -> bool:
        """Whether the run has begun and not ended, although no process owns it."""
        # A run that this process trained may have been taken by another process.
        return not (self.alive or self._is_alive) and bool(self.state.phase) and not self.state.has_ended

    def read_new_events(self) -> None:
        """Read new events and keep them until `apply_new_events` applies them, possibly in another thread."""
        with self._looking:
            # Read before the journal: if the run has ended by now, the journal read below is complete.
            is_alive = is_under_way(self.folder.lock, self._job)
            self._new.extend(self._reader.read_new())
            # Read again afterwards: if another process takes the run meanwhile, the journal may contain its start.
            self._is_alive = is_alive or is_under_way(self.folder.lock, self._job)
            self.has_report = self.folder.report.is_file()

    def poll(self) -> bool:
        self.read_new_events()
        return self.apply_new_events()

    def apply_new_events(self) -> bool:
        """Apply the events that `read_new_events` has read. Return whether there is something new to show."""
        shown_state, was_alive = (self._is_alive, self.alive, self.has_report), self._shown[0]
        has_news, self._shown = bool(self._new) or shown_state != self._shown, shown_state
        while self._new:
            event = self._new.popleft()
            self.state.apply(event)
            self._note(event)
        if was_alive and self.is_interrupted:
            self.has_gone = True
            self._add(interrupted_words(self.state), "bad")
        if verdict := self.doctor.examine_news():
            self._add(
                f"step {verdict.step}: doctor: {verdict.words}", "text" if verdict.leading_finding is None else "warn"
            )
            if verdict.leading_finding is not None:
                self.news.append((verdict.words, "warning"))
        if (job_text := self._job.words) != self._job_words:
            self._job_words = job_text
            self._add(job_text, "text")
            return True
        return has_news

    def ask(self, action: controls.ControlAction) -> str:
        """Request pause, resume, save, evaluate or stop. Return why the request failed; empty if it did not."""
        try:
            if read_lock_owner(self.folder.lock) is not None or not self._job.is_active():
                controls.request(self.folder.control, action)
            elif action != "stop":
                return f"{self._job.words}: the run can only be stopped, which removes it from the queue"
            else:
                slurm.cancel(self._job.job)
        except (FolderError, RunError) as error:
            return str(error)
        return ""

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.StepDone | events.Progress):
            return
        if isinstance(event, events.RunFailed):
            self._add(f"failed: {one_line(event.message)}", "bad")
            self.news.append((f"the run failed: {event.message}", "error"))
        elif isinstance(event, events.RunFinished):
            message, loss = f"the run {ending_words(self.state)}", event.eval_loss
            # If the weights of an earlier step are kept, the message already contains a score.
            message += f", held-out loss {loss:.4f}" if loss is not None and kept_step(self.state) is None else ""
            self.news.append((message, "information"))
        elif text := lines.event_line(event, self.state):
            role: Role = "warn" if isinstance(event, events.RunProblem) else "text"
            if isinstance(event, events.CheckpointSaved) or (isinstance(event, events.EvalDone) and not event.best):
                role = "dim"
            elif isinstance(event, events.RunProblem | events.EvalDone):
                self.news.append((text, "warning" if isinstance(event, events.RunProblem) else "information"))
            is_repeatable = isinstance(event, events.EvalDone | events.EpochDone)
            replaces_last = is_repeatable and self._last_kind is type(event)
            for line in text.split("\n"):
                if replaces_last and self.events:
                    # Repeated events of one kind replace each other: many would push all others out of the list.
                    self.events.pop()
                self._add(one_line(line), role)
            self._last_kind = type(event)

    def _add(self, text: str, role: Role) -> None:
        self._last_kind = None
        self.events.append((text, role))


def tail_of(path: Path | None, max_lines: int) -> list[str]:
    """Return the last lines of a log file, at most `max_lines` and without blank lines."""
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - _LOG_TAIL_BYTES, 0))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    # A progress bar overwrites its line: a terminal shows what follows the last carriage return.
    rows = [row.rstrip("\r").rpartition("\r")[2] for row in text.split("\n")]
    return [one_line(row) for row in rows if row.strip()][-max_lines:]


class CurrentRun(WatchedRun):
    """A run that a thread of this process trains."""

    is_trained_here = True

    def __init__(self, run: OpenRun) -> None:
        super().__init__(run.folder)
        self.is_remembered = run.is_in_index
        self._journal = run.journal
        self._reported_failure = ""
        self._thread = RunThread(run)

    def start(self) -> None:
        """Start the thread. The thread is no daemon, so the process lives until the run has ended."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.alive

    @property
    def outcome(self) -> Outcome | None:
        return self._thread.outcome

    @property
    def refusals(self) -> tuple[Problem, ...]:
        """Problems with the input for which this process refused the run; empty if it did not."""
        return self.outcome.problems if self.outcome else ()

    @property
    def exit_code(self) -> int:
        """Exit code of the program for this run: 0 done, 1 failed, 2 invalid input, 3 stopped on request."""
        return self.outcome.exit_code if self.outcome else EXIT_FAILED

    def ask(self, action: controls.ControlAction) -> str:
        if action != "stop":
            return super().ask(action)
        self._thread.stop()
        return ""

    def wait(self, timeout_seconds: float) -> None:
        self._thread.join(timeout_seconds)

    def apply_new_events(self) -> bool:
        has_news = super().apply_new_events()
        reason = self._journal.failure_reason
        if reason and reason != self._reported_failure:
            self._reported_failure = reason
            message = f"could not write the journal ({one_line(reason)})"
            message += ": training continues, but its progress is not shown"
            self._add(message, "bad")
            self.news.append((message, "error"))
            return True
        return has_news
