"""Interface of a tracker. Each file of `trackers/` defines one tracker and has the tracker's name.

A tracker may raise any exception and may hang, because it never runs in the process that trains."""

import pkgutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from tui_trainer.errors import Problem, name_hint
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tracking import trackers

KEY = "logging.report_to"


@dataclass(frozen=True, kw_only=True, slots=True)
class TrackedRun:
    """A run as a tracker receives it. `run_id` stays the same when the run resumes; `folder` is the tracker's own.

    If `is_resumed`, the tracker already has a part of the run. Metrics after step `from_step` are then sent again."""

    name: str
    run_id: str
    folder: Path
    params: dict[str, Any]
    is_resumed: bool
    from_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """Values measured after a step. `seconds` is their time in seconds since 1970."""

    step: int
    seconds: float
    values: dict[str, float]


class Tracker(Protocol):
    name: str
    """Name of the tracker, and of its library."""

    def begin(self, run: TrackedRun) -> str:
        """Create or continue the run in the tracker. Return a sentence for the user, such as how to upload, or ""."""

    def log(self, rows: Sequence[Metrics]) -> None:
        """Send the metrics. If this raises, it is called again with the same metrics."""

    def end(self, status: str) -> None:
        """Send all pending data, and the status: `finished`, `stopped`, `failed` or `interrupted`."""


def tracker_names() -> list[str]:
    """Return the names that `logging.report_to` accepts."""
    return sorted(module.name for module in pkgutil.iter_modules(trackers.__path__))


def find_tracker(name: str) -> Tracker:
    """Return a new tracker by its name, which must be one of `tracker_names()`."""
    tracker: Tracker = import_module(f"{trackers.__name__}.{name}").TRACKER()
    return tracker


def tracker_problems(names: Sequence[str]) -> list[Problem]:
    problems = []
    for name in names:
        if name not in tracker_names():
            hint = name_hint(name, tracker_names())
            problems.append(Problem(message=f"there is no tracker {one_line(name, 60)!r}", key=KEY, hint=hint))
        elif find_spec(name) is None:
            hint = f"`uv pip install {name}`"
            problems.append(Problem(message=f"{name} is not installed here", key=KEY, hint=hint))
    return problems
