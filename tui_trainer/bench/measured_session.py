"""What is measured with a run's own session: its steps, a rehearsal, micro-batches. In a worker, which trains them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tui_trainer.launching.carry_out import keep_peak, keep_step_seconds
from tui_trainer.launching.micro_batches import next_rows, to_time
from tui_trainer.launching.prepare import exact_plan, versions
from tui_trainer.launching.questions import request_of
from tui_trainer.launching.start import load_config
from tui_trainer.models.unsloth import change_over
from tui_trainer.runs.events import EvalDone, Event, RunProblem, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalWriter, read_all
from tui_trainer.training.rehearsal_parts import LOADING, TYPICAL, WORST
from tui_trainer.worker.questions import Report

if TYPE_CHECKING:
    from tui_trainer.training.session import Session

# Steps before the measured ones: memory is taken and caches are filled.
WARM_UP_STEPS = 2
# Times the median of seconds a token.
_SLOW_FACTOR = 3.0
# Of a rehearsal. Fewer say little about a step; the next plan goes by those of `launching/carry_out.py`.
_REHEARSED_STEPS = 8
# Of micro-batches that are timed.
_ROUNDS, _STEPS, _TIMED_SECONDS = 3, 4, 30.0


def take_steps(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """What the journal says of some steps and an evaluation. `question` has config_file, profile, shortcuts,
    assignments, gpu, steps, folder."""
    # Nothing is saved.
    with session_of(question, Path(question["folder"]), "turn") as (session, _resident):
        for step in range(1, question["steps"] + WARM_UP_STEPS + 1):
            session.take_step(step)
        session.evaluate(scheduled=False)
    return _figures(read_all(session.job.folder.journal))


def rehearse(question: dict[str, Any], report: Report) -> None:
    """Reports each part that begins, and again when it is over. `question` has config_file, profile, shortcuts,
    assignments, gpu, place, parts."""
    report(part=LOADING)
    started = perf_counter()
    with session_of(question, Path(question["place"]), "rehearsal") as (session, resident):
        report(part=LOADING, seconds=perf_counter() - started)
        from tui_trainer.training.rehearsal import Rehearsal

        found = Rehearsal(session, report, resident).run(question["parts"])
        # Where memory ran out the passes are others than those of the key.
        is_planned = session.plan.shape_key and "works_with" not in found.get(WORST, {})
        if is_planned and (typical := found.get(TYPICAL, {})).get("steps", 0) >= _REHEARSED_STEPS:
            keep_step_seconds(session.plan, typical["step_seconds"], perf_counter() - started)
        # Of the largest pass and of everything else that a run does: no smaller than what the run will need.
        if found and not any("failed" in one or "works_with" in one for one in found.values()):
            keep_peak(session.plan, max(one["peak_memory_bytes"] for one in found.values()))


def try_sizes(question: dict[str, Any], report: Report) -> None:
    """Reports each micro-batch that is tried, and again what came of it. `question` has a request, gpu, place,
    candidates, tried, step_rows, timed."""
    tried = {int(rows): bool(survived) for rows, survived in question["tried"]}
    with session_of(question, Path(question["place"]), f"tries-{len(tried)}") as (session, resident):
        from tui_trainer.training.worst_batch import MicroBatchTries

        tries = MicroBatchTries(session, resident)
        has_failed = False
        while (rows := next_rows(question["candidates"], tried)) is not None:
            report(trying=rows, doing="trying")
            found = tries.survives(rows, passes=-(-question["step_rows"] // rows))
            if has_failed and "failed" in found:
                # What a failure leaves behind in the heap may be why: a new process says.
                return
            tried[rows] = "failed" not in found
            has_failed = has_failed or not tried[rows]
            report(rows=rows, **found)
        if question["timed"]:
            _time(report, tries, to_time(tried), session.plan.total_steps.value)


def _time(report: Report, tries: Any, sizes: list[int], total_steps: int) -> None:
    """The same steps with each of these, in turns; the first of each round, with its new sizes, counts for nothing."""
    seconds: dict[int, list[float]] = {rows: [] for rows in sizes}
    spent = 0.0
    for number in range(_ROUNDS):
        first = 1 + number * _STEPS % max(total_steps - _STEPS, 1)
        for rows in sizes:
            report(trying=rows, doing="timing")
            measured = tries.step_seconds(rows, first, _STEPS)
            spent += sum(measured)
            seconds[rows] += measured[1:]
        if spent > _TIMED_SECONDS:
            break
    for rows, measured in seconds.items():
        report(rows=rows, step_seconds=measured)


@contextmanager
def session_of(question: dict[str, Any], place: Path, name: str) -> "Iterator[tuple[Session, int]]":
    """What a run of these settings has before its first step, and the resident bytes of the libraries, which its plan
    does not count. Its folder is `name` in `place`. Raises InputError."""
    loaded = load_config(request_of(question), gpu=question["gpu"])
    change_over(loaded.config)
    folder = RunFolder.create(place, name)
    with JournalWriter(folder.journal) as journal:
        plan, data = exact_plan(loaded, folder, journal, lambda *_: None, gpu=question["gpu"])
        from tui_trainer.training.job import Job
        from tui_trainer.training.ranks import Ranks
        from tui_trainer.training.run import opened_session

        job = Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions=versions())
        with opened_session(job, journal, lambda: False) as (session, resident):
            # Of several processes one is measured: what the first would do.
            session.batches.ranks = Ranks(count=plan.processes.value)
            yield session, resident


def _figures(events: list[Event]) -> dict[str, Any]:
    steps = [event for event in events if isinstance(event, StepDone)]
    held_out = [event.loss for event in events if isinstance(event, EvalDone)]
    measured = steps[WARM_UP_STEPS:]
    # Where rows are grouped by length, short steps are many and say little of a run: all together count. A step that
    # something else held up counts as if it had been a slow one.
    slowest = _SLOW_FACTOR * median(step.step_seconds / step.input_tokens for step in measured)
    seconds = sum(min(step.step_seconds, slowest * step.input_tokens) for step in measured)
    return {
        "step_seconds": median(step.step_seconds for step in measured),
        "samples_per_second": sum(step.samples for step in measured) / seconds,
        "tokens_per_second": sum(step.input_tokens for step in measured) / seconds,
        "peak_memory_bytes": max(step.peak_memory_bytes for step in steps),
        "loss": held_out[-1] if held_out else steps[-1].loss,
        "problems": {event.kind: event.message for event in events if isinstance(event, RunProblem)},
    }
