"""Send a journal to one tracker. A file notes how many events were sent, so that a resumed run continues there.

After a failure, sending is retried after longer and longer pauses, and in the end given up."""

import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from time import monotonic

from tui_trainer.runs.comparison import settings_of
from tui_trainer.runs.events import GAUGES, EvalDone, Event, GaugesRead, RunStarted, StepDone
from tui_trainer.runs.folder import RunFolder, make_private_folder, read_fields, write_atomically
from tui_trainer.runs.journal import JournalReader
from tui_trainer.runs.state import RunState
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tracking.contract import Metrics, TrackedRun, Tracker
from tui_trainer.units import GIB, plotted

_MOST_FAILURES = 6
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 2.0, 60.0
ReportProblem = Callable[[str, str], None]
"""Callback that shows a message and a hint to the user."""


@dataclass
class Feeder:
    """Transfer from a journal to one tracker. `sent_events` is the number of journal events that were sent."""

    folder: RunFolder
    tracker: Tracker
    report: ReportProblem
    sent_events: int = 0
    given_up: bool = False
    most_failures: int = _MOST_FAILURES
    busy_since: float | None = None
    """Time of the monotonic clock when the present call of the tracker began; None without a call."""

    def __post_init__(self) -> None:
        self.folder_of_tracker = self.folder.root / "tracking" / self.tracker.name
        self._progress_file = self.folder_of_tracker.with_suffix(".json")
        self.sent_events, self._status = self._read_note()
        self._reader = JournalReader(self.folder.journal)
        self._state = RunState()
        self._read_events = self._from_step = 0
        self._rows: list[Metrics] = []
        self._begun = False
        self._failures, self._try_again_at = 0, 0.0

    def feed(self) -> None:
        """Send new events to the tracker. An error of the tracker is reported, not raised."""
        self._read_journal()
        if self._rows:
            self._try(self._send)

    def end(self, status: str) -> bool:
        """Send the remaining events and the run's status. Return False if this must be tried again."""
        self._read_journal()
        if self._status != status or self.sent_events < self._read_events:
            self._try(lambda: self._send(status))
        return self.given_up or (self._status == status and self.sent_events >= self._read_events)

    def _read_journal(self) -> None:
        for event in self._reader.stream():
            self._state.apply(event)
            self._read_events += 1
            is_new = self._read_events > self.sent_events
            if is_new and (row := event_metrics(event)):
                self._rows.append(row)
            if not is_new:
                self._from_step = event.step
            elif isinstance(event, RunStarted):
                # Steps after a resume are sent again. They replace earlier values if the tracker supports that.
                self._from_step = event.resumed_from_step or 0

    def _send(self, status: str = "") -> None:
        event_count = self._read_events
        if not self._begun:
            self._begin()
        if self._rows:
            self.tracker.log(self._rows)
            self._rows = []
        if status:
            self.tracker.end(status)
        self.sent_events, self._status = event_count, status
        note = {"handed": self.sent_events, "status": self._status}
        write_atomically(self._progress_file, json.dumps(note).encode(), durable=False)

    def _begin(self) -> None:
        identity = f"{self._state.name}\n{self._state.started_at}"
        run = TrackedRun(
            name=self.folder.name,
            run_id=hashlib.sha256(identity.encode()).hexdigest()[:12],
            folder=self.folder_of_tracker,
            params=settings_of(self.folder),
            is_resumed=self.sent_events > 0,
            from_step=self._from_step if self.sent_events else 0,
        )
        with suppress(FileExistsError):
            make_private_folder(self.folder_of_tracker.parent)
        if sentence := self.tracker.begin(run):
            self.report(sentence, "")
        self._begun = True

    def _try(self, call: Callable[[], None]) -> None:
        if self.given_up or monotonic() < self._try_again_at:
            return
        self.busy_since = monotonic()
        try:
            call()
            self._failures = 0
        except Exception as error:
            self._failed(error)
        finally:
            self.busy_since = None

    def _failed(self, error: Exception) -> None:
        """Schedule the next attempt after an error. Report the first error, and finally that the upload is given up."""
        self._failures += 1
        pause_seconds = min(_FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS)
        self._try_again_at = monotonic() + pause_seconds
        reason = one_line(str(error), 200) or type(error).__name__
        hint = f"`tui-trainer track {self.folder.name} --to {self.tracker.name}` uploads the data later"
        if self._failures == 1 < self.most_failures:
            message = f"could not send data to {self.tracker.name}: {reason}"
            self.report(message, "the upload is retried; training continues")
        if self._failures >= self.most_failures:
            self.given_up = True
            self.report(f"gave up sending data to {self.tracker.name}: {reason}", hint)

    def _read_note(self) -> tuple[int, str]:
        with suppress(ValueError, LookupError, TypeError):
            note = read_fields(self._progress_file)
            return max(int(note["handed"]), 0), str(note["status"])
        return 0, ""


_STEP_METRICS = ("loss", "grad_norm", "epoch", "step_seconds", "tokens_per_second", "samples_per_second")


def event_metrics(event: Event) -> Metrics | None:
    """Return the metrics of an event, with names that trackers group; None for events without metrics.

    Values that are not finite are omitted, because not every tracker accepts them."""
    match event:
        case StepDone():
            values: dict[str, float | None] = {f"train/{name}": mean for name, mean in event.scores.items()}
            values |= {f"train/{name}": getattr(event, name) for name in _STEP_METRICS}
            values |= {"train/learning_rate": event.lr, "train/peak_memory_gib": event.peak_memory_bytes / GIB}
        case EvalDone():
            values = {"eval/loss": event.loss, **{f"eval/{name}": value for name, value in event.scores.items()}}
        case GaugesRead():
            values = {}
            for name, figure in GAUGES.items():
                if (value := event.figure(name)) is not None:
                    prefix = "" if hasattr(event, name) else "gpu_"
                    values[f"gauges/{prefix}{name.replace('_bytes', '_gib')}"] = plotted(figure, value)
        case _:
            return None
    finite_values = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return Metrics(step=event.step, seconds=_seconds(event.at), values=finite_values) if finite_values else None


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
