"""RunState: the state of a run, computed from its journal. The list of runs, comparisons, reports and screens use it.

Curves are columns of numbers, 96 bytes per step, so that 100,000 steps stay below 10 MB. Durations are sums of the
seconds in the events rather than differences of `at`, because clocks jump. Only `Start.seconds` and the readings of
gauges, which have no durations, depend on `at`.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from statistics import median
from typing import Annotated, Final, Literal

from tui_trainer.runs import events
from tui_trainer.runs.events import BetweenSteps, GaugesRead, StepDone
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalReader
from tui_trainer.units import Figure, figures_of, format_seconds

# A longer gap between two readings does not count, because the run was paused or dead, or a clock jumped.
_LONGEST_GAP_SECONDS: Final = 60.0
_SUMMARIZED: Final = (*events.GAUGES, "memory_bytes", "usable_cores", "machine_cpu_share")


def _float_column() -> array[float]:
    return array("d")


def _int_column() -> array[int]:
    return array("q")


@dataclass(slots=True)
class GaugeSummary:
    """The mean and the peak of each gauge, over the readings that report it.

    The gauges are the names in `events.GAUGES`, `busy_cores` (cores used by the run's process) and `others_cores`
    (cores used by other processes).
    """

    readings: int = 0
    seconds: array[float] = field(default_factory=_float_column)
    """Time of each reading in seconds since the first, without long gaps."""
    columns: dict[str, array[float]] = field(default_factory=lambda: {name: _float_column() for name in events.GAUGES})
    """Value of each gauge at each reading; NaN if the reading does not report it."""
    energy_joules: float | None = None
    """Energy that the GPUs used; None if none of them reports its power."""
    _totals: dict[str, float] = field(default_factory=dict)
    _reports: dict[str, int] = field(default_factory=dict)
    _peaks: dict[str, float] = field(default_factory=dict)
    usable_cores: float | None = None
    """Number of usable cores, from the newest reading that reports the use of the CPU."""
    _last_at: datetime | None = None
    _last_watts: float | None = None

    def add(self, reading: GaugesRead) -> None:
        """Add a reading. Values that are not finite count as not reported."""
        self.readings += 1
        moment, values = _moment(reading.at), {name: reading.figure(name) for name in _SUMMARIZED}
        gap_seconds = _seconds_between(self._last_at, moment) or 0.0
        gap_seconds = gap_seconds if gap_seconds <= _LONGEST_GAP_SECONDS else 0.0
        if (watts := values["power_watts"]) is not None:
            self.energy_joules = (self.energy_joules or 0.0) + gap_seconds * (watts + (self._last_watts or watts)) / 2
        self._last_at, self._last_watts = moment or self._last_at, watts
        self.seconds.append(self.seconds[-1] + gap_seconds if self.seconds else 0.0)
        for name, column in self.columns.items():
            column.append(math.nan if (value := values[name]) is None else value)
        cores, process_share = values["usable_cores"], values["process_cpu_share"]
        machine_share = values["machine_cpu_share"]
        if cores is not None and process_share is not None:
            self.usable_cores = cores
            values["busy_cores"] = process_share * cores
            values["others_cores"] = None if machine_share is None else max(machine_share - process_share, 0.0) * cores
        for name, value in values.items():
            if value is not None and math.isfinite(value):
                self._totals[name] = self._totals.get(name, 0.0) + value
                self._reports[name] = self._reports.get(name, 0) + 1
                self._peaks[name] = max(value, self._peaks.get(name, value))

    def mean(self, gauge: str) -> float | None:
        """Return the mean of a gauge; None if no reading reports it."""
        return self._totals[gauge] / self._reports[gauge] if gauge in self._reports else None

    def peak(self, gauge: str) -> float | None:
        """Return the highest value of a gauge; None if no reading reports it."""
        return self._peaks.get(gauge)


def _moment(timestamp: str) -> datetime | None:
    try:
        return datetime.fromisoformat(timestamp)
    except ValueError:
        return None


def _seconds_between(first: datetime | None, last: datetime | None) -> float | None:
    """Return the seconds from `first` to `last`; None if one of them is unknown, or if the clock was set back."""
    try:
        seconds = (last - first).total_seconds() if first and last else -1.0
    except TypeError:  # one time has a time zone, the other has none
        return None
    return seconds if seconds >= 0 else None


@dataclass(kw_only=True, slots=True)
class Start:
    """A start of a run, at step `from_step` if it resumed. `ending` is empty until the start has ended."""

    at: str
    from_step: int | None
    last_at: str
    last_step: int
    device: str
    ending: str = ""

    @property
    def seconds(self) -> float | None:
        """Seconds from the first to the last event by the wall clock; None if the clock went back."""
        return _seconds_between(_moment(self.at), _moment(self.last_at))


_MARK_STEPS: Final = 100
_MARK_SECONDS: Final = 20.0
_MOST_MARKS: Final = 6


@dataclass(slots=True)
class StepSums:
    """Sums over several steps: seconds of each part of a step, tokens, positions and samples."""

    steps: int = 0
    data_seconds: float = 0.0
    forward_seconds: float = 0.0
    backward_seconds: float = 0.0
    optimizer_seconds: float = 0.0
    step_seconds: float = 0.0
    input_tokens: int = 0
    positions: int = 0
    samples: int = 0

    def add(self, done: StepDone) -> None:
        self.steps += 1
        self.data_seconds += done.data_seconds
        self.forward_seconds += done.forward_seconds
        self.backward_seconds += done.backward_seconds
        self.optimizer_seconds += done.optimizer_seconds
        self.step_seconds += done.step_seconds
        self.input_tokens += done.input_tokens
        self.positions += done.positions
        self.samples += done.samples

    def since(self, earlier: StepSums) -> StepSums:
        """Return the sums over the steps after `earlier`, an earlier value of these sums."""
        names = [item.name for item in fields(self)]
        return StepSums(**{name: getattr(self, name) - getattr(earlier, name) for name in names})


@dataclass(slots=True)
class StepTimes:
    """Sums over the steps since a start of the run, and over its last few hundred steps."""

    sums_since_start: StepSums = field(default_factory=StepSums)
    between_steps: int = 0
    journal_seconds: float = 0.0
    empty_cache_seconds: float = 0.0
    other_seconds: float = 0.0
    _marks: deque[StepSums] = field(default_factory=lambda: deque([StepSums()], maxlen=_MOST_MARKS))

    def add(self, done: StepDone) -> None:
        sums, mark = self.sums_since_start, self._marks[-1]
        sums.add(done)
        if sums.steps - mark.steps >= _MARK_STEPS and sums.step_seconds - mark.step_seconds >= _MARK_SECONDS:
            self._marks.append(replace(sums))

    def add_between(self, event: BetweenSteps) -> None:
        self.between_steps += event.steps
        self.journal_seconds += event.journal_seconds
        self.empty_cache_seconds += event.empty_cache_seconds
        self.other_seconds += event.other_seconds

    @property
    def recent_sums(self) -> StepSums:
        """Sums over the newest steps: at least 500 steps and 100 seconds, or all steps while there are fewer."""
        return self.sums_since_start.since(self._marks[0])


PADDING: Final = Figure(title="padding", unit="share", config_place=5, in_journal=True)


def measured_figures(state: RunState) -> dict[str, float]:
    """Return the measured figures of a run: all properties of `RunState` with a `Figure` that are not None, by name."""
    values = {name: getattr(state, name) for name in figures_of(RunState)}
    return {name: value for name, value in values.items() if value is not None}


def spread_ends(count: int, max_parts: int) -> list[int]:
    """Return the end indices of up to `max_parts` equal parts of `count` items."""
    parts = min(count, max_parts)
    return [count * (part + 1) // parts for part in range(parts)]


def means(xs: Sequence[float], values: Sequence[float], max_points: int) -> list[tuple[float, float]]:
    """Reduce a curve to up to `max_points` points: the last x of each section and the mean of its finite values."""
    points, start = [], 0
    for end in spread_ends(min(len(xs), len(values)), max_points):
        finite_values = [value for value in values[start:end] if math.isfinite(value)]
        if finite_values:
            points.append((xs[end - 1], sum(finite_values) / len(finite_values)))
        start = end
    return points


Status = Literal["preparing", "training", "paused", "finished", "stopped", "failed"]
STOPPED_EARLY: Final = "stopped early"

WARM_UP_STEPS: Final = 2
WINDOW_STEPS: Final = 50
_LEAST_SMOOTHED: Final = 5
SAMPLES_KEPT: Final = 20
PROBLEMS_KEPT: Final = 100
GAUGES_EVERY_SECONDS: Final = 5.0
"""Interval between two readings of a run's gauges."""
# Number of readings in one hour.
GAUGES_KEPT: Final = int(3600 / GAUGES_EVERY_SECONDS)
# Number of events in two minutes, at one every 4 s.
_RANK_TIMES_KEPT: Final = 30
_TRAINING_PHASES: Final = frozenset({"training", "saving"})


@dataclass
class RunState:
    """The state of a run. Step numbers in the columns increase strictly: a repeated step replaces the earlier one."""

    name: str = ""
    task: str = ""
    device: str = ""
    pid: int = 0
    phase: str = ""
    step: int = 0
    total_steps: int = 0
    resumed_from_step: int | None = None
    started_at: str = ""
    last_event_at: str = ""
    starts: list[Start] = field(default_factory=list)
    journal_damage: str = ""
    """A sentence about the lines that could not be read; empty if there are none."""

    # Columns with one value for each step. `_drop_after` treats every array of this class as a column.
    steps: array[int] = field(default_factory=_int_column)
    token_counts: array[int] = field(default_factory=_int_column)
    """Tokens that count in the loss."""
    input_counts: array[int] = field(default_factory=_int_column)
    """Tokens that the model read."""
    loss_sums: array[float] = field(default_factory=_float_column)
    lrs: array[float] = field(default_factory=_float_column)
    grad_norms: array[float] = field(default_factory=_float_column)
    step_seconds: array[float] = field(default_factory=_float_column)
    data_seconds: array[float] = field(default_factory=_float_column)
    forward_seconds: array[float] = field(default_factory=_float_column)
    backward_seconds: array[float] = field(default_factory=_float_column)
    optimizer_seconds: array[float] = field(default_factory=_float_column)
    step_peak_bytes: array[int] = field(default_factory=_int_column)
    """Peak memory up to each step, in bytes (`StepDone.peak_memory_bytes`)."""
    step_scores: dict[str, array[float]] = field(default_factory=dict)
    """For each training score, a column with its value at each step; NaN for a step without the score."""
    first_steps: dict[int, int] = field(default_factory=dict)
    """For each number of positions, the first step of this start that had it."""

    evals: list[events.EvalDone] = field(default_factory=list)
    epochs: list[events.EpochDone] = field(default_factory=list)
    checkpoints: list[events.CheckpointSaved] = field(default_factory=list)
    samples: deque[events.TextSampled] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    problems: deque[events.RunProblem] = field(default_factory=lambda: deque(maxlen=PROBLEMS_KEPT))
    gauges: deque[events.GaugesRead] = field(default_factory=lambda: deque(maxlen=GAUGES_KEPT))
    """Readings of the last hour, including readings before a resume."""
    gauge_summary: GaugeSummary = field(default_factory=GaugeSummary)
    """Summary of all readings of the run, including those that `gauges` has dropped."""
    recent_sums: deque[events.StepDone] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    rank_times: deque[events.RanksTimed] = field(default_factory=lambda: deque(maxlen=_RANK_TIMES_KEPT))
    """Newest `RanksTimed` of this start."""

    versions: dict[str, str] = field(default_factory=dict)
    baselines: events.BaselinesMeasured | None = None
    data: events.DataPrepared | None = None
    plan: events.PlanMade | None = None
    resident_bytes_before: int | None = None
    """Memory of the process before it loads the model, which a plan for a CPU does not count; None on a GPU."""
    threads: int | None = None
    """Threads of torch's kernels on the CPU; None in older journals."""
    progress: events.Progress | None = None
    last_step: events.StepDone | None = None
    finished: events.RunFinished | None = None
    failed: events.RunFailed | None = None
    inference: events.InferenceMeasured | None = None
    """Newest measurement of the final model. Resuming the run drops it, because the final model then changes."""
    steps_since_start: int = 0
    readings_since_start: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    """Times of the steps of this start, without its first two steps."""
    peak_memory_bytes: int = 0
    """Peak memory of all steps in bytes, including steps that a resume discarded."""
    all_input_tokens: int = 0
    """Tokens that the model read in all steps, including steps that a resume discarded."""
    all_step_seconds: float = 0.0
    """Seconds of all steps, including steps that a resume discarded."""

    def apply(self, event: events.Event) -> None:
        """Update the state with one event. Kinds of events that do not change the state are ignored."""
        match event:  # in the order of frequency
            case events.StepDone():
                self._take_step(event)
            case events.GaugesRead():
                self.gauges.append(event)
                self.readings_since_start += 1
                self.gauge_summary.add(event)
            case events.BetweenSteps():
                self.times.add_between(event)
            case events.RanksTimed():
                self.rank_times.append(event)
            case events.RunStarted():
                self._start(event)
            case events.PhaseChanged():
                self.phase, self.progress = event.phase, None
            case events.Progress():
                # The progress of finished work is removed, because the next work may take long without reporting any.
                self.progress = None if event.total and event.done >= event.total else event
            case events.DataPrepared():
                self.data, self.progress = event, None
            case events.BaselinesMeasured():
                self.baselines = event
            case events.PlanMade():
                self.plan, self.total_steps = event, event.total_steps
            case events.LibrariesLoaded():
                self.resident_bytes_before, self.threads = event.resident_bytes, event.threads
            case events.EvalDone():
                self.evals.append(event)
                self.progress = None
            case events.EpochDone():
                self.epochs.append(event)
            case events.CheckpointSaved():
                self.checkpoints.append(event)
            case events.TextSampled():
                self.samples.append(event)
            case events.MicroBatchReduced():
                self.problems.append(event)
                if self.plan is not None and event.what == "training":
                    # The planned padding holds only for the former micro-batch.
                    figures = {name: value for name, value in self.plan.figures.items() if name != "padding_share"}
                    plan = replace(self.plan, figures=figures, per_device_train_batch_size=event.rows)
                    self.plan = replace(plan, gradient_accumulation_steps=event.passes)
            case events.RunProblem():  # after MicroBatchReduced, which is a subclass
                self.problems.append(event)
            case events.RunFinished():
                self._end(event, None, event.reason)
            case events.RunFailed():
                self._end(None, event, f"failed: {event.message}")
            case events.InferenceMeasured():
                self.inference = event
        self.last_event_at = event.at or self.last_event_at
        if self.starts:
            start = self.starts[-1]
            start.last_at = self.last_event_at
            if event.step > start.last_step:
                start.last_step = event.step

    def _end(self, finished: events.RunFinished | None, failed: events.RunFailed | None, ending: str) -> None:
        self.finished, self.failed, self.progress = finished, failed, None
        for start in self.starts[-1:]:
            start.ending = ending

    @property
    def status(self) -> Status:
        """Status according to the journal, which cannot show that the process was killed (see `runs/overview.py`)."""
        if self.failed is not None:
            return "failed"
        if self.finished is not None:
            return "stopped" if self.finished.reason == "stopped" else "finished"
        if self.phase == "paused":
            return "paused"
        return "training" if self.steps_since_start or self.phase in _TRAINING_PHASES else "preparing"

    @property
    def has_ended(self) -> bool:
        """Whether the run's last start has recorded its end. The process may still be writing the report."""
        return self.finished is not None or self.failed is not None

    @property
    def stopped_early(self) -> bool:
        """Whether early stopping ended the run. Its status is `finished`."""
        return self.finished is not None and self.finished.reason == "early stopping"

    @property
    def status_words(self) -> str:
        return STOPPED_EARLY if self.stopped_early else self.status

    @property
    def seconds(self) -> float | None:
        """Seconds of all starts by the wall clock, from the first to the last event of each; None if unknown."""
        durations = [seconds for start in self.starts if (seconds := start.seconds) is not None]
        return sum(durations) if durations else None

    @property
    def losses(self) -> array[float]:
        """Loss of each step in nats per token; NaN if no token counted. Each access computes the losses again."""
        return array("d", map(self.loss_at, range(len(self.loss_sums))))

    def loss_at(self, index: int) -> float:
        """Return the loss at an index of `steps`, in nats per token; NaN if no token counted in the loss."""
        tokens = self.token_counts[index]
        return self.loss_sums[index] / tokens if tokens else math.nan

    @property
    def loss(self) -> float | None:
        """Training loss in nats per token: as recorded at the end of the run, before the end `loss_smoothed`."""
        finish_event = self.finished
        return self.loss_smoothed if finish_event is None or finish_event.loss is None else finish_event.loss

    @property
    def share_done(self) -> float | None:
        """Share of the steps that are done, 0 to 1; None while their number is unknown."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second over up to 50 recent steps. The first two of a start count only if there are no others."""
        return self._per_second(sum(event.input_tokens or event.tokens for event in self.recent_sums))

    @property
    def samples_per_second(self) -> float | None:
        """Samples per second over the same steps as `tokens_per_second`."""
        return self._per_second(sum(event.samples for event in self.recent_sums))

    @property
    def padding_share(self) -> Annotated[float | None, PADDING]:
        """Share of padding among the computed positions, without the first two steps of this start.

        None if the share is less than a thousandth, for example if only the last row of a text is shorter.
        """
        whole_sums = self.times.sums_since_start
        share = 1 - whole_sums.input_tokens / whole_sums.positions if whole_sums.positions else 0.0
        return share if share >= 0.001 else None

    @property
    def loss_smoothed(self) -> float | None:
        """Training loss, averaged over the last `smoothing_window` steps, in nats per token; None without steps."""
        return training_loss(self.loss_sums, self.token_counts, len(self.steps))

    @property
    def training_scores(self) -> dict[str, float]:
        """Mean of each training score over the same steps as `tokens_per_second`; empty without scores."""
        last_sums = self.recent_sums[-1].sums if self.recent_sums else {}
        totals = {name: sum(event.sums.get(name, 0.0) for event in self.recent_sums) for name in last_sums}
        counts = {name: sum(event.counts.get(name, 0) for event in self.recent_sums) for name in last_sums}
        return {name: total / counts[name] for name, total in totals.items() if counts[name]}

    def _per_second(self, count: int) -> float | None:
        seconds = sum(event.step_seconds for event in self.recent_sums)
        return count / seconds if seconds > 0 else None

    def _start(self, event: events.RunStarted) -> None:
        at, step, from_step = event.at, event.step, event.resumed_from_step
        self.starts.append(Start(at=at, from_step=from_step, last_at=at, last_step=step, device=event.device))
        if from_step is None or not self.started_at:
            self.started_at = at
        self.name, self.task, self.device = event.name, event.task, event.device
        self.pid, self.total_steps, self.versions = event.pid, event.total_steps, event.versions
        self.resumed_from_step, self.step = from_step, from_step or 0
        self._drop_after(-1 if from_step is None else from_step)
        self.phase, self.progress = "preparing", None
        self.finished = self.failed = self.inference = self.resident_bytes_before = None
        self.steps_since_start = self.readings_since_start = 0
        self.times = StepTimes()
        self.recent_sums.clear()
        self.rank_times.clear()
        self.first_steps.clear()

    def _drop_after(self, step: int) -> None:
        kept_length = bisect_right(self.steps, step)
        for column in (*vars(self).values(), *self.step_scores.values()):
            if isinstance(column, array):
                del column[kept_length:]
        self.evals = [event for event in self.evals if event.step <= step]
        self.epochs = [event for event in self.epochs if event.step <= step]
        self.checkpoints = [event for event in self.checkpoints if event.step <= step]
        self.samples = deque((sample for sample in self.samples if sample.step <= step), maxlen=SAMPLES_KEPT)
        if self.last_step is not None and self.last_step.step > step:
            self.last_step = None

    def _take_step(self, event: events.StepDone) -> None:
        step = event.step
        if step <= self.step and self.steps and step <= self.steps[-1]:
            self._drop_after(step - 1)
        self.step = step
        self.steps.append(step)
        self.token_counts.append(event.tokens)
        input_tokens = event.input_tokens or event.tokens
        self.input_counts.append(input_tokens)
        self.all_input_tokens += input_tokens
        self.all_step_seconds += event.step_seconds
        self.loss_sums.append(event.loss_sum)
        self.lrs.append(event.lr)
        self.grad_norms.append(event.grad_norm)
        self.step_seconds.append(event.step_seconds)
        self.data_seconds.append(event.data_seconds)
        self.forward_seconds.append(event.forward_seconds)
        self.backward_seconds.append(event.backward_seconds)
        self.optimizer_seconds.append(event.optimizer_seconds)
        self.step_peak_bytes.append(event.peak_memory_bytes)
        self.first_steps.setdefault(event.positions, step)
        if event.sums or self.step_scores:
            self._take_scores(event.scores)
        self.last_step = event
        self.peak_memory_bytes = max(self.peak_memory_bytes, event.peak_memory_bytes)
        self.steps_since_start += 1
        if self.steps_since_start == WARM_UP_STEPS + 1:
            self.recent_sums.clear()
        self.recent_sums.append(event)
        if self.steps_since_start > WARM_UP_STEPS:
            self.times.add(event)

    def _take_scores(self, scores: dict[str, float]) -> None:
        for name in scores:
            self.step_scores.setdefault(name, array("d", [math.nan] * (len(self.steps) - 1)))
        for name, column in self.step_scores.items():
            column.append(scores.get(name, math.nan))


def smoothing_window(steps: int) -> int:
    """Return the number of steps over which the training loss is averaged: a tenth of `steps`, but 5 to 50."""
    return min(max(steps // 10, _LEAST_SMOOTHED), WINDOW_STEPS)


def training_loss(loss_sums: Sequence[float], token_counts: Sequence[int], steps: int) -> float | None:
    """Return the training loss after `steps` in nats per token: the mean over the last `smoothing_window` steps.

    The sequences end with the last step, and only their last `WINDOW_STEPS` values are needed. Steps whose loss is not
    finite are skipped. Returns None if no step is left.
    """
    window_steps = smoothing_window(steps)
    step_pairs = zip(loss_sums[-window_steps:], token_counts[-window_steps:], strict=True)
    finite_pairs = [(loss_sum, tokens) for loss_sum, tokens in step_pairs if math.isfinite(loss_sum)]
    tokens = sum(tokens for _, tokens in finite_pairs)
    return sum(loss_sum for loss_sum, _ in finite_pairs) / tokens if tokens else None


def apply_events(events: Iterable[events.Event], state: RunState | None = None) -> RunState:
    """Apply the events to `state` in place, or else to a new state, and return the state."""
    state = RunState() if state is None else state
    for event in events:
        state.apply(event)
    return state


class FollowedJournal:
    """A run's state that is updated as its journal grows."""

    def __init__(self, folder: RunFolder) -> None:
        self.reader, self.state = JournalReader(folder.journal), RunState(name=folder.name)

    def read_new(self) -> RunState:
        """Apply the events that were written since the last call, and return the state."""
        apply_events(self.reader.stream(), self.state)
        self.state.journal_damage = self.reader.damage
        return self.state


def read_run(folder: RunFolder) -> RunState:
    """Read the journal of a run to its end, and return the state. Without a journal, return the initial state."""
    return FollowedJournal(folder).read_new()


# The slowest process, and how long the others wait for it.
#
# All processes leave a collective operation at the same time. The process with the least time in it arrived last and is
# the slowest. The additional time of each other process is waiting.


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """The slowest process of a run. In each step the others wait `lag_seconds` for it; a step takes `step_seconds`.

    `communication_seconds` is its time in collective operations per step. The slowest process does not wait in them.
    """

    rank: int
    lag_seconds: float
    communication_seconds: float
    step_seconds: float

    @property
    def words(self) -> str:
        """Text for display: `slowest: rank 3, makes each step 14 % longer (12 ms), communication 6 %`."""
        other_seconds = self.step_seconds - self.lag_seconds
        lag_share = self.lag_seconds / other_seconds if other_seconds > 0 else 0.0
        lag_text = f"makes each step {100 * lag_share:.0f} % longer ({format_seconds(self.lag_seconds)})"
        communication_share = min(self.communication_seconds / self.step_seconds, 1.0) if self.step_seconds > 0 else 0.0
        return f"slowest: rank {self.rank}, {lag_text}, communication {100 * communication_share:.0f} %"


def slowest_rank(state: RunState) -> SlowestRank | None:
    """Return the slowest process of the last two minutes; None for a run of one process, and if it is not measured."""
    readings = [event.communication_seconds for event in state.rank_times if len(event.communication_seconds) > 1]
    if not readings or not state.recent_sums:
        return None
    # Use only readings with the present number of processes.
    comparable_readings = [reading for reading in readings if len(reading) == len(readings[-1])]
    mean_seconds = [sum(column) / len(comparable_readings) for column in zip(*comparable_readings, strict=True)]
    slowest_index = min(range(len(mean_seconds)), key=mean_seconds.__getitem__)
    others_seconds = median(seconds for rank, seconds in enumerate(mean_seconds) if rank != slowest_index)
    return SlowestRank(
        rank=slowest_index,
        lag_seconds=others_seconds - mean_seconds[slowest_index],
        communication_seconds=mean_seconds[slowest_index],
        step_seconds=sum(step.step_seconds for step in state.recent_sums) / len(state.recent_sums),
    )
