"""Variants of one piece of work, measured in turns, each time in a fresh process: so its peak memory is its own, one
that crashes ends only its own line, and what else the machine does falls on all of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from threading import Event, Thread
from time import monotonic, perf_counter, process_time
from typing import TYPE_CHECKING, Any

from tui_trainer.errors import InputError
from tui_trainer.hardware.cgroup import read_limits
from tui_trainer.hardware.gauges import UNREADABLE, cpu_times
from tui_trainer.hardware.nvml import session as driver_session
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.carry_out import keep_peak, keep_step_seconds
from tui_trainer.launching.micro_batches import next_rows, request_of, to_time
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import exact_plan, versions
from tui_trainer.models.unsloth import change_over
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import EvalDone, RunProblem, StepDone
from tui_trainer.runs.events import Event as RunEvent
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.training.job import LOADING, TYPICAL, WORST
from tui_trainer.units import format_seconds
from tui_trainer.worker.asking import WorkerFailed
from tui_trainer.worker.questions import Report

Ask = Callable[["Variant", bool, float], dict[str, Any]]
"""Given a variant, whether this is its first turn, and the seconds that it may take. Raises WorkerFailed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """`reason` says why it does not apply here; empty: it is measured."""

    name: str
    question: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class Measured:
    """One answer for each turn that was taken, or the reason why there is none."""

    variant: Variant
    answers: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""

    def values(self, name: str) -> list[float]:
        return [answer[name] for answer in self.answers if answer.get(name) is not None]

    def median(self, name: str) -> float | None:
        return median(found) if (found := self.values(name)) else None

    def spread(self, name: str) -> float | None:
        """Half of the way from the least to the most, as a share of the median; None for one turn."""
        found = self.values(name)
        return (max(found) - min(found)) / 2 / median(found) if len(found) > 1 and median(found) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """What was measured, and why that is not all that was asked for; empty: it is."""

    measured: Sequence[Measured]
    cut_short: str


def chosen(variants: Sequence[Variant], only: Sequence[str]) -> list[Variant]:
    """The first, with which the others are compared, and those with a word of `only` in their names; without any all.
    Raises InputError where there are none."""
    found = [one for one in variants if not only or any(word in one.name for word in only)]
    if not found:
        names = ", ".join(one.name for one in variants)
        raise InputError(f"no variant has {' or '.join(only)} in its name", hint=f"variants: {names}")
    return found if variants[0] in found else [variants[0], *found]


def measure_in_turns(
    variants: Sequence[Variant],
    ask: Ask,
    *,
    rounds: int,
    seconds: float,
    told: Callable[[str], None],
    needs_all: bool = False,
) -> Rounds:
    """All variants once, then all once more, until `seconds` are over or Ctrl+C is pressed. `needs_all`: none is asked
    once one of them has failed."""
    found = [Measured(variant=variant, reason=variant.reason) for variant in variants]
    ends, longest, cut_short = monotonic() + seconds, 0.0, ""
    try:
        for number in range(rounds):
            for one in [one for one in found if not one.reason]:
                if needs_all and any(other.reason for other in found):
                    break
                left, started = ends - monotonic(), monotonic()
                if left <= (longest if number else 0):
                    cut_short = f"the time limit of {format_seconds(seconds)} was reached"
                    one.reason = "" if one.answers else f"not measured: {cut_short}"
                    continue
                told(f"round {number + 1} of {rounds}: {one.variant.name}")
                try:
                    one.answers.append(ask(one.variant, not one.answers, left))
                except WorkerFailed as failure:
                    one.reason = failure.reason or str(failure)
                longest = max(longest, monotonic() - started)
                told(f"  {one.reason or 'measured'}, {format_seconds(monotonic() - started)}")
    except KeyboardInterrupt:
        cut_short = "interrupted"
        for one in found:
            one.reason = one.reason or ("" if one.answers else "not measured: interrupted")
    return Rounds(measured=found, cut_short=cut_short)


Columns = Mapping[str, Callable[[Mapping[str, Any]], str]]
"""What a column shows of a row, by its title."""


def table_of(columns: Columns, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The titles, and the cells of the rows that have figures."""
    return [[*columns], *([show(row) for show in columns.values()] for row in rows if row["turns"])]


def turns_words(rounds: int) -> str:
    return ("one round" if rounds == 1 else f"medians of up to {rounds} rounds") + ", each in a fresh process"


def with_spread(value: float, spread: float | None) -> str:
    """`12.3 ±4%`, a median and half of its spread."""
    return f"{value:,.1f}" + ("" if spread is None else f" ±{spread:.0%}")


# What is measured with a run's own session: its steps, a rehearsal, micro-batches. In a worker, which trains them.

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
    assignments, gpu, steps, folder; and least_steps and seconds, after which no more than those are taken, where steps
    may be too many. With largest_pass the largest pass of the run comes first, and in the place of the evaluation the
    seconds of a step are kept for plans to come."""
    started, seconds = monotonic(), question.get("seconds", float("inf"))
    tries_largest = question.get("largest_pass", False)
    # Nothing is saved.
    with session_of(question, Path(question["folder"]), "turn") as (session, resident):
        largest = _largest_pass(session, resident) if tries_largest else {}
        if "failed" in largest:
            return largest
        others, utilisation = OthersCores(), Utilisation(session.plan)
        for step in range(1, question["steps"] + WARM_UP_STEPS + 1):
            if monotonic() - started > seconds and step > question["least_steps"] + WARM_UP_STEPS:
                break
            if step == WARM_UP_STEPS + 1:
                utilisation.start()
            session.take_step(step)
        session.flush()
        share = utilisation.stop()
        surroundings = {
            "others_cores": others.since_begun(), "slowed_by": _slowed_by(session.plan), "utilisation_share": share,
        }  # fmt: skip
        if not tries_largest:
            session.evaluate(scheduled=False)
    figures = _figures(JournalReader(session.job.folder.journal).read_new()) | surroundings
    if tries_largest:
        figures["largest_pass_bytes"] = largest["peak_memory_bytes"]
        if figures["steps"] >= _REHEARSED_STEPS and not figures["problems"]:
            keep_step_seconds(session.plan, figures["step_seconds"], monotonic() - started)
    return figures


def _largest_pass(session: "Session", resident_bytes: int) -> dict[str, Any]:
    """Peak memory of the largest pass of the run as it is laid out, or `failed`."""
    from tui_trainer.training.rehearsal import MicroBatchTries

    tries, layout = MicroBatchTries(session, resident_bytes), session.components.batches.layout
    found = tries.survives(layout.rows, session.plan.gradient_accumulation_steps.value)
    session.components.lay_out_anew(layout)
    return found


class Utilisation:
    """How busy the device is between `start` and `stop`, 0 to 1: of a card the mean of what its driver reports, of a
    CPU the time of this process on its threads. None where it is not reported."""

    _PERIOD_SECONDS = 0.2

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._shares: list[float] = []
        self._ended = Event()
        self._thread: Thread | None = None
        self._began: tuple[float, float] | None = None

    def start(self) -> None:
        self._began = perf_counter(), process_time()
        if self._plan.device == "cuda":
            self._thread = Thread(target=self._look, name="utilisation", daemon=True)
            self._thread.start()

    def stop(self) -> float | None:
        self._ended.set()
        if self._began is None:
            return None
        if self._plan.device == "cuda":
            return sum(self._shares) / len(self._shares) if self._shares else None
        (wall, cpu), threads = self._began, self._plan.threads.value
        return min(1.0, (process_time() - cpu) / max(perf_counter() - wall, 1e-9) / threads)

    def _look(self) -> None:
        cards, driver = probe().gpus, driver_session()
        index = next((card.index for card in cards if card.cuda_uuid == self._plan.gpu_uuid), None)
        while driver is not None and not self._ended.wait(self._PERIOD_SECONDS):
            for card in driver.live():
                if card.index == index and card.utilisation_share is not None:
                    self._shares.append(card.utilisation_share)


class OthersCores:
    """How many cores other processes keep busy, from now on."""

    def __init__(self) -> None:
        self._before = self._look()

    @staticmethod
    def _look() -> tuple[float, float, float] | None:
        """Seconds of all work on the cores that this process may use, of its own, and by the clock."""
        with suppress(*UNREADABLE):
            return cpu_times(read_limits()).busy_seconds, process_time(), monotonic()
        return None

    def since_begun(self) -> float | None:
        """Their mean; None where it is not reported."""
        after, before = self._look(), self._before
        if before is None or after is None or after[2] <= before[2]:
            return None
        return max(after[0] - before[0] - (after[1] - before[1]), 0.0) / (after[2] - before[2])


def _slowed_by(plan: Plan) -> str:
    """`heat` or `power`, by which the card of this plan is held back now; empty: neither, or nobody tells."""
    cards = driver.live() if plan.device == "cuda" and (driver := driver_session()) else ()
    return next((one.slowed_by or "" for one in cards if one.cuda_uuid == plan.gpu_uuid), "")


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
        from tui_trainer.training.rehearsal import MicroBatchTries

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


def _figures(events: list[RunEvent]) -> dict[str, Any]:
    steps = [event for event in events if isinstance(event, StepDone)]
    held_out = [event.loss for event in events if isinstance(event, EvalDone)]
    measured = steps[WARM_UP_STEPS:]
    # Where rows are grouped by length, short steps are many and say little of a run: all together count. A step that
    # something else held up counts as if it had been a slow one.
    slowest = _SLOW_FACTOR * median(step.step_seconds / step.input_tokens for step in measured)
    seconds = sum(min(step.step_seconds, slowest * step.input_tokens) for step in measured)
    return {
        "steps": len(measured),
        "step_seconds": median(step.step_seconds for step in measured),
        "samples_per_second": sum(step.samples for step in measured) / seconds,
        "tokens_per_second": sum(step.input_tokens for step in measured) / seconds,
        "peak_memory_bytes": max(step.peak_memory_bytes for step in steps),
        "loss": held_out[-1] if held_out else steps[-1].loss,
        "problems": {event.kind: event.message for event in events if isinstance(event, RunProblem)},
    }
