"""Progress reports of long operations, a few times per second and once at the end."""

import time
from collections.abc import Callable

Progress = Callable[[str, float, float | None, str], None]
"""Callback with the activity, the amount done, the total (None if unknown) and the unit ("bytes", "characters")."""

REPORT_SECONDS = 0.2


class Meter:
    """Forwards progress at most once every REPORT_SECONDS. With `progress=None`, it does nothing."""

    def __init__(self, progress: Progress | None, activity: str, total: float | None, unit: str) -> None:
        self._progress = progress
        self._activity = activity
        self._total = total
        self._unit = unit
        self._next_report = 0.0

    def is_due(self) -> bool:
        return self._progress is not None and time.monotonic() >= self._next_report

    def report(self, done: float) -> None:
        if self.is_due():
            self.finish(done)

    def finish(self, done: float) -> None:
        """Report the final amount, however recent the last report was."""
        if self._progress is not None:
            self._progress(self._activity, done, self._total, self._unit)
            self._next_report = time.monotonic() + REPORT_SECONDS
