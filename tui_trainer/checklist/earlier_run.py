"""What the newest finished run on this machine measured, read from the end of its journal."""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from tui_trainer.reporting.facts import certificates
from tui_trainer.runs.events import CheckpointSaved, EvalDone, Event, StepDone, TextSampled
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import events_in
from tui_trainer.runs.registry import known_runs
from tui_trainer.safe_text import one_line

_TAIL_BYTES = 256 * 1024
_LOOK_RUNS = 3
_ENOUGH_STEPS = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Exported:
    """A model in another form beside the trained one; `faults` says why it is not as it was trained."""

    format: str
    bytes: int
    trained_bytes: int
    seconds_per_row: float
    trained_seconds_per_row: float
    faults: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """Measured parts of a run. `data_share` is of the step's time; None where the run did not do it."""

    name: str
    steps: int
    data_share: float
    save_bytes_per_second: float | None = None
    sample_seconds: float | None = None
    evaluation_share: float | None = None
    """What a token takes in an evaluation, of what it takes in a step."""
    exports: tuple[Exported, ...] = ()


def newest_measured() -> EarlierRun | None:
    """The newest run of the index with enough steps at its end, or None. A journal that cannot be read is passed by."""
    for folder in reversed(known_runs()[-_LOOK_RUNS:]):
        with suppress(OSError):
            if found := measured_in(folder.name, list(_last_events(folder.journal))):
                return replace(found, exports=tuple(_exports(folder)))
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
        evaluation_share=_evaluation_share(events, steps),
    )


def _evaluation_share(events: Sequence[Event], steps: Sequence[StepDone]) -> float | None:
    """By the tokens that count; None without an evaluation."""
    seconds = [event.seconds for event in events if isinstance(event, EvalDone) and event.scheduled]
    tokens = [event.tokens for event in events if isinstance(event, EvalDone) and event.scheduled]
    trained, took = sum(event.tokens for event in steps), sum(event.step_seconds for event in steps)
    if not seconds or not sum(tokens) or not trained:
        return None
    return median(one / count for one, count in zip(seconds, tokens, strict=True) if count) / (took / trained)


def _exports(folder: RunFolder) -> Iterator[Exported]:
    """Those that were compared with the trained model."""
    for certificate in certificates(folder).values():
        with suppress(KeyError, TypeError, ValueError):
            before, after = certificate["trained"], certificate["exported"]
            yield Exported(
                format=str(certificate["format"]),
                bytes=int(after["bytes"]),
                trained_bytes=int(before["bytes"]),
                seconds_per_row=float(after["seconds_per_row"]),
                trained_seconds_per_row=float(before["seconds_per_row"]),
                faults=one_line("; ".join(map(str, certificate["faults"])), 200),
            )


def _last_events(path: Path) -> Iterator[Event]:
    """Those whose lines are whole."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        return events_in(file.read())
