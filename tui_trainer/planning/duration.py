"""How long a run takes, before it starts.

Best first: this very shape was trained on this machine; some shape was, and its rate is used; else the processor's
matrix products are timed for a moment with numpy, of which training reaches a known share.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

from tui_trainer.planning.calibration import Calibration

# Share of numpy's rate of large matrix products that training steps reach (measured by tests/benchmarks/estimates.py).
TRAINING_SHARE = 0.35
# Forward alone is one of three equal parts of a step: the backward pass has two products for each.
EVALUATION_SHARE = 1 / 3


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTime:
    """Seconds of one optimiser step, and where the figure comes from."""

    seconds: float
    reason: str


def step_time(flops: float, calibration: Calibration) -> StepTime:
    """Seconds of a step of so many floating-point operations on this machine."""
    if calibration.step_seconds is not None:
        return StepTime(seconds=calibration.step_seconds, reason="measured here in an earlier run of this shape")
    if calibration.flops_per_second is not None:
        rate = calibration.flops_per_second
        return StepTime(seconds=flops / rate, reason=f"from the last run on this machine ({rate / 1e9:.0f} GFLOP/s)")
    rate = matrix_flops_per_second()
    reason = f"numpy multiplies at {rate / 1e9:.0f} GFLOP/s here, of which training reaches about {TRAINING_SHARE:.0%}"
    return StepTime(seconds=flops / (rate * TRAINING_SHARE), reason=reason)


@cache
def matrix_flops_per_second(size: int = 512, at_least_seconds: float = 0.05) -> float:
    """The rate of fp32 matrix products on all cores, timed for a moment."""
    import numpy as np

    a = np.ones((size, size), dtype=np.float32)
    a @ a
    best, started = float("inf"), time.perf_counter()
    while time.perf_counter() - started < at_least_seconds:
        before = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - before)
    return 2.0 * size**3 / best
