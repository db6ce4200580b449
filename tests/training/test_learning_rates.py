"""At `learning_rate = "auto"` every optimizer lowers the loss about as far as AdamW. Schedules are resumed exactly."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tests.combinations import first_by_default
from tests.tiny_models import tiny_model
from tests.training.finished_runs import assert_resumes_to_the_bit, of_kind
from tui_trainer.config.load import Request
from tui_trainer.config.sections import TuningSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.launching.open_run import load_config
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, LrCurve
from tui_trainer.planning.batch_cut import effective_rows
from tui_trainer.planning.learning_rates import learning_rate
from tui_trainer.runs.events import StepDone
from tui_trainer.training.clock import Clock
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.step import take_step
from tui_trainer.tuning import find_method

CPU = torch.device("cpu")
STEPS = 20
START = {
    "full": ("tuning.method=full",),
    "lora": ("tuning.method=lora",),
    "scratch": ("tuning.method=full", "model.init=scratch"),
}


def loaded_with(optim, start):
    return load_config(Request(profile="finetune", assignments=(f"training.optim={optim}", *START[start])))


def fall_of_the_loss(optim, start, batch):
    """Return by how many nats a token the loss on one batch falls, with warm-up and decay as in a run."""
    loaded = loaded_with(optim, start)
    model = tiny_model("llama")
    parameters = sum(weights.numel() for weights in model.parameters())
    training, lr = loaded.config.training, learning_rate(loaded, parameters, effective_rows(loaded)).value
    if start == "lora":
        model = find_method("lora").apply(model, TuningSection(method="lora", r=8), seed=5, autocast=False)
    optimizer, loss = RunOptimizer(model, training, lr=lr), NextTokenLoss(model)
    rate = LR_SCHEDULES[training.lr_scheduler_type].learning_rate(LrCurve(peak=lr, warmup_steps=2, total_steps=STEPS))
    losses = []
    for step in range(1, STEPS + 1):
        report = take_step(
            lambda: [batch], loss, optimizer, MixedPrecision("fp32", CPU), Clock(CPU), lr=rate(step), max_grad_norm=1.0
        )
        losses.append(float(report.loss_sum) / report.token_count)
    return losses[0] - losses[-1]


@pytest.mark.parametrize("start", first_by_default(START))
def test_other_optimizers_lower_the_loss_about_as_far_as_adamw(start):
    draw = np.random.default_rng(4)
    batch = micro_batch(collate([draw.integers(3, 380, size=17, dtype=np.int32) for _ in range(6)], 0))
    reference = fall_of_the_loss("adamw_torch_fused", start, batch)
    assert reference > 0.002
    for optim in ("adafactor", "sgd"):
        assert fall_of_the_loss(optim, start, batch) > 0.5 * reference, optim


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        # Of 8 steps, 2 of warm-up; step 6 is the fourth before the end.
        ("warmup_stable_decay", [0.25, 0.625, 1, 1, 1, 0.8125, 0.625, 0.4375]),
        pytest.param(
            "cosine",
            [0, 0.5, *(0.25 + 0.375 * (1 + math.cos(math.pi * done / 6)) for done in range(6))],
            marks=pytest.mark.full,
        ),
    ],
)
def test_a_run_stopped_during_its_decay_is_resumed_to_the_bit(schedule, rates, tiny_run):
    changes = {
        "training.lr_scheduler_type": schedule, "training.min_lr_rate": 0.25, "training.learning_rate": 0.01,
        "training.max_steps": 8, "training.warmup_steps": 2, "logging.logging_steps": 1,
        "model.scratch.attention_dropout": 0.2,
    }  # fmt: skip
    if schedule != "cosine":
        changes |= {"training.num_decay_steps": 4, "training.decay_type": "linear"}
    whole, parted = assert_resumes_to_the_bit(tiny_run, changes)
    for folder in (whole, parted):
        assert [event.lr for event in of_kind(folder, StepDone)] == pytest.approx([0.01 * share for share in rates])


def test_the_reason_of_a_rate_names_the_optimizer(subtests):
    for start in START:
        for optim, word in (("adafactor", "Adafactor uses AdamW's rates"), ("sgd", "an SGD step")):
            planned = learning_rate(loaded_with(optim, start), 10**8, rows=8)
            with subtests.test(f"{optim} {start}"):
                assert planned.exact and word in planned.reason
    written = load_config(Request(assignments=("training.optim=sgd", "training.learning_rate=0.25")))
    assert learning_rate(written, 10**8, rows=8).value == 0.25
