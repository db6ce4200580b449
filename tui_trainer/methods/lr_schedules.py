"""The learning rate schedules, one row each, under Hugging Face's names.

A closed form of the step, so a resumed run needs no state of it. The formulas are those of transformers, to the bit;
its own module for them loads peft and the Trainer's parts, which most runs do without.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

# Source: transformers.optimization.get_polynomial_decay_schedule_with_warmup.
POLYNOMIAL_END_RATE = 1e-7

Decay = Callable[[int, int, int, float], float]
"""Step counted from 0, warm-up steps, total steps and peak rate make the share of the peak rate, after the warm-up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSpec:
    """One schedule. Adding one adds a row."""

    label: str
    help: str
    decay: Decay
    warms_up: bool = True
    goes_down: bool = True
    end_rate: float = 0.0
    """What the last rate is; the peak must be above it."""

    def learning_rate(self, peak: float, *, warmup_steps: int, total_steps: int) -> Callable[[int], float]:
        """The learning rate of step 1, 2, ...; as in transformers, a warm-up begins with rate 0."""

        def at(step: int) -> float:
            done = step - 1
            if self.warms_up and done < warmup_steps:
                return peak * (done / warmup_steps)
            return peak * self.decay(done, warmup_steps, total_steps, peak)

        return at


def _stay(_done: int, _warmup: int, _total: int, _peak: float) -> float:
    return 1.0


def _cosine(done: int, warmup: int, total: int, _peak: float) -> float:
    progress = (done - warmup) / max(1, total - warmup)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def _linear(done: int, warmup: int, total: int, _peak: float) -> float:
    return max(0.0, (total - done) / max(1, total - warmup))


def _polynomial(done: int, warmup: int, total: int, peak: float) -> float:
    if done >= total:
        return POLYNOMIAL_END_RATE / peak
    remaining = 1 - (done - warmup) / (total - warmup)
    return ((peak - POLYNOMIAL_END_RATE) * remaining + POLYNOMIAL_END_RATE) / peak


def _inverse_sqrt(done: int, warmup: int, _total: int, _peak: float) -> float:
    timescale = warmup or 10_000
    return 1.0 / math.sqrt((done + timescale - warmup) / timescale)


LR_SCHEDULES: dict[str, ScheduleSpec] = {
    "cosine": ScheduleSpec(label="cosine", help="down to 0 along half a cosine", decay=_cosine),
    "linear": ScheduleSpec(label="linear", help="down to 0 in a straight line", decay=_linear),
    "constant": ScheduleSpec(
        label="constant", help="stays, without a warm-up", decay=_stay, warms_up=False, goes_down=False
    ),
    "constant_with_warmup": ScheduleSpec(
        label="constant after a warm-up", help="stays after the warm-up", decay=_stay, goes_down=False
    ),
    "polynomial": ScheduleSpec(
        label="polynomial",
        help=f"down to {POLYNOMIAL_END_RATE:g} in a straight line",
        decay=_polynomial,
        end_rate=POLYNOMIAL_END_RATE,
    ),
    "inverse_sqrt": ScheduleSpec(
        label="inverse square root",
        help="down with the root of the steps, with no end in view: for runs of any length",
        decay=_inverse_sqrt,
    ),
}
