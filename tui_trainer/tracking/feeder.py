"""One tracker fed from a journal: what was handed over is noted down, so that a resumed run goes on where it was.

After a failure the same is tried again, less and less often, and given up in the end.
"""

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
Tell = Callable[[str, str], None]
"""Told a message and what to do about it."""


@dataclass
class Feeder:
    """`handed` counts the events of the journal that the tracker has, whatever they were."""

    folder: RunFolder
    tracker: Tracker
    tell: Tell
    handed: int = 0
    given_up: bool = False
    most_failures: int = _MOST_FAILURES
    busy_since: float | None = None
    """When the call began that is under way."""

    def __post_init__(self) -> None:
        self.folder_of_tracker = self.folder.root / "tracking" / self.tracker.name
        self._note = self.folder_of_tracker.with_suffix(".json")
        self.handed, self._status = self._noted()
        self._reader = JournalReader(self.folder.journal)
        self._state = RunState()
        self._seen = self._from_step = 0
        self._rows: list[Metrics] = []
        self._begun = False
        self._failures, self._try_again_at = 0, 0.0

    def feed(self) -> None:
        """Hand over what is new. Raises nothing of the tracker's."""
        self._look()
        if self._rows:
            self._carefully(self._hand_over)

    def end(self, status: str) -> bool:
        """The run is over: hand over the rest, and its end. False where that is to be tried again."""
        self._look()
        if self._status != status or self.handed < self._seen:
            self._carefully(lambda: self._hand_over(status))
        return self.given_up or (self._status == status and self.handed >= self._seen)

    def _look(self) -> None:
        for event in self._reader.stream():
            self._state.apply(event)
            self._seen += 1
            is_new = self._seen > self.handed
            if is_new and (row := metrics_of(event)):
                self._rows.append(row)
            if not is_new:
                self._from_step = event.step
            elif isinstance(event, RunStarted):
                # What a run does again is handed over again, and replaces the first try where a tracker can do that.
                self._from_step = event.resumed_from_step or 0

    def _hand_over(self, status: str = "") -> None:
        seen = self._seen
        if not self._begun:
            self._begin()
        if self._rows:
            self.tracker.log(self._rows)
            self._rows = []
        if status:
            self.tracker.end(status)
        self.handed, self._status = seen, status
        note = {"handed": self.handed, "status": self._status}
        write_atomically(self._note, json.dumps(note).encode(), durable=False)

    def _begin(self) -> None:
        words = f"{self._state.name}\n{self._state.started_at}"
        run = TrackedRun(
            name=self.folder.name,
            run_id=hashlib.sha256(words.encode()).hexdigest()[:12],
            folder=self.folder_of_tracker,
            params=settings_of(self.folder),
            goes_on=self.handed > 0,
            from_step=self._from_step if self.handed else 0,
        )
        with suppress(FileExistsError):
            make_private_folder(self.folder_of_tracker.parent)
        if sentence := self.tracker.begin(run):
            self.tell(sentence, "")
        self._begun = True

    def _carefully(self, call: Callable[[], None]) -> None:
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
        """Told once; after that it is tried again in silence."""
        self._failures += 1
        pause = min(_FIRST_PAUSE_SECONDS * 2 ** (self._failures - 1), _LONGEST_PAUSE_SECONDS)
        self._try_again_at = monotonic() + pause
        reason = one_line(str(error), 200) or type(error).__name__
        later = f"`tui-trainer track {self.folder.name} --to {self.tracker.name}` uploads the data later"
        if self._failures == 1 < self.most_failures:
            self.tell(
                f"could not send data to {self.tracker.name}: {reason}", "the upload is retried; training continues"
            )
        if self._failures >= self.most_failures:
            self.given_up = True
            self.tell(f"gave up sending data to {self.tracker.name}: {reason}", later)

    def _noted(self) -> tuple[int, str]:
        with suppress(ValueError, LookupError, TypeError):
            note = read_fields(self._note)
            return max(int(note["handed"]), 0), str(note["status"])
        return 0, ""


_OF_STEPS = ("loss", "grad_norm", "epoch", "step_seconds", "tokens_per_second", "samples_per_second")


def metrics_of(event: Event) -> Metrics | None:
    """Under the names that trackers show in groups; None for an event that measures nothing.

    What is not finite is left out: not every tracker takes it.
    """
    match event:
        case StepDone():
            values: dict[str, float | None] = {f"train/{name}": mean for name, mean in event.scores.items()}
            values |= {f"train/{name}": getattr(event, name) for name in _OF_STEPS}
            values |= {"train/learning_rate": event.lr, "train/peak_memory_gib": event.peak_memory_bytes / GIB}
        case EvalDone():
            values = {"eval/loss": event.loss, **{f"eval/{name}": value for name, value in event.scores.items()}}
        case GaugesRead():
            values = {}
            for name, figure in GAUGES.items():
                if (value := event.figure(name)) is not None:
                    of_gpu = "" if hasattr(event, name) else "gpu_"
                    values[f"gauges/{of_gpu}{name.replace('_bytes', '_gib')}"] = plotted(figure, value)
        case _:
            return None
    known = {name: value for name, value in values.items() if value is not None and math.isfinite(value)}
    return Metrics(step=event.step, seconds=_seconds(event.at), values=known) if known else None


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
