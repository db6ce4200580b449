"""The figures of a run for the rules: seconds per step, shares of the time, means of the newest readings.

They are computed from a RunState. For an active run they cover the last few hundred steps and two minutes of readings.
For a run that has ended they cover everything since its last start."""

import math
from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import cached_property
from itertools import islice, pairwise
from statistics import fmean, linear_regression, median, median_high

from tui_trainer.runs.events import CheckpointSaved, EvalDone, GaugesRead
from tui_trainer.runs.state import GAUGES_EVERY_SECONDS, WARM_UP_STEPS, RunState, means

_RECENT_READINGS = int(120 / GAUGES_EVERY_SECONDS)
# A curve of a few means of some steps each shows a trend in spite of noise.
_LOSS_BLOCKS = 20
_LEAST_BLOCK = 5
# With fewer steps, or with sizes that differ by less, fixed and growing costs cannot be separated.
_LEAST_FITTED_STEPS = 20
_LEAST_SPREAD = 1.2
# The intercept of a line is right within two standard errors.
_STANDARD_ERRORS = 2.0


class RunView:
    """Figures of a run for the rules. Expensive figures are computed when they are first read.

    Figures named `..._seconds` are means per step. `step_seconds` is the time of the step itself and includes
    `data_seconds`, `compute_seconds` (forward and backward passes) and `optimizer_seconds`. The others are for work
    between steps."""

    def __init__(self, state: RunState) -> None:
        self.state, self.plan, times = state, state.plan, state.times
        self.on_gpu = state.device.startswith("cuda")
        self.is_over = state.finished is not None or state.failed is not None
        self.first_step = state.resumed_from_step or 0
        """Step after which the run's last start began."""
        self.sums = sums = times.sums_since_start if self.is_over else times.recent_sums
        steps = max(sums.steps, 1)
        self.data_seconds = sums.data_seconds / steps
        self.compute_seconds = (sums.forward_seconds + sums.backward_seconds) / steps
        self.optimizer_seconds = sums.optimizer_seconds / steps
        self.step_seconds = sums.step_seconds / steps
        self.evaluation_seconds = self._seconds_per_step(event for event in state.evals if event.scheduled)
        self.checkpoint_seconds = self._seconds_per_step(state.checkpoints)
        interval, samples = self.plan.sample_every_steps if self.plan else None, state.samples
        self.sample_seconds = fmean(it.seconds for it in samples) / interval if samples and interval else 0.0
        steps_between = max(times.between_steps, 1)
        self.journal_seconds = times.journal_seconds / steps_between
        self.empty_cache_seconds = times.empty_cache_seconds / steps_between
        # Unexplained time between steps. It does not count on a GPU, which may be computing meanwhile.
        self.other_seconds = 0.0 if self.on_gpu else times.other_seconds / steps_between
        event_seconds = self.evaluation_seconds + self.checkpoint_seconds + self.sample_seconds
        overhead_seconds = self.journal_seconds + self.empty_cache_seconds + self.other_seconds
        self.whole_seconds = self.step_seconds + event_seconds + overhead_seconds
        """Time of a step, including its part of all work between steps."""

    def _seconds_per_step(self, events: Iterable[EvalDone | CheckpointSaved]) -> float:
        """Return the mean seconds per step of events that interrupt training; an event at the end of it does not."""
        finished = self.state.finished
        last_step = min(self.state.total_steps or self.state.step + 1, finished.step if finished else math.inf)
        interruptions = [event for event in events if self.first_step < event.step < last_step]
        steps = interruptions[-1].step - self.first_step if interruptions else 1
        return sum(event.seconds for event in interruptions) / steps

    def is_by_default(self, *keys: str) -> bool:
        """Return whether the user wrote none of these settings; False if the journal does not record that."""
        user_settings = self.plan.user_settings if self.plan else None
        return user_settings is not None and not set(keys) & set(user_settings)

    def share_of_time(self, seconds: float) -> float:
        return seconds / self.whole_seconds if self.whole_seconds > 0 else 0.0

    def seconds_of_step_words(self, seconds: float) -> str:
        """Return seconds per step in relation to a whole step, as text: `0.42 of 1.69 s/step`, `420 of 690 ms/step`."""
        whole_seconds = self.whole_seconds
        if whole_seconds >= 1:
            return f"{seconds:.2f} of {whole_seconds:.2f} s/step"
        digits = 0 if whole_seconds >= 0.1 else 1 if whole_seconds >= 0.01 else 2
        return f"{1000 * seconds:.{digits}f} of {1000 * whole_seconds:.{digits}f} ms/step"

    def affordable_interval_steps(self, event_seconds: float, now_seconds: float) -> int:
        """Return an interval in steps at which events of `event_seconds` take a twentieth of the time. They now take
        `now_seconds` per step. The interval is rounded to two digits, and at most the length of the run."""
        step_seconds = self.whole_seconds - now_seconds
        steps = max(1, math.ceil(19 * event_seconds / step_seconds)) if step_seconds > 0 else 1
        rounding_unit = int(10 ** max(len(str(steps)) - 2, 0))
        return min(-(-steps // rounding_unit) * rounding_unit, self.state.total_steps or steps)

    @cached_property
    def readings(self) -> list[GaugesRead]:
        """Readings during the training of the last start: the newest two minutes, or all once the run has ended."""
        return self.all_readings if self.is_over else self.all_readings[-_RECENT_READINGS:]

    @cached_property
    def all_readings(self) -> list[GaugesRead]:
        """Readings during the training of the last start, at most an hour of them."""
        newest_first = islice(reversed(self.state.gauges), self.state.readings_since_start)
        readings = [reading for reading in newest_first if reading.step > self.first_step + WARM_UP_STEPS][::-1]
        # The first reading also covers time before the first step.
        return readings[1:] if len(readings) > 2 else readings

    @cached_property
    def seconds_between_readings(self) -> float | None:
        """Median seconds between two readings by the wall clock. A jump of the clock hardly affects a median."""
        times = [datetime.fromisoformat(reading.at) for reading in self.readings if reading.at]
        gaps = [(after - before).total_seconds() for before, after in pairwise(times)]
        return middle if gaps and (middle := median_high(gaps)) > 0 else None

    def mean(self, name: str) -> float | None:
        """Return the mean of a field of `GaugesRead` over the readings that report it; None if none does."""
        return _mean(getattr(reading, name) for reading in self.readings)

    def gpu_mean(self, name: str) -> float | None:
        """Return the mean of a field of `GpuReading` over all GPUs of all readings; None if none reports it."""
        return _mean(getattr(gpu, name) for reading in self.readings for gpu in reading.gpus)

    @cached_property
    def fixed_compute_seconds(self) -> float | None:
        """Seconds of a step's passes that do not depend on the number of positions: the intercept of a line through the
        last steps, less its error. None if all passes have about the same size."""
        first_step = self.first_step + WARM_UP_STEPS
        steps = [step for step in self.state.recent_sums if step.positions and step.step > first_step]
        xs = [step.positions for step in steps]
        if len(xs) < _LEAST_FITTED_STEPS or max(xs) < _LEAST_SPREAD * min(xs):
            return None
        ys = [step.forward_seconds + step.backward_seconds for step in steps]
        slope, intercept = linear_regression(xs, ys)
        middle = fmean(xs)
        residual = sum((y - intercept - slope * x) ** 2 for x, y in zip(xs, ys, strict=True)) / (len(xs) - 2)
        error = math.sqrt(residual * (1 / len(xs) + middle**2 / sum((x - middle) ** 2 for x in xs)))
        return min(max(intercept - _STANDARD_ERRORS * error, 0.0), fmean(ys))

    @property
    def others_cpu_share(self) -> float | None:
        """Share of the usable cores that other processes use; None if it was not measured."""
        machine_share, run_share = self.mean("machine_cpu_share"), self.mean("process_cpu_share")
        return None if machine_share is None or run_share is None else max(machine_share - run_share, 0.0)

    @cached_property
    def loss_error(self) -> float:
        """Standard error of one value of `losses`, in nats.

        This is the larger of two estimates, which a slope of the curve hardly changes. One comes from the differences
        between neighbouring steps, whose mean is 2 s / sqrt(pi) for normal noise of spread s. The other comes from the
        distances of a mean loss to the line between its neighbours: twice the distance has the median 1.65 s."""
        losses = [loss for loss in self.step_losses if math.isfinite(loss)]
        means = [loss for _, loss in self.losses]
        if len(means) < 3 or len(losses) < 2:
            return math.inf
        step_error = fmean(abs(after - before) for before, after in pairwise(losses)) * math.sqrt(math.pi) / 2
        distances = [abs(a - 2 * b + c) for a, b, c in zip(means, means[1:], means[2:], strict=False)]
        section_error = median(distances) / 1.65
        return max(step_error / math.sqrt(len(losses) / len(means)), section_error)

    @cached_property
    def step_losses(self) -> Sequence[float]:
        """Loss of each step in nats per token. Cached, because the state computes it again at each call."""
        return self.state.losses

    @cached_property
    def losses(self) -> list[tuple[float, float]]:
        """(last step, mean loss) of up to 20 sections of equal length, each of at least 5 steps."""
        section_count = min(_LOSS_BLOCKS, len(self.state.steps) // _LEAST_BLOCK)
        return means(self.state.steps, self.step_losses, section_count)


def _mean(values: Iterable[float | None]) -> float | None:
    known_values = [value for value in values if value is not None and math.isfinite(value)]
    return fmean(known_values) if known_values else None
