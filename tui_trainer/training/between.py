"""The time between steps: what of it the journal accounts for by name, and the rest."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partialmethod
from time import perf_counter

from tui_trainer.runs.events import BetweenSteps, RanksTimed
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.communication import GroupTimes

_PERIOD_SECONDS = 4.0


class Between:
    """Adds up from the end of a step to the beginning of the next, and writes a `BetweenSteps` every few seconds; with
    `times` a `RanksTimed` beside it."""

    def __init__(self, journal: JournalWriter, times: GroupTimes | None = None) -> None:
        self._journal, self._times = journal, times
        self._ended: float | None = None
        self._written = perf_counter()
        self._known_seconds = 0.0
        self._clear()

    def _clear(self) -> None:
        self._steps, self._journal_seconds, self._empty_cache_seconds, self._other_seconds = 0, 0.0, 0.0, 0.0

    def step_begins(self, step: int) -> None:
        now = perf_counter()
        if self._ended is not None:
            self._other_seconds += max(now - self._ended - self._known_seconds, 0.0)
        self._known_seconds = 0.0
        if self._steps and now - self._written >= _PERIOD_SECONDS:
            self.write(step - 1)

    def step_ended(self) -> None:
        self._ended = perf_counter()
        self._steps += 1

    def forget(self) -> None:
        """What was since the last step was a pause, and no cost."""
        self._ended = None

    def count(self, seconds: float) -> None:
        """An event of its own accounts for so many seconds."""
        self._known_seconds += seconds

    @contextmanager
    def _adding_to(self, name: str) -> Iterator[None]:
        """What is done inside is accounted for under this name."""
        started = perf_counter()
        yield
        seconds = perf_counter() - started
        setattr(self, name, getattr(self, name) + seconds)
        self._known_seconds += seconds

    writing = partialmethod(_adding_to, "_journal_seconds")
    emptying_the_cache = partialmethod(_adding_to, "_empty_cache_seconds")

    def write(self, step: int) -> None:
        """What has added up since the last time, where there was a step."""
        if not self._steps:
            return
        self._written = perf_counter()
        self._journal.append(
            BetweenSteps(
                step=step,
                steps=self._steps,
                journal_seconds=round(self._journal_seconds, 6),
                empty_cache_seconds=round(self._empty_cache_seconds, 6),
                other_seconds=round(self._other_seconds, 6),
            )
        )
        if self._times and (means := self._times.means()):
            self._journal.append(RanksTimed(step=step, communication_seconds=means))
        self._clear()
