"""A run as the diagnoses look at it: seconds per step, shares of the time, means of the newest readings.

Made from a RunState, which added everything up while the journal was read. While the run lives, the last few hundred
steps and two minutes of readings count; afterwards all of its last start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cached_property
from itertools import islice, pairwise

from tui_trainer.runs.events import GaugesRead, GpuReading, PlanMade
from tui_trainer.runs.state import WARM_UP_STEPS, RunState
from tui_trainer.runs.step_times import StepSums

_RECENT_READINGS = 24
_LOSS_BLOCKS = 20
_LEAST_BLOCK = 5


class RunView:
    """Cheap to make; what is asked for is computed once."""

    def __init__(self, state: RunState) -> None:
        self.state = state

    @property
    def plan(self) -> PlanMade | None:
        return self.state.plan

    @property
    def on_gpu(self) -> bool:
        return self.state.device.startswith("cuda")

    @property
    def is_over(self) -> bool:
        return self.state.finished is not None or self.state.failed is not None

    @cached_property
    def first_step(self) -> int:
        """After which step this start began."""
        return self.state.resumed_from_step or 0

    # --------------------------------------------------------------- where the time goes, in seconds for each step

    @cached_property
    def sums(self) -> StepSums:
        times = self.state.times
        return times.whole if self.is_over else times.recent

    def _each(self, seconds: float) -> float:
        return seconds / self.sums.steps if self.sums.steps else 0.0

    @cached_property
    def data_seconds(self) -> float:
        return self._each(self.sums.data_seconds)

    @cached_property
    def compute_seconds(self) -> float:
        """Forward and backward."""
        return self._each(self.sums.forward_seconds + self.sums.backward_seconds)

    @cached_property
    def optimizer_seconds(self) -> float:
        return self._each(self.sums.optimizer_seconds)

    @cached_property
    def step_seconds(self) -> float:
        """The step itself, without what happens between steps."""
        return self._each(self.sums.step_seconds)

    @cached_property
    def evaluation_seconds(self) -> float:
        return self._on_the_way((done.step, done.seconds) for done in self.state.evals if done.scheduled)

    @cached_property
    def checkpoint_seconds(self) -> float:
        return self._on_the_way((done.step, done.seconds) for done in self.state.checkpoints)

    @cached_property
    def sample_seconds(self) -> float:
        samples, plan = self.state.samples, self.plan
        if not samples or plan is None or not plan.sample_every_steps:
            return 0.0
        return sum(sample.seconds for sample in samples) / len(samples) / plan.sample_every_steps

    def _on_the_way(self, costs: Iterable[tuple[int, float]]) -> float:
        """Of each step, until the last of them; what happens at the end happens anyway, and is no interruption."""
        finished = self.state.finished
        last = min(self.state.total_steps or self.state.step + 1, finished.step if finished else math.inf)
        found = [(step, seconds) for step, seconds in costs if self.first_step < step < last]
        return sum(seconds for _, seconds in found) / (found[-1][0] - self.first_step) if found else 0.0

    def _between(self, seconds: float) -> float:
        steps = self.state.times.between_steps
        return seconds / steps if steps else 0.0

    @cached_property
    def journal_seconds(self) -> float:
        return self._between(self.state.times.journal_seconds)

    @cached_property
    def empty_cache_seconds(self) -> float:
        return self._between(self.state.times.empty_cache_seconds)

    @cached_property
    def other_seconds(self) -> float:
        """Between steps, that nothing accounts for. On a GPU the device may be computing meanwhile: not counted."""
        return 0.0 if self.on_gpu else self._between(self.state.times.other_seconds)

    @cached_property
    def whole_seconds(self) -> float:
        """A step and its part of all that happens between steps."""
        between = self.evaluation_seconds + self.checkpoint_seconds + self.sample_seconds
        return self.step_seconds + between + self.journal_seconds + self.empty_cache_seconds + self.other_seconds

    def share(self, seconds: float) -> float:
        """Of a whole step."""
        return seconds / self.whole_seconds if self.whole_seconds > 0 else 0.0

    def of_whole(self, seconds: float) -> str:
        """`0.42 of 1.69 s a step`, `420 of 690 ms a step`."""
        whole = self.whole_seconds
        if whole >= 1:
            return f"{seconds:.2f} of {whole:.2f} s a step"
        digits = 0 if whole >= 0.1 else 1 if whole >= 0.01 else 2
        return f"{1000 * seconds:.{digits}f} of {1000 * whole:.{digits}f} ms a step"

    # --------------------------------------------------------------------------------- what the run and others use

    @cached_property
    def readings(self) -> list[GaugesRead]:
        """Of this start and while it trained; the newest two minutes, or all once it is over."""
        return self.all_readings if self.is_over else self.all_readings[-_RECENT_READINGS:]

    @cached_property
    def all_readings(self) -> list[GaugesRead]:
        """The same from the beginning of this start, up to the last hour."""
        newest = islice(reversed(self.state.gauges), self.state.readings_since_start)
        training = [reading for reading in newest if reading.step > self.first_step + WARM_UP_STEPS][::-1]
        # The first one counts from before the first step.
        return training[1:] if len(training) > 2 else training

    @cached_property
    def seconds_between_readings(self) -> float | None:
        """The median, by the wall clock: one that jumps spoils few of them."""
        times = [datetime.fromisoformat(reading.at) for reading in self.readings if reading.at]
        gaps = sorted((after - before).total_seconds() for before, after in pairwise(times))
        return gaps[len(gaps) // 2] if gaps and gaps[len(gaps) // 2] > 0 else None

    def mean(self, value: Callable[[GaugesRead], float | None]) -> float | None:
        """Over the readings that report it."""
        known = [found for reading in self.readings if (found := value(reading)) is not None and math.isfinite(found)]
        return sum(known) / len(known) if known else None

    def gpu_mean(self, value: Callable[[GpuReading], float | None]) -> float | None:
        """Over all cards of the readings that report it."""
        known = [
            found
            for reading in self.readings
            for gpu in reading.gpus
            if (found := value(gpu)) is not None and math.isfinite(found)
        ]
        return sum(known) / len(known) if known else None

    @cached_property
    def usable_cores(self) -> float | None:
        return self.mean(lambda reading: reading.usable_cores)

    @cached_property
    def own_cpu_share(self) -> float | None:
        return self.mean(lambda reading: reading.process_cpu_share)

    @cached_property
    def others_cpu_share(self) -> float | None:
        """Of the usable cores, by other processes."""
        machine, own = self.mean(lambda reading: reading.machine_cpu_share), self.own_cpu_share
        return None if machine is None or own is None else max(machine - own, 0.0)

    @cached_property
    def core_wait_share(self) -> float | None:
        return self.mean(lambda reading: reading.core_wait_share)

    @cached_property
    def gpu_busy_share(self) -> float | None:
        return self.gpu_mean(lambda gpu: gpu.utilization_share)

    # ------------------------------------------------------------------------------------------------- what it learns

    @cached_property
    def losses(self) -> list[tuple[int, float]]:
        """(last step, mean loss) of up to 20 equally long stretches of the run, 5 steps or more each."""
        state, count = self.state, len(self.state.steps)
        blocks = min(_LOSS_BLOCKS, count // _LEAST_BLOCK)
        found = []
        for block in range(blocks):
            start, end = block * count // blocks, (block + 1) * count // blocks
            finite = [loss for loss in state.losses[start:end] if math.isfinite(loss)]
            if finite:
                found.append((state.steps[end - 1], sum(finite) / len(finite)))
        return found
