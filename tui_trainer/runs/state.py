"""RunState: the only fold of a run's journal. The list of runs, comparisons, reports and screens are views of it.

Curves are columns of numbers, 96 bytes per step, so that 100,000 steps stay below 10 MB. Durations are sums of the
seconds in the events rather than differences of `at`, because clocks jump. Only `Start.seconds` and the readings of
gauges, which have no durations, go by `at`.
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

# What the steps and the readings of a run add up to, while its journal is read.


# Nothing was measured between readings that are further apart: the run was paused or gone, or a clock jumped.
_LONGEST_GAP_SECONDS: Final = 60.0
_READ: Final = (*events.GAUGES, "memory_bytes", "usable_cores", "machine_cpu_share")


def _column() -> array[float]:
    return array("d")


def _counts() -> array[int]:
    return array("q")


@dataclass(slots=True)
class GaugeSummary:
    """Several readings as one: the mean and the peak of each gauge, of those readings that report it.

    Gauges are the fields of `GaugesRead`, those of all GPUs as `GaugesRead.over_gpus` has them, `busy_cores` of the
    run's process and `others_cores`, the cores that other processes were busy on.
    """

    readings: int = 0
    seconds: array[float] = field(default_factory=_column)
    """The time at each reading, in seconds, without the gaps in which nothing was measured."""
    columns: dict[str, array[float]] = field(default_factory=lambda: {name: _column() for name in events.GAUGES})
    """The value of each gauge at each reading; NaN if it does not report it."""
    energy_joules: float | None = None
    """Energy that the GPUs used; None if none of them reports its power."""
    _totals: dict[str, float] = field(default_factory=dict)
    _reports: dict[str, int] = field(default_factory=dict)
    _peaks: dict[str, float] = field(default_factory=dict)
    usable_cores: float | None = None
    """Of the newest reading that reports the use of the CPU."""
    _last_at: datetime | None = None
    _last_watts: float | None = None

    def add(self, reading: GaugesRead) -> None:
        """Add one more reading. Values that are not finite count as not reported."""
        self.readings += 1
        at, values = _moment(reading.at), {name: reading.figure(name) for name in _READ}
        gap = _seconds_between(self._last_at, at) or 0.0
        gap = gap if gap <= _LONGEST_GAP_SECONDS else 0.0
        if (watts := values["power_watts"]) is not None:
            self.energy_joules = (self.energy_joules or 0.0) + gap * (watts + (self._last_watts or watts)) / 2
        self._last_at, self._last_watts = at or self._last_at, watts
        self.seconds.append(self.seconds[-1] + gap if self.seconds else 0.0)
        for name, column in self.columns.items():
            column.append(math.nan if (value := values[name]) is None else value)
        cores, share, machine = values["usable_cores"], values["process_cpu_share"], values["machine_cpu_share"]
        if cores is not None and share is not None:
            self.usable_cores = cores
            values["busy_cores"] = share * cores
            values["others_cores"] = None if machine is None else max(machine - share, 0.0) * cores
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


def _moment(at: str) -> datetime | None:
    try:
        return datetime.fromisoformat(at)
    except ValueError:
        return None


def _seconds_between(first: datetime | None, last: datetime | None) -> float | None:
    """Return the seconds between two times; None if one is unknown, or the clock was set back."""
    try:
        seconds = (last - first).total_seconds() if first and last else -1.0
    except TypeError:  # one with a time zone, one without
        return None
    return seconds if seconds >= 0 else None


@dataclass(kw_only=True, slots=True)
class Start:
    """One start of a run, at step `from_step` if it resumed. `ending` is empty as long as it has recorded no end."""

    at: str
    from_step: int | None
    last_at: str
    last_step: int
    device: str
    ending: str = ""

    @property
    def seconds(self) -> float | None:
        """The time from its first to its last event by the wall clock; None if the clock does not give it."""
        return _seconds_between(_moment(self.at), _moment(self.last_at))


_MARK_STEPS: Final = 100
_MARK_SECONDS: Final = 20.0
_MARKS: Final = 6


@dataclass(slots=True)
class StepSums:
    """Seconds of the parts of so many steps, and what the steps took in."""

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

    def since(self, before: StepSums) -> StepSums:
        """What came after an earlier state of these sums."""
        names = [item.name for item in fields(self)]
        return StepSums(**{name: getattr(self, name) - getattr(before, name) for name in names})


@dataclass(slots=True)
class StepTimes:
    """Of one start of a run: the whole of it, and the last few hundred steps."""

    whole: StepSums = field(default_factory=StepSums)
    between_steps: int = 0
    journal_seconds: float = 0.0
    empty_cache_seconds: float = 0.0
    other_seconds: float = 0.0
    _marks: deque[StepSums] = field(default_factory=lambda: deque([StepSums()], maxlen=_MARKS))

    def add(self, done: StepDone) -> None:
        whole, last = self.whole, self._marks[-1]
        whole.add(done)
        if whole.steps - last.steps >= _MARK_STEPS and whole.step_seconds - last.step_seconds >= _MARK_SECONDS:
            self._marks.append(replace(whole))

    def add_between(self, event: BetweenSteps) -> None:
        self.between_steps += event.steps
        self.journal_seconds += event.journal_seconds
        self.empty_cache_seconds += event.empty_cache_seconds
        self.other_seconds += event.other_seconds

    @property
    def recent(self) -> StepSums:
        """The last 500 steps or more, and 100 seconds or more; all of them while there are fewer."""
        return self.whole.since(self._marks[0])


PADDING: Final = Figure(title="padding", unit="share", config_place=5, in_journal=True)


def measured_figures(state: RunState) -> dict[str, float]:
    """Return the figures that `RunState` declares and this run has, by their names."""
    values = {name: getattr(state, name) for name in figures_of(RunState)}
    return {name: value for name, value in values.items() if value is not None}


def spread_ends(count: int, most: int) -> list[int]:
    """Where up to `most` equal parts of `count` things end, the last at `count`."""
    parts = min(count, most)
    return [count * (place + 1) // parts for place in range(parts)]


def means(xs: Sequence[float], values: Sequence[float], most: int) -> list[tuple[float, float]]:
    """Up to `most` means of values that follow each other, each at the place of the last of them; of finite ones."""
    points, start = [], 0
    for end in spread_ends(min(len(xs), len(values)), most):
        finite = [value for value in values[start:end] if math.isfinite(value)]
        if finite:
            points.append((xs[end - 1], sum(finite) / len(finite)))
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
"""How often the gauges of a run are read."""
# An hour of readings.
GAUGES_KEPT: Final = int(3600 / GAUGES_EVERY_SECONDS)
# Two minutes, one every 4 s.
_RANK_TIMES_KEPT: Final = 30
_TRAINING_PHASES: Final = frozenset({"training", "saving"})


@dataclass
class RunState:
    """The fold of a journal. Step numbers in the columns grow strictly: a step done again replaces its first try."""

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

    # One value for each step: every array of this class is such a column.
    steps: array[int] = field(default_factory=_counts)
    token_counts: array[int] = field(default_factory=_counts)
    """Tokens that count in the loss."""
    input_counts: array[int] = field(default_factory=_counts)
    """Tokens that the model read."""
    loss_sums: array[float] = field(default_factory=_column)
    lrs: array[float] = field(default_factory=_column)
    grad_norms: array[float] = field(default_factory=_column)
    step_seconds: array[float] = field(default_factory=_column)
    data_seconds: array[float] = field(default_factory=_column)
    forward_seconds: array[float] = field(default_factory=_column)
    backward_seconds: array[float] = field(default_factory=_column)
    optimizer_seconds: array[float] = field(default_factory=_column)
    peaks: array[int] = field(default_factory=_counts)
    """The highest memory use until each step, in bytes: `StepDone.peak_memory_bytes`."""
    step_scores: dict[str, array[float]] = field(default_factory=dict)
    """By name, what a step measured beside its loss; NaN for a step that has not."""
    first_steps: dict[int, int] = field(default_factory=dict)
    """Of this start: by the positions of a step, the first one that had so many."""

    evals: list[events.EvalDone] = field(default_factory=list)
    epochs: list[events.EpochDone] = field(default_factory=list)
    checkpoints: list[events.CheckpointSaved] = field(default_factory=list)
    samples: deque[events.TextSampled] = field(default_factory=lambda: deque(maxlen=SAMPLES_KEPT))
    problems: deque[events.RunProblem] = field(default_factory=lambda: deque(maxlen=PROBLEMS_KEPT))
    gauges: deque[events.GaugesRead] = field(default_factory=lambda: deque(maxlen=GAUGES_KEPT))
    """The last hour of the process, whatever its step: a resume drops none."""
    gauge_summary: GaugeSummary = field(default_factory=GaugeSummary)
    """Of all readings of the run, also of those that `gauges` does not keep."""
    recent: deque[events.StepDone] = field(default_factory=lambda: deque(maxlen=WINDOW_STEPS))
    rank_times: deque[events.RanksTimed] = field(default_factory=lambda: deque(maxlen=_RANK_TIMES_KEPT))
    """Of this start."""

    versions: dict[str, str] = field(default_factory=dict)
    baselines: events.BaselinesMeasured | None = None
    data: events.DataPrepared | None = None
    plan: events.PlanMade | None = None
    resident_bytes_before: int | None = None
    """Of the process, before the model: what the plan's memory on a CPU adds to. None on a GPU, or not noted."""
    threads: int | None = None
    """Of torch's kernels on the CPU; None where the journal does not say."""
    progress: events.Progress | None = None
    last_step: events.StepDone | None = None
    finished: events.RunFinished | None = None
    failed: events.RunFailed | None = None
    inference: events.InferenceMeasured | None = None
    """The newest; a run that goes on has a model that was not measured."""
    steps_since_start: int = 0
    readings_since_start: int = 0
    times: StepTimes = field(default_factory=StepTimes)
    """Of this start, without its first two steps."""
    peak_memory_bytes: int = 0
    """The highest of all steps, as `StepDone` counts it; a resume drops none."""
    all_input_tokens: int = 0
    """Tokens that the model read in all steps, including those that were done again."""
    all_step_seconds: float = 0.0
    """Seconds of the same steps."""

    def apply(self, event: events.Event) -> None:
        """Add one event to the state. Kinds that change nothing are ignored."""
        match event:  # the commonest first
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
                # Work that is done is no longer under way, and what comes next may take long without any progress.
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
                    rows, passes = event.rows, event.passes
                    # Padding was planned for other micro-batches.
                    figures = {name: value for name, value in self.plan.figures.items() if name != "padding_share"}
                    self.plan = replace(
                        self.plan,
                        per_device_train_batch_size=rows,
                        gradient_accumulation_steps=passes,
                        figures=figures,
                    )
            case events.RunProblem():  # any other: that one is a problem as well
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
        """One word for the run. It cannot know that a process is gone: `runs/overview.py` does."""
        if self.failed is not None:
            return "failed"
        if self.finished is not None:
            return "stopped" if self.finished.reason == "stopped" else "finished"
        if self.phase == "paused":
            return "paused"
        return "training" if self.steps_since_start or self.phase in _TRAINING_PHASES else "preparing"

    @property
    def has_ended(self) -> bool:
        """Whether its last start has recorded how it ended. Its process may still write the report then."""
        return self.finished is not None or self.failed is not None

    @property
    def stopped_early(self) -> bool:
        """Whether early stopping has ended it, before all planned steps; its status is `finished`."""
        return self.finished is not None and self.finished.reason == "early stopping"

    @property
    def status_words(self) -> str:
        return STOPPED_EARLY if self.stopped_early else self.status

    @property
    def seconds(self) -> float | None:
        """The time of all starts by the wall clock, from the first event of each to its last; None if unknown."""
        known = [seconds for start in self.starts if (seconds := start.seconds) is not None]
        return sum(known) if known else None

    @property
    def losses(self) -> array[float]:
        """The loss of each step in nats per token; NaN where no token counted. It is computed at each call."""
        return array("d", map(self.loss_at, range(len(self.loss_sums))))

    def loss_at(self, index: int) -> float:
        """Return the loss of the step at this place of the columns; NaN if no token counted."""
        tokens = self.token_counts[index]
        return self.loss_sums[index] / tokens if tokens else math.nan

    @property
    def loss(self) -> float | None:
        """The training loss at the end of the run, otherwise `loss_smoothed`, in nats per token."""
        finished = self.finished
        return self.loss_smoothed if finished is None or finished.loss is None else finished.loss

    @property
    def share_done(self) -> float | None:
        """Steps done of all steps, 0 to 1; None while there is no number of steps."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps > 0 else None

    @property
    def tokens_per_second(self) -> float | None:
        """Over the last steps, up to 50. The first two of a start are left out once there are others."""
        return self._per_second(sum(done.input_tokens or done.tokens for done in self.recent))

    @property
    def samples_per_second(self) -> float | None:
        """Over the same steps as `tokens_per_second`."""
        return self._per_second(sum(done.samples for done in self.recent))

    @property
    def padding_share(self) -> Annotated[float | None, PADDING]:
        """The share of computed positions that is padding, without the first two steps of this start.

        None if it is less than a thousandth, as where only the last row of a text is shorter.
        """
        whole = self.times.whole
        share = 1 - whole.input_tokens / whole.positions if whole.positions else 0.0
        return share if share >= 0.001 else None

    @property
    def loss_smoothed(self) -> float | None:
        """The training loss as `training_loss` defines it, in nats per token."""
        return training_loss(self.loss_sums, self.token_counts, len(self.steps))

    @property
    def training_scores(self) -> dict[str, float]:
        """What is measured beside the loss, over the same steps as `tokens_per_second`; {} where nothing is."""
        last = self.recent[-1].sums if self.recent else {}
        totals = {name: sum(done.sums.get(name, 0.0) for done in self.recent) for name in last}
        counts = {name: sum(done.counts.get(name, 0) for done in self.recent) for name in last}
        return {name: total / counts[name] for name, total in totals.items() if counts[name]}

    def _per_second(self, count: int) -> float | None:
        seconds = sum(done.step_seconds for done in self.recent)
        return count / seconds if seconds > 0 else None

    def _start(self, event: events.RunStarted) -> None:
        from_step, device = event.resumed_from_step, event.device
        self.starts.append(
            Start(at=event.at, from_step=from_step, last_at=event.at, last_step=event.step, device=device)
        )
        if event.resumed_from_step is None or not self.started_at:
            self.started_at = event.at
        self.name, self.task, self.device = event.name, event.task, event.device
        self.pid, self.total_steps, self.versions = event.pid, event.total_steps, event.versions
        self.resumed_from_step = event.resumed_from_step
        self._drop_after(-1 if event.resumed_from_step is None else event.resumed_from_step)
        self.step = event.resumed_from_step or 0
        self.phase, self.progress = "preparing", None
        self.finished = self.failed = self.inference = self.resident_bytes_before = None
        self.steps_since_start = self.readings_since_start = 0
        self.times = StepTimes()
        self.recent.clear()
        self.rank_times.clear()
        self.first_steps.clear()

    def _drop_after(self, step: int) -> None:
        length = bisect_right(self.steps, step)
        for column in (*vars(self).values(), *self.step_scores.values()):
            if isinstance(column, array):
                del column[length:]
        self.evals = [done for done in self.evals if done.step <= step]
        self.epochs = [done for done in self.epochs if done.step <= step]
        self.checkpoints = [done for done in self.checkpoints if done.step <= step]
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
        self.peaks.append(event.peak_memory_bytes)
        self.first_steps.setdefault(event.positions, step)
        if event.sums or self.step_scores:
            self._take_scores(event.scores)
        self.last_step = event
        self.peak_memory_bytes = max(self.peak_memory_bytes, event.peak_memory_bytes)
        self.steps_since_start += 1
        if self.steps_since_start == WARM_UP_STEPS + 1:
            self.recent.clear()
        self.recent.append(event)
        if self.steps_since_start > WARM_UP_STEPS:
            self.times.add(event)

    def _take_scores(self, scores: dict[str, float]) -> None:
        for name in scores:
            self.step_scores.setdefault(name, array("d", [math.nan] * (len(self.steps) - 1)))
        for name, column in self.step_scores.items():
            column.append(scores.get(name, math.nan))


def smoothing_window(steps: int) -> int:
    """Return how many of the last steps a smoothed loss is the mean of: a tenth of them, 5 to 50."""
    return min(max(steps // 10, _LEAST_SMOOTHED), WINDOW_STEPS)


def training_loss(loss_sums: Sequence[float], token_counts: Sequence[int], steps: int) -> float | None:
    """Return the training loss after `steps` in nats per token: that of the last tenth of the steps, 5 to 50 of them.

    The sequences end with the last step; more than `WINDOW_STEPS` values are not read. Steps whose loss is not finite
    are skipped. None if there are no others.
    """
    last = smoothing_window(steps)
    window = zip(loss_sums[-last:], token_counts[-last:], strict=True)
    finite = [(loss_sum, tokens) for loss_sum, tokens in window if math.isfinite(loss_sum)]
    tokens = sum(tokens for _, tokens in finite)
    return sum(loss_sum for loss_sum, _ in finite) / tokens if tokens else None


def fold(events: Iterable[events.Event], state: RunState | None = None) -> RunState:
    """Return the state after the events. A given `state` is changed in place and returned."""
    state = RunState() if state is None else state
    for event in events:
        state.apply(event)
    return state


class FollowedJournal:
    """The state of a run whose journal may grow."""

    def __init__(self, folder: RunFolder) -> None:
        self.reader, self.state = JournalReader(folder.journal), RunState(name=folder.name)

    def read_new(self) -> RunState:
        """Fold what was added to the journal since the last call, and return the state."""
        fold(self.reader.stream(), self.state)
        self.state.journal_damage = self.reader.damage
        return self.state


def read_run(folder: RunFolder) -> RunState:
    """Read the journal of a run to its end, and return the state. It is that of no events if there is no journal."""
    return FollowedJournal(folder).read_new()


# Which of several processes the others wait for, and how long.
#
# All end a collective operation at the same time, so the process that spends the least time in it came last: it is the
# slowest, and the others waited for it as long as they spend more.


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowestRank:
    """`lag_seconds` a step, of `step_seconds`, the others wait for it; `communication_seconds` it takes without any
    waiting."""

    rank: int
    lag_seconds: float
    communication_seconds: float
    step_seconds: float

    @property
    def words(self) -> str:
        """`slowest: rank 3, makes each step 14 % longer (12 ms), communication 6 %`."""
        rest = self.step_seconds - self.lag_seconds
        lag_share = self.lag_seconds / rest if rest > 0 else 0.0
        lag = f"makes each step {100 * lag_share:.0f} % longer ({format_seconds(self.lag_seconds)})"
        share = min(self.communication_seconds / self.step_seconds, 1.0) if self.step_seconds > 0 else 0.0
        return f"slowest: rank {self.rank}, {lag}, communication {100 * share:.0f} %"


def slowest_rank(state: RunState) -> SlowestRank | None:
    """Over the last minute or two; None for a run of one process, and before it is known."""
    columns = [event.communication_seconds for event in state.rank_times if len(event.communication_seconds) > 1]
    if not columns or not state.recent:
        return None
    # Of those with as many processes as the last.
    alike = [one for one in columns if len(one) == len(columns[-1])]
    each = [sum(column) / len(alike) for column in zip(*alike, strict=True)]
    rank = min(range(len(each)), key=each.__getitem__)
    others = median(seconds for number, seconds in enumerate(each) if number != rank)
    return SlowestRank(
        rank=rank,
        lag_seconds=others - each[rank],
        communication_seconds=each[rank],
        step_seconds=sum(done.step_seconds for done in state.recent) / len(state.recent),
    )
