"""The doctor beside a run that lives: looks now and then, and says when its verdict is news."""

from collections.abc import Callable
from time import monotonic

from tui_trainer.doctor.contract import Verdict
from tui_trainer.doctor.examine import examine
from tui_trainer.runs.state import RunState

_PERIOD_SECONDS = 2.0
# A cause that leads for a moment only, as during one evaluation, is no news.
_CONFIRMED_SECONDS = 10.0


class Doctor:
    """Of one run. It looks where there are new steps, at most once in two seconds."""

    def __init__(self, state: RunState, now: Callable[[], float] = monotonic) -> None:
        self._state, self._now = state, now
        self.verdict: Verdict | None = None
        """The newest; None before the first look."""
        self._told = ""
        self._candidate, self._since = "", 0.0
        self._looked, self._looked_at = -_PERIOD_SECONDS, (-1, False)

    def look(self) -> Verdict | None:
        """The verdict where it is news: the first that stands, and each with another leading cause that lasts."""
        state = self._state
        seen = state.step, state.finished is not None or state.failed is not None
        if seen == self._looked_at or (self._now() - self._looked < _PERIOD_SECONDS and not seen[1]):
            return None
        self._looked, self._looked_at = self._now(), seen
        self.verdict = examine(state)
        return self.verdict if self._is_news(self.verdict, is_over=seen[1]) else None

    def _is_news(self, verdict: Verdict, *, is_over: bool) -> bool:
        """What came out in the end is for whoever shows the end."""
        if is_over or not verdict.name or verdict.name == self._told:
            self._candidate = ""
            return False
        if verdict.name != self._candidate:
            self._candidate, self._since = verdict.name, self._now()
        if self._told and self._now() - self._since < _CONFIRMED_SECONDS:
            return False
        self._told, self._candidate = verdict.name, ""
        return True
