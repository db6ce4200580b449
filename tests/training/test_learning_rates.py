"""At `learning_rate = "auto"` every optimizer lowers the loss about as far as AdamW does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.combinations import first_by_default
from tests.tiny_models import tiny_model
from tui_trainer.config.load import Request
from tui_trainer.config.sections import TuningSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.launching.start import load_config
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.methods.lr_schedules import LR_SCHEDULES
from tui_trainer.planning.learning_rates import learning_rate
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


@pytest.fixture(scope="module")
def batch():
    draw = np.random.default_rng(4)
    return micro_batch(collate([draw.integers(3, 380, size=17, dtype=np.int32) for _ in range(6)], 0))


def loaded_with(optim, start):
    return load_config(Request(profile="finetune", assignments=(f"training.optim={optim}", *START[start])))


def fall(optim, start, batch):
    """Nats a token by which the loss on one batch falls, with warm-up and decay as in a run."""
    loaded = loaded_with(optim, start)
    training, lr = loaded.config.training, learning_rate(loaded).value
    model = tiny_model("llama")
    if start == "lora":
        model = find_method("lora").apply(model, TuningSection(method="lora", r=8), seed=5, autocast=False)
    optimizer, loss = RunOptimizer(model, training, lr=lr), NextTokenLoss(model)
    rate = LR_SCHEDULES[training.lr_scheduler_type].learning_rate(lr, warmup_steps=2, total_steps=STEPS)
    losses = []
    for step in range(1, STEPS + 1):
        report = take_step(
            lambda: [batch], loss, optimizer, MixedPrecision("fp32", CPU), Clock(CPU), lr=rate(step), max_grad_norm=1.0
        )
        losses.append(float(report.loss_sum) / report.tokens)
    return losses[0] - losses[-1]


@pytest.mark.parametrize("start", first_by_default(START))
def test_other_optimizers_lower_the_loss_about_as_far_as_adamw(start, batch):
    reference = fall("adamw_torch_fused", start, batch)
    assert reference > 0.002
    for optim in ("adafactor", "sgd"):
        assert fall(optim, start, batch) > 0.5 * reference, optim


@pytest.mark.parametrize("start", START)
def test_the_reason_of_a_rate_names_what_it_is_for(start):
    for optim, word in (("adafactor", "Adafactor takes AdamW's rates"), ("sgd", "SGD's steps")):
        planned = learning_rate(loaded_with(optim, start))
        assert planned.exact and word in planned.reason
    written = load_config(Request(assignments=("training.optim=sgd", "training.learning_rate=0.25")))
    assert learning_rate(written).value == 0.25
