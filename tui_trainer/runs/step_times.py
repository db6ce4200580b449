"""Where the time of a run's steps went, added up while its journal is read."""

from collections import deque
from dataclasses import dataclass, field, fields, replace
from typing import Final

from tui_trainer.runs.events import BetweenSteps, StepDone

_MARK_STEPS: Final = 100
_MARK_SECONDS: Final = 20.0
_MARKS: Final = 6


@dataclass(slots=True)
class StepSums:
    """Seconds of the parts of so many steps, and what the steps took in."""

    steps: int = 0
    data_seconds: float = 0.0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    step_seconds: float = 0.0
    input_tokens: int = 0
    positions: int = 0
    samples: int = 0

    def add(self, done: StepDone) -> None:
        self.steps += 1
        self.data_seconds += done.data_seconds
        self.forward_seconds += done.forward_seconds
        self.backward_seconds += done.backward_seconds
        self.optimizer_seconds += done.optimizer_seconds
        self.step_seconds += done.step_seconds
        self.input_tokens += done.input_tokens
        self.positions += done.positions
        self.samples += done.samples

    def since(self, before: "StepSums") -> "StepSums":
        """What came after an earlier state of these sums."""
        names = [item.name for item in fields(self)]
        return StepSums(**{name: getattr(self, name) - getattr(before, name) for name in names})


@dataclass(slots=True)
class StepTimes:
    """Of one start of a run: the whole of it, and the last few hundred steps."""

    whole: StepSums = field(default_factory=StepSums)
    between_steps: int = 0
    journal_seconds: float = 0.0
    empty_cache_seconds: float = 0.0
    other_seconds: float = 0.0
    _marks: deque[StepSums] = field(default_factory=lambda: deque([StepSums()], maxlen=_MARKS))

    def add(self, done: StepDone) -> None:
        whole, last = self.whole, self._marks[-1]
        whole.add(done)
        if whole.steps - last.steps >= _MARK_STEPS and whole.step_seconds - last.step_seconds >= _MARK_SECONDS:
            self._marks.append(replace(whole))

    def add_between(self, event: BetweenSteps) -> None:
        self.between_steps += event.steps
        self.journal_seconds += event.journal_seconds
        self.empty_cache_seconds += event.empty_cache_seconds
        self.other_seconds += event.other_seconds

    @property
    def recent(self) -> StepSums:
        """The last 500 steps or more, and 100 seconds or more; all of them while there are fewer."""
        return self.whole.since(self._marks[0])
