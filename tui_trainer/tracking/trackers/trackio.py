"""Trackio: data goes to a local database for `trackio show`, or to the Space in TRACKIO_SPACE_ID."""

import os
from collections.abc import Sequence
from typing import Any

from tui_trainer.tracking.contract import Metrics, TrackedRun

_PROJECT = "tui-trainer"


class TrackioTracker:
    name = "trackio"
    _trackio: Any = None

    def begin(self, run: TrackedRun) -> str:
        import trackio

        self._trackio = trackio
        trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", _PROJECT),
            name=f"{run.name}-{run.run_id}",
            space_id=os.environ.get("TRACKIO_SPACE_ID"),
            config=run.params,
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        return ""

    def log(self, rows: Sequence[Metrics]) -> None:
        for row in rows:
            self._trackio.log(row.values, step=row.step)

    def end(self, status: str) -> None:
        self._trackio.log({f"status/{status}": 1.0})
        self._trackio.finish()


TRACKER = TrackioTracker
