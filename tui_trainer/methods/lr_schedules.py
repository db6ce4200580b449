"""The learning rate schedules, one row each, under Hugging Face's names.

A schedule is a function of the step, so a resumed run needs no state. Results equal those of transformers to the bit.
Its own module is not used, because it loads peft and parts of the Trainer, which most runs do not need.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tui_trainer.units import listed

# Source: transformers.optimization.get_polynomial_decay_schedule_with_warmup.
SCHEDULE_KEY, WARMUP_KEY = "training.lr_scheduler_type", "training.warmup_steps"
POLYNOMIAL_END_RATE = 1e-7

DecayType = Literal["cosine", "linear", "1-sqrt"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LrCurve:
    """Numbers from which a schedule computes learning rates. All steps are optimizer steps."""

    peak: float
    warmup_steps: int
    total_steps: int
    decay_steps: int = 0
    """Number of steps at the end in which warmup_stable_decay lowers the rate."""
    decay_type: DecayType = "cosine"
    min_lr_rate: float = 0.0
    """Last rate of a schedule with a floor, as a share of the peak rate."""

    def above_floor(self, share: float) -> float:
        """Map a share of the peak rate linearly from the range 0 to 1 to the range `min_lr_rate` to 1."""
        return share * (1 - self.min_lr_rate) + self.min_lr_rate


Decay = Callable[[int, LrCurve], float]
"""Function that returns the share of the peak rate after the warm-up, from the step (counted from 0) and the curve."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleSpec:
    """One learning rate schedule."""

    label: str
    help: str
    decay: Decay
    warms_up: bool = True
    warms_up_from_floor: bool = False
    goes_down: bool = True
    has_floor: bool = False
    """Whether the schedule uses `min_lr_rate`."""
    has_decay_steps: bool = False
    """Whether the schedule uses `num_decay_steps` and `decay_type`."""
    end_rate: float = 0.0
    """Learning rate at the end. The peak must be higher."""

    def learning_rate(self, curve: LrCurve) -> Callable[[int], float]:
        """Return a function that returns the rate of a step, counted from 1. A warm-up begins at 0, or at the floor."""

        def rate_of(step: int) -> float:
            steps_done = step - 1
            if self.warms_up and steps_done < curve.warmup_steps:
                share = steps_done / curve.warmup_steps
                return curve.peak * (curve.above_floor(share) if self.warms_up_from_floor else share)
            return curve.peak * self.decay(steps_done, curve)

        return rate_of


def _stay(_steps_done: int, _curve: LrCurve) -> float:
    return 1.0


def _half_cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _cosine(steps_done: int, curve: LrCurve) -> float:
    # Source: transformers.optimization.get_cosine_with_min_lr_schedule_with_warmup, which without a floor is
    # get_cosine_schedule_with_warmup.
    progress = (steps_done - curve.warmup_steps) / max(1, curve.total_steps - curve.warmup_steps)
    return max(0.0, curve.above_floor(_half_cosine(progress)))


def _linear(steps_done: int, curve: LrCurve) -> float:
    return max(0.0, (curve.total_steps - steps_done) / max(1, curve.total_steps - curve.warmup_steps))


def _polynomial(steps_done: int, curve: LrCurve) -> float:
    if steps_done >= curve.total_steps:
        return POLYNOMIAL_END_RATE / curve.peak
    remaining_share = 1 - (steps_done - curve.warmup_steps) / (curve.total_steps - curve.warmup_steps)
    return ((curve.peak - POLYNOMIAL_END_RATE) * remaining_share + POLYNOMIAL_END_RATE) / curve.peak


def _inverse_sqrt(steps_done: int, curve: LrCurve) -> float:
    timescale = curve.warmup_steps or 10_000
    return 1.0 / math.sqrt((steps_done + timescale - curve.warmup_steps) / timescale)


DECAY_TYPES: dict[DecayType, Callable[[float], float]] = {
    "cosine": _half_cosine,
    "linear": lambda progress: 1.0 - progress,
    "1-sqrt": lambda progress: 1.0 - math.sqrt(progress),
}
"""Functions that fall from 1 to 0 as `progress` grows from 0 to 1. Source: `decay_type` of
transformers.optimization.get_wsd_schedule."""


def _warmup_stable_decay(steps_done: int, curve: LrCurve) -> float:
    # Source: transformers.optimization.get_wsd_schedule with a linear warm-up. All steps between warm-up and decay are
    # stable.
    decay_steps_done = steps_done - (curve.total_steps - curve.decay_steps)
    if decay_steps_done < 0:
        return 1.0
    if decay_steps_done >= curve.decay_steps:
        return curve.min_lr_rate
    return max(0.0, curve.above_floor(DECAY_TYPES[curve.decay_type](decay_steps_done / curve.decay_steps)))


LR_SCHEDULES: dict[str, ScheduleSpec] = {
    "cosine": ScheduleSpec(
        label="cosine", help="decays to training.min_lr_rate along half a cosine", decay=_cosine, has_floor=True
    ),
    "linear": ScheduleSpec(label="linear", help="decays linearly to 0", decay=_linear),
    "constant": ScheduleSpec(
        label="constant", help="stays constant, without a warm-up", decay=_stay, warms_up=False, goes_down=False
    ),
    "constant_with_warmup": ScheduleSpec(
        label="constant after a warm-up", help="stays constant after the warm-up", decay=_stay, goes_down=False
    ),
    "polynomial": ScheduleSpec(
        label="polynomial",
        help=f"decays linearly to {POLYNOMIAL_END_RATE:g}",
        decay=_polynomial,
        end_rate=POLYNOMIAL_END_RATE,
    ),
    "inverse_sqrt": ScheduleSpec(
        label="inverse square root",
        help="decays with the inverse square root of the step, independent of the run's length",
        decay=_inverse_sqrt,
    ),
    "warmup_stable_decay": ScheduleSpec(
        label="warm-up, then stable, then decay",
        help="stays constant after the warm-up and decays to training.min_lr_rate in the last training.num_decay_steps",
        decay=_warmup_stable_decay,
        warms_up_from_floor=True,
        has_floor=True,
        has_decay_steps=True,
    ),
}


def schedules_with(trait: str, conjunction: str) -> str:
    """Return the names of the schedules whose field `trait` is true, for example `cosine or warmup_stable_decay`."""
    return listed([name for name, schedule in LR_SCHEDULES.items() if getattr(schedule, trait)], conjunction)
