"""Forty made-up curves of a loss: which diagnosis of learning speaks, and that none does while a loss falls."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

import pytest

from tests.advice.made_up import made_up
from tui_trainer.advice.examine import examine

STEPS, MOMENTS = 400, (25, 50, 100, 200, 400)
# Diagnoses by the curve of the loss alone.
OF_LOSSES = {"learning_rate_high", "loss_flat", "loss_unmoved", "loss_spikes", "not_finite", "begins_high"}
Curve = Callable[[int], float]


def noisy(curve: Curve, noise: float, *, keeps: float = 0.0) -> Curve:
    """The curve times noise of this spread, of which each step keeps a share of that of the step before."""
    random, drift, losses = Random(1), 0.0, []
    for step in range(1, STEPS + 1):
        drift = keeps * drift + math.sqrt(1 - keeps**2) * random.gauss(0, noise)
        losses.append(curve(step) * max(1 + drift, 0.05))
    return lambda step: losses[step - 1]


def falls(first: float, last: float, rate: float = 0.02) -> Curve:
    """From the first loss towards the last one."""
    return lambda step: last + (first - last) * math.exp(-rate * step)


def level(at: float) -> Curve:
    return lambda step: at


def warmed_up(curve: Curve, steps: int) -> Curve:
    """Nothing is learned at first."""
    return lambda step: curve(max(step - steps, 0))


def restarted(curve: Curve, every: int, height: float) -> Curve:
    """A cosine schedule that begins anew: the loss rises for some steps and falls below what it was."""
    return lambda step: curve(step) * (1 + height * math.exp(-(step % every) / 8) * (step >= every))


def diverges(curve: Curve, begin: int, rate: float, most: float = 12.0) -> Curve:
    return lambda step: curve(step) if step < begin else min(curve(begin) + rate * (step - begin), most)


def jumping(times: float, at: Callable[[int], bool]) -> Curve:
    """So many times the loss in some steps."""
    return lambda step: falls(4.6, 1.5)(step) * (times if at(step) else 1)


FALLING: dict[str, Curve] = {
    "fast and smooth": falls(4.6, 1.5),
    "slow and smooth": falls(4.6, 1.5, 0.003),
    "noise of 3 %": noisy(falls(4.6, 1.5), 0.03),
    "noise of 10 %": noisy(falls(4.6, 1.5), 0.1),
    "noise of 25 %": noisy(falls(4.6, 1.5), 0.25),
    "from 7.9 to 6.7, noise of 15 %": noisy(falls(7.9, 6.7, 0.01), 0.15),
    "from 7.9 to 6.7, drifting noise": noisy(falls(7.9, 6.7, 0.01), 0.08, keeps=0.8),
    "a classifier of few rows, noise of 40 %": noisy(falls(0.69, 0.2, 0.01), 0.4),
    "a classifier, noise of 60 %": noisy(falls(1.1, 0.1, 0.01), 0.6),
    "by 1.3 %, little noise": noisy(falls(2.31, 2.28, 0.005), 0.002),
    "by 8 %, noise of 10 %": noisy(falls(2.3, 2.1, 0.02), 0.1),
    "soon at its end": noisy(falls(4.6, 1.5, 0.2), 0.05),
    "towards 0": noisy(falls(3.0, 0.01, 0.03), 0.3),
    "warm-up of 40 steps": noisy(warmed_up(falls(4.6, 1.5), 40), 0.05),
    "warm-up of 90 steps": noisy(warmed_up(falls(10.8, 5.0), 90), 0.01),
    "restarts of 100 steps": noisy(restarted(falls(4.6, 1.5), 100, 0.2), 0.03),
    "restarts of 40 steps": noisy(restarted(falls(4.6, 2.5, 0.01), 40, 0.1), 0.03),
    "two plateaus": noisy(lambda step: falls(4.6, 3.0, 0.05)(step) - (1.4 if step > 200 else 0.0), 0.03),
    "harder rows at the end of each pass": noisy(jumping(1.1, lambda step: step % 50 > 40), 0.03),
    "one spike": noisy(jumping(3, lambda step: step == 150), 0.03),
    "risen in the warm-up, then falling": noisy(
        lambda step: 3.0 * math.exp(-0.004 * step) + 0.3 * math.exp(-(((step - 25) / 10) ** 2)), 0.03
    ),
}  # fmt: skip
OTHERS: dict[str, tuple[Curve, set[str], int]] = {
    "flat": (level(4.6), {"loss_unmoved", "loss_flat"}, 100),
    "flat, noise of 1 %": (noisy(level(4.6), 0.01), {"loss_flat"}, 100),
    "flat, noise of 5 %": (noisy(level(2.3), 0.05), {"loss_flat"}, 200),
    "flat, noise of 10 %": (noisy(level(0.69), 0.1), {"loss_flat"}, 400),
    "rising from the first step": (noisy(lambda step: 4.6 + step / 100, 0.03), {"learning_rate_high"}, 100),
    "rising to a plateau": (noisy(lambda step: 9 - 4.4 * math.exp(-step / 20), 0.02), {"learning_rate_high"}, 50),
    "rising by a fifth": (noisy(lambda step: 2.0 + 0.4 * min(step / 200, 1), 0.05), {"learning_rate_high"}, 400),
    "diverging at step 60": (noisy(diverges(falls(4.6, 1.5), 60, 0.05), 0.03), {"learning_rate_high"}, 200),
    "diverging at step 300": (noisy(diverges(falls(4.6, 1.5), 300, 0.1), 0.03), {"learning_rate_high"}, 400),
    "diverging, noise of 20 %": (noisy(diverges(falls(4.6, 1.5), 100, 0.05), 0.2), {"learning_rate_high"}, 200),
    "diverging at once": (noisy(diverges(falls(4.6, 4.0), 5, 2.0), 0.03), {"learning_rate_high"}, 25),
    "half lost again": (noisy(diverges(falls(4.6, 1.0), 200, 0.02, 3.5), 0.05), {"learning_rate_high"}, 400),
    "a classifier that loses all": (
        noisy(diverges(falls(0.69, 0.1), 150, 0.01, 0.69), 0.2), {"learning_rate_high"}, 400
    ),
    "not finite": (lambda step: math.nan if step >= 90 else falls(4.6, 1.5)(step), {"not_finite"}, 100),
    "not finite after rising": (
        lambda step: math.inf if step > 80 else 4.6 + step / 20, {"not_finite", "learning_rate_high"}, 100
    ),
    "spikes": (noisy(jumping(2.5, lambda step: step % 37 == 5), 0.03), {"loss_spikes"}, 200),
    "spikes early": (noisy(jumping(2, lambda step: step in (20, 31, 44, 58)), 0.03), {"loss_spikes"}, 100),
    "spikes, noise of 15 %": (noisy(jumping(4, lambda step: step % 50 == 7), 0.15), {"loss_spikes"}, 200),
    "spikes of a classifier": (
        noisy(lambda step: falls(0.69, 0.2)(step) + 2.0 * (step % 60 == 9), 0.1), {"loss_spikes"}, 200
    ),
}  # fmt: skip


def spoken(curve: Curve, steps: int) -> set[str]:
    """The faults that are found after so many steps of a run of all."""
    state = made_up(steps=steps, loss=curve, is_over=False, eval_loss=falls(4.6, 1.5), plan={"total_steps": STEPS})
    return {one.name for one in examine(state).findings if one.cause.is_fault} & OF_LOSSES


def test_no_diagnosis_of_learning_speaks_while_a_loss_falls(subtests: pytest.Subtests) -> None:
    for name, curve in FALLING.items():
        with subtests.test(name):
            assert {steps: found for steps in MOMENTS if (found := spoken(curve, steps))} == {}


def test_each_curve_that_does_not_fall_has_its_diagnosis(subtests: pytest.Subtests) -> None:
    for name, (curve, expected, at) in OTHERS.items():
        with subtests.test(name):
            assert expected <= spoken(curve, at)
            wrong = {steps: found - expected for steps in MOMENTS if (found := spoken(curve, steps)) - expected}
            assert wrong == {}
