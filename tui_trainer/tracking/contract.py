"""What every tracker offers. One file of `trackers/` is one tracker, found by its name.

A tracker may raise whatever its library raises, and may hang: nothing of it runs in the process that trains.
"""

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
    """A run as a tracker gets it. `run_id` stays the same however often the run is resumed, and `goes_on` says that the
    tracker has a part of it; then what came after `from_step` is handed over again. `folder` is the tracker's own.
    """

    name: str
    run_id: str
    folder: Path
    params: dict[str, Any]
    goes_on: bool
    from_step: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Metrics:
    """What was measured after a step, `seconds` after the epoch of computers."""

    step: int
    seconds: float
    values: dict[str, float]


class Tracker(Protocol):
    name: str
    """The name of its library, too."""

    def begin(self, run: TrackedRun) -> str:
        """Opens or goes on with the run. A sentence for the user, such as how to send what stays here; or nothing."""

    def log(self, rows: Sequence[Metrics]) -> None:
        """Called again with the same rows after it has raised."""

    def end(self, status: str) -> None:
        """`finished`, `stopped`, `failed` or `interrupted`. Afterwards everything is where it belongs."""


def tracker_names() -> list[str]:
    """By which `logging.report_to` knows them."""
    return sorted(module.name for module in pkgutil.iter_modules(trackers.__path__))


def find_tracker(name: str) -> Tracker:
    """One of `tracker_names()`, new."""
    found: Tracker = import_module(f"{trackers.__name__}.{name}").TRACKER()
    return found


def tracker_problems(names: Sequence[str]) -> list[Problem]:
    found = []
    for name in names:
        if name not in tracker_names():
            hint = name_hint(name, tracker_names())
            found.append(Problem(message=f"there is no tracker {one_line(name, 60)!r}", key=KEY, hint=hint))
        elif find_spec(name) is None:
            hint = f"`uv pip install {name}`"
            found.append(Problem(message=f"{name} is not installed here", key=KEY, hint=hint))
    return found
