"""What the newest run like the planned one measured, read from the end of its journal.

Like it is a run of the same task and model on the same device, with the same libraries; what depends on how it is
trained, or on the disk, counts only where that is the same as well. What another run measured says nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tui_trainer.planning.measured_steps import StepKey
from tui_trainer.planning.plan import Plan
from tui_trainer.reporting.facts import certificates
from tui_trainer.runs.events import CheckpointSaved, EvalDone, Event, RunProblem, StepDone, TextSampled
from tui_trainer.runs.folder import RunFolder, read_fields
from tui_trainer.runs.journal import END_BYTES, events_in, last_events
from tui_trainer.runs.registry import known_runs
from tui_trainer.terminal.safe_text import one_line

# Of most only the plan is read.
_LOOK_RUNS = 20
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
    """Measured parts of a run. `data_share` is of the step's time; None where the run did not do it, or did it in
    another way than is planned now."""

    name: str
    steps: int
    data_share: float | None = None
    save_bytes_per_second: float | None = None
    sample_seconds: float | None = None
    evaluation_share: float | None = None
    """What a token takes in an evaluation, of what it takes in a step."""
    exports: tuple[Exported, ...] = ()
    attention: str = ""
    """What its probe found against the kernel that was planned, as a sentence; empty: nothing."""


def newest_measured(plan: Plan) -> EarlierRun | None:
    """The newest run of the index that is like the plan and has enough steps at its end, or None. A journal that cannot
    be read is passed by."""
    now = StepKey.read(plan.shape_key)
    if now is None:
        return None
    device = _device(plan.model_dump(include={"device", "device_name", "threads"}))
    for folder in reversed(known_runs()[-_LOOK_RUNS:]):
        then = read_fields(folder.plan)
        key = StepKey.read(then.get("shape_key"))
        if key is None or key.model != now.model or _device(then) != device:
            continue
        with suppress(OSError):
            if found := measured_in(folder.name, list(last_events(folder.journal))):
                found = replace(found, exports=tuple(_exports(folder)), attention=_against_attention(folder.journal))
                if not key.has_setup_of(now):
                    found = replace(found, data_share=None, evaluation_share=None, attention="")
                is_on_disk = folder.root.parent.resolve() == Path(plan.config.output.runs_dir).resolve()
                return found if is_on_disk else replace(found, save_bytes_per_second=None)
    return None


def _device(plan: Mapping[str, Any]) -> tuple[object, ...]:
    """What computes, by the fields of a plan; the threads of a card's host do not matter."""
    device, threads = plan.get("device"), plan.get("threads")
    count = threads.get("value") if device == "cpu" and isinstance(threads, dict) else None
    return device, plan.get("device_name"), count


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


def _against_attention(path: Path) -> str:
    """It is told before the first step."""
    with path.open("rb") as file:
        events = events_in(file.read(END_BYTES))
    told = (event for event in events if isinstance(event, RunProblem) and event.kind == "attention changed")
    return next((event.message for event in told), "")
