"""How long a run takes, before it starts.

Best first: this very shape was trained on this machine; a similar one was, and its rate is used; else the processor's
matrix products are timed for a moment with numpy, of which training reaches a known share.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

from tui_trainer.planning.calibration import Calibration

# A model of this width trains at half of numpy's rate of large matrix products, a wider one at more. Measured as CPU
# time on one core (AMD EPYC, torch 2.15): a share of 0.46 at width 128, 0.58 at 192, 0.65 at 256, 0.76 at 512; 0.44
# at 192 with dropout, 0.57 at 512 where 128 tokens make a step and the optimiser takes a part of it.
HALF_RATE_WIDTH = 150
# Forward alone is one of three equal parts of a step: the backward pass has two products for each.
EVALUATION_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimiser step, and where the figure comes from."""

    seconds: float
    reason: str


def training_share(hidden_size: int) -> float:
    """Share of numpy's rate of large matrix products that training steps reach: `HALF_RATE_WIDTH` says how measured."""
    return hidden_size / (hidden_size + HALF_RATE_WIDTH)


def step_time(flops: float, hidden_size: int, calibration: Calibration) -> StepTime:
    """Seconds of a step of so many floating-point operations, in a model of this width, on this machine."""
    if calibration.step_seconds is not None:
        return StepTime(seconds=calibration.step_seconds, reason="measured here in an earlier run of this shape")
    if calibration.flops_per_second is not None:
        rate = calibration.flops_per_second
        return StepTime(seconds=flops / rate, reason=f"from a similar run on this machine ({rate / 1e9:.0f} GFLOP/s)")
    rate, share = matrix_flops_per_second(), training_share(hidden_size)
    reason = f"numpy multiplies at {rate / 1e9:.0f} GFLOP/s here, of which this width reaches about {share:.0%}"
    return StepTime(seconds=flops / (rate * share), reason=reason)


@cache
def matrix_flops_per_second(size: int = 512, at_least_seconds: float = 0.05, at_least_times: int = 8) -> float:
    """The rate of fp32 matrix products on all cores: the best of some, as other programs take their share of a core."""
    import numpy as np

    a = np.ones((size, size), dtype=np.float32)
    a @ a
    seconds: list[float] = []
    while sum(seconds) < at_least_seconds or len(seconds) < at_least_times:
        before = time.perf_counter()
        a @ a
        seconds.append(time.perf_counter() - before)
    return 2.0 * size**3 / min(seconds)
