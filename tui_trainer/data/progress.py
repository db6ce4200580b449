"""How far a long piece of work is, told a few times a second and once at its end."""

import time
from collections.abc import Callable

# what is being done, how much is done, how much there is (None: not known), the unit ("bytes", "characters")
Progress = Callable[[str, float, float | None, str], None]

REPORT_SECONDS = 0.2


class Meter:
    """Passes progress on, at most every REPORT_SECONDS. With `progress=None` it costs one comparison."""

    def __init__(self, progress: Progress | None, what: str, total: float | None, unit: str) -> None:
        self._progress = progress
        self._what = what
        self._total = total
        self._unit = unit
        self._next_report = 0.0

    def due(self) -> bool:
        return self._progress is not None and time.monotonic() >= self._next_report

    def report(self, done: float) -> None:
        if self.due():
            self.finish(done)

    def finish(self, done: float) -> None:
        """The last word: always told."""
        if self._progress is not None:
            self._progress(self._what, done, self._total, self._unit)
            self._next_report = time.monotonic() + REPORT_SECONDS
