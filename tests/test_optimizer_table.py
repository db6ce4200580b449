"""Names of optimizers and schedules, and the learning rate of each schedule at every step."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest
import torch
from torch import nn
from transformers import get_scheduler

from tui_trainer.config.load import Request
from tui_trainer.errors import ConfigError
from tui_trainer.launching.open_run import load_config
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, DecayType, LrCurve
from tui_trainer.methods.optimizers import OPTIMIZERS

TOTALS = (1, 2, 7, 40)


def test_unknown_name_is_refused_with_the_known_ones():
    for key, table in (("optim", OPTIMIZERS), ("lr_scheduler_type", LR_SCHEDULES)):
        with pytest.raises(ConfigError) as caught:
            load_config(Request(assignments=(f"training.{key}=heavy_ball",)))
        assert all(f'"{name}"' in str(caught.value) for name in table)


def arguments_of(name, curve):
    """Return the name of a schedule in transformers and its arguments there."""
    if name == "cosine" and curve.min_lr_rate:
        return "cosine_with_min_lr", {"min_lr_rate": curve.min_lr_rate}
    if name != "warmup_stable_decay":
        return name, None
    of_curve = {"num_decay_steps": curve.decay_steps, "decay_type": curve.decay_type, "min_lr_ratio": curve.min_lr_rate}
    return name, of_curve


SHAPES = [
    *((name, 0.0, "cosine") for name in LR_SCHEDULES),
    *(("cosine", floor, "cosine") for floor in (0.1, 0.3)),
    *(("warmup_stable_decay", floor, kind) for floor in (0.0, 0.3) for kind in get_args(DecayType)),
]


def test_every_schedule_equals_that_of_transformers_at_every_step(subtests):
    for (name, floor, kind), peak in product(SHAPES, (3e-4, 0.1)):
        with subtests.test(f"{name}, floor {floor}, {kind}, peak {peak}"):
            for total in TOTALS:
                for warmup in {0, 1, total // 3, total - 1}:
                    assert_equals_transformers(name, peak, warmup, total, kind, floor)


def assert_equals_transformers(name: str, peak: float, warmup: int, total: int, kind: DecayType, floor: float) -> None:
    curve = LrCurve(
        peak=peak, warmup_steps=warmup, total_steps=total, decay_steps=max(0, total - warmup + 1) // 2,
        decay_type=kind, min_lr_rate=floor,
    )  # fmt: skip
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=peak)
    theirs, arguments = arguments_of(name, curve)
    known = get_scheduler(theirs, optimizer, warmup, total, scheduler_specific_kwargs=arguments).lr_lambdas[0]
    rate = LR_SCHEDULES[name].learning_rate(curve)
    steps = total + 3 if warmup < total else total  # after a warm-up to the end there is no decay
    assert [rate(step) for step in range(1, steps + 1)] == [peak * known(done) for done in range(steps)]
