"""Measure time and memory of training steps, of single micro-batches, and of all parts of a run (a rehearsal).

These functions run in a worker."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, perf_counter, process_time
from typing import TYPE_CHECKING, Any

from tui_trainer.hardware.cgroup import read_limits
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gauges import UNREADABLE, cpu_times
from tui_trainer.hardware.nvml import session as driver_session
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import exact_plan, versions
from tui_trainer.launching.run_lifecycle import keep_peak, keep_step_seconds
from tui_trainer.measure.micro_batches import next_rows, request_of, sizes_to_time
from tui_trainer.models.unsloth import restart_in_unsloth_python
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import EvalDone, RunProblem, StepDone
from tui_trainer.runs.events import Event as RunEvent
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.training.job import LOADING, TYPICAL, WORST
from tui_trainer.worker.questions import Report

if TYPE_CHECKING:
    from tui_trainer.training.session import Session

# Steps before the measured ones. They allocate memory and fill caches.
WARM_UP_STEPS = 2
# A step that takes longer per token than this multiple of the median was held up by something else.
_SLOW_FACTOR = 3.0
# Later plans use the seconds of a step only if at least this many steps were measured.
_LEAST_STEPS_KEPT = 8
# Rounds, steps per round and total time for timing micro-batches.
_ROUNDS, _STEPS, _TIMED_SECONDS = 3, 4, 30.0


def take_steps(question: dict[str, Any], _: Report) -> dict[str, Any]:
    """Train some steps and evaluate. Return figures from the journal, such as `step_seconds` and `loss`.

    `question` has config_file, profile, shortcuts, assignments, gpu, steps and folder. With `seconds` no step begins
    after this time, but at least `least_steps` are taken. `largest_pass` first tries the largest pass of the run (the
    result is `failed` if that fails), stores the seconds of a step for later plans, and skips the evaluation.
    """
    started_at, most_seconds = monotonic(), question.get("seconds", float("inf"))
    tries_largest = question.get("largest_pass", False)
    largest_pass: dict[str, Any] = {}
    with session_of(question, Path(question["folder"]), "turn") as (session, resident_bytes):
        if tries_largest:
            from tui_trainer.training.rehearsal import MicroBatchTries

            layout, passes = session.components.batches.layout, session.plan.gradient_accumulation_steps.value
            largest_pass = MicroBatchTries(session, resident_bytes).try_steps(layout.rows_per_pass, passes)
            session.components.set_layout(layout)
            if "failed" in largest_pass:
                return largest_pass
        core_seconds_before, utilisation = _core_seconds(), Utilisation(session.plan)
        for step in range(1, question["steps"] + WARM_UP_STEPS + 1):
            if monotonic() - started_at > most_seconds and step > question["least_steps"] + WARM_UP_STEPS:
                break
            if step == WARM_UP_STEPS + 1:
                utilisation.start()
            session.take_step(step)
        session.flush()
        surroundings = {
            "utilisation_share": utilisation.stop(),
            "others_cores": _cores_used(core_seconds_before, _core_seconds()),
            # `heat` or `power` if that slows the GPU down now.
            "slowed_by": (gpu.slowed_by or "") if (gpu := _card_of(session.plan)) else "",
        }
        if not tries_largest:
            session.evaluate(scheduled=False)
    figures = _figures(JournalReader(session.job.folder.journal).read_new()) | surroundings
    if tries_largest:
        figures["largest_pass_bytes"] = largest_pass["peak_memory_bytes"]
        _keep_step_seconds(session, figures)
    return figures


def _keep_step_seconds(session: "Session", figures: dict[str, Any]) -> None:
    """Store the seconds of a step for later plans, if enough steps were taken without problems."""
    if figures.get("steps", 0) >= _LEAST_STEPS_KEPT and not figures.get("problems"):
        keep_step_seconds(session.plan, figures["step_seconds"], session.job.folder)


class Utilisation:
    """Share of time (0 to 1) in which the device is busy between `start` and `stop`; None if it is not reported.

    For a GPU it is the mean of the driver's readings, for a CPU the CPU time of this process divided by the elapsed
    time and by the number of the run's threads."""

    _PERIOD_SECONDS = 0.2

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shares: list[float] = []
        self._ended = Event()
        self._began: tuple[float, float] | None = None

    def start(self) -> None:
        self._began = perf_counter(), process_time()
        if self._plan.device == "cuda":
            Thread(target=self._read_gpu, name="utilisation", daemon=True).start()

    def stop(self) -> float | None:
        self._ended.set()
        if self._began is None:
            return None
        if self._plan.device == "cuda":
            return sum(self._shares) / len(self._shares) if self._shares else None
        (wall_start, cpu_start), thread_count = self._began, self._plan.threads.value
        return min(1.0, (process_time() - cpu_start) / max(perf_counter() - wall_start, 1e-9) / thread_count)

    def _read_gpu(self) -> None:
        while not self._ended.wait(self._PERIOD_SECONDS):
            gpu = _card_of(self._plan)
            if gpu and gpu.utilisation_share is not None:
                self._shares.append(gpu.utilisation_share)


def _card_of(plan: Plan) -> Gpu | None:
    """Return the GPU of a plan with the driver's current readings; None for a CPU, or if the driver does not answer."""
    driver = driver_session() if plan.device == "cuda" else None
    reported_gpus = driver.gpu_in_use(plan.gpu_uuid or "", 0) if driver else None
    return reported_gpus[0] if reported_gpus else None


def _core_seconds() -> tuple[float, float] | None:
    """Return (core-seconds that other processes have used on the usable cores, current time); None if not reported."""
    with suppress(*UNREADABLE):
        return cpu_times(read_limits()).busy_seconds - process_time(), monotonic()
    return None


def _cores_used(earlier: tuple[float, float] | None, later: tuple[float, float] | None) -> float | None:
    """Return the mean number of cores that other processes used between two results of `_core_seconds`, or None."""
    if earlier is None or later is None or later[1] <= earlier[1]:
        return None
    return max(later[0] - earlier[0], 0.0) / (later[1] - earlier[1])


def rehearse(question: dict[str, Any], report: Report) -> None:
    """Rehearse the parts of a run. Report the name of each part when it begins, and its figures when it has ended.

    `question` has config_file, profile, shortcuts, assignments, gpu, place and parts.
    """
    report(part=LOADING)
    started_at = monotonic()
    with session_of(question, Path(question["place"]), "rehearsal") as (session, resident_bytes):
        report(part=LOADING, seconds=monotonic() - started_at)
        from tui_trainer.training.rehearsal import Rehearsal

        parts = Rehearsal(session, report, resident_bytes).run(question["parts"])
        # After running out of memory, passes are smaller than those of the plan's `shape_key`.
        if session.plan.shape_key and "works_with" not in parts.get(WORST, {}):
            _keep_step_seconds(session, parts.get(TYPICAL, {}))
        # The peak of a rehearsal with the largest pass is at least that of the run.
        if parts and not any("failed" in part or "works_with" in part for part in parts.values()):
            keep_peak(session.plan, max(part["peak_memory_bytes"] for part in parts.values()))


def try_sizes(question: dict[str, Any], report: Report) -> None:
    """Try micro-batch sizes. Report each size when its trial begins, and its figures when the trial has ended.

    `question` has a request, gpu, place, candidates, tried, step_rows and timed.
    """
    survived_by_rows = {int(rows): bool(has_survived) for rows, has_survived in question["tried"]}
    with session_of(question, Path(question["place"]), f"tries-{len(survived_by_rows)}") as (session, resident_bytes):
        from tui_trainer.training.rehearsal import MicroBatchTries

        tries = MicroBatchTries(session, resident_bytes)
        has_failed = False
        while (rows := next_rows(question["candidates"], survived_by_rows)) is not None:
            report(trying=rows, doing="trying")
            outcome = tries.try_steps(rows, passes=-(-question["step_rows"] // rows))
            if has_failed and "failed" in outcome:
                # Memory that the first failure left in the heap may be the cause, so a new process must try this size.
                return
            survived_by_rows[rows] = "failed" not in outcome
            has_failed = has_failed or not survived_by_rows[rows]
            report(rows=rows, **outcome)
        if question["timed"]:
            sizes = sizes_to_time(rows for rows, has_survived in survived_by_rows.items() if has_survived)
            _time(report, tries, sizes, session.plan.total_steps.value)


def _time(report: Report, tries: Any, sizes: list[int], total_steps: int) -> None:
    """Time the same steps with each micro-batch size, in turns, and report the seconds without first steps."""
    step_seconds: dict[int, list[float]] = {rows: [] for rows in sizes}
    spent_seconds = 0.0
    for round_number in range(_ROUNDS):
        first_step = 1 + round_number * _STEPS % max(total_steps - _STEPS, 1)
        for rows in sizes:
            report(trying=rows, doing="timing")
            seconds = tries.step_seconds(rows, first_step, _STEPS)
            spent_seconds += sum(seconds)
            step_seconds[rows] += seconds[1:]
        if spent_seconds > _TIMED_SECONDS:
            break
    for rows, seconds in step_seconds.items():
        report(rows=rows, step_seconds=seconds)


@contextmanager
def session_of(question: dict[str, Any], place: Path, name: str) -> "Iterator[tuple[Session, int]]":
    """Yield (session before its first step, resident bytes of the libraries) for a run with the question's settings.

    The run folder is `name` in `place`. Raises InputError."""
    loaded = load_config(request_of(question), gpu=question["gpu"])
    restart_in_unsloth_python(loaded.config)
    folder = RunFolder.create(place, name)
    with JournalWriter(folder.journal) as journal:
        plan, data = exact_plan(loaded, folder, journal, lambda *_: None, gpu=question["gpu"])
        from tui_trainer.training.job import Job
        from tui_trainer.training.ranks import Ranks
        from tui_trainer.training.run import opened_session

        job = Job(plan=plan, data=data, folder=folder, checkpoint=None, baselines=None, versions=versions())
        with opened_session(job, journal, lambda: False) as (session, resident_bytes):
            # If the plan has several processes, only the work of rank 0 is measured.
            session.batches.ranks = Ranks(world_size=plan.processes.value)
            yield session, resident_bytes


def _figures(events: list[RunEvent]) -> dict[str, Any]:
    steps = [event for event in events if isinstance(event, StepDone)]
    held_out_losses = [event.loss for event in events if isinstance(event, EvalDone)]
    measured_steps = steps[WARM_UP_STEPS:]
    # Rates count all steps together, because steps differ in length. A step that something else held up counts as one
    # that takes `_SLOW_FACTOR` times the median.
    most_token_seconds = _SLOW_FACTOR * median(step.step_seconds / step.input_tokens for step in measured_steps)
    seconds = sum(min(step.step_seconds, most_token_seconds * step.input_tokens) for step in measured_steps)
    return {
        "steps": len(measured_steps),
        "step_seconds": median(step.step_seconds for step in measured_steps),
        "samples_per_second": sum(step.samples for step in measured_steps) / seconds,
        "tokens_per_second": sum(step.input_tokens for step in measured_steps) / seconds,
        "peak_memory_bytes": max(step.peak_memory_bytes for step in steps),
        "loss": held_out_losses[-1] if held_out_losses else steps[-1].loss,
        "problems": {event.kind: event.message for event in events if isinstance(event, RunProblem)},
    }
