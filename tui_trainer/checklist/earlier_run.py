"""What the newest finished run on this machine measured, read from the end of its journal."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tui_trainer.runs.events import CheckpointSaved, Event, StepDone, TextSampled
from tui_trainer.runs.journal import events_in
from tui_trainer.runs.registry import known_runs

_TAIL_BYTES = 256 * 1024
_LOOK_RUNS = 3
_ENOUGH_STEPS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """Measured parts of a run. `data_share` is of the step's time; None where the run did not do it."""

    name: str
    steps: int
    data_share: float
    save_bytes_per_second: float | None = None
    sample_seconds: float | None = None


def newest_measured() -> EarlierRun | None:
    """The newest run of the index with enough steps at its end, or None. A journal that cannot be read is passed by."""
    for folder in reversed(known_runs()[-_LOOK_RUNS:]):
        with suppress(OSError):
            if found := measured_in(folder.name, list(events_in(_tail(folder.journal)))):
                return found
    return None


def measured_in(name: str, events: Sequence[Event]) -> EarlierRun | None:
    """The figures of one run's events; None with fewer than 20 steps."""
    steps = [event for event in events if isinstance(event, StepDone) and event.step_seconds > 0]
    if len(steps) < _ENOUGH_STEPS:
        return None
    saves = [event for event in events if isinstance(event, CheckpointSaved) and event.seconds > 0]
    samples = [event.seconds for event in events if isinstance(event, TextSampled) and event.seconds > 0]
    return EarlierRun(
        name=name,
        steps=len(steps),
        data_share=sum(event.data_seconds for event in steps) / sum(event.step_seconds for event in steps),
        save_bytes_per_second=median(save.bytes / save.seconds for save in saves) if saves else None,
        sample_seconds=median(samples) if samples else None,
    )


def _tail(path: Path) -> bytes:
    """The last lines, beginning with a whole one."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        start = max(0, size - _TAIL_BYTES)
        file.seek(start)
        block = file.read()
    return block.partition(b"\n")[2] if start else block
