"""Fifty steps in every precision that this machine can compute: the losses agree within tolerances."""

from functools import cache

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny_models import tiny_model
from tui_trainer.config.sections import TrainingSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.errors import ConfigError
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.training.clock import Clock
from tui_trainer.training.components import checkpoint_activations
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision, keep_rotary_exact
from tui_trainer.training.step import take_step

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
STEPS, LR = 50, 3e-3
# Largest difference of the loss from fp32, in nats a token: in any step, and in the mean of the last ten.
WORST, LAST_TEN = 0.02, 0.005


def batch_of(step: int) -> MicroBatch:
    """Return rows that can be learnt: each token follows from the one before it."""
    draw = np.random.default_rng([9, step])
    starts = draw.integers(3, 60, size=8)
    rows = [((start + np.arange(33) * (start % 5 + 1)) % 57 + 3).astype(np.int32) for start in starts]
    return micro_batch(collate(rows, 0)).to(DEVICE)


@cache
def losses(precision: str, weights: torch.dtype = torch.float32, checkpointing: bool = False) -> tuple[float, ...]:
    """Return the loss of each of fifty steps, in nats a token."""
    torch.manual_seed(1)
    model = tiny_model("llama").to(DEVICE, weights)
    if checkpointing:
        checkpoint_activations(model)
    model.train()
    mixed_precision, clock = MixedPrecision(precision, DEVICE), Clock(DEVICE)
    optimizer, loss = RunOptimizer(model, TrainingSection(), lr=LR), NextTokenLoss(model)
    reports = [
        take_step(lambda at=step: [batch_of(at)], loss, optimizer, mixed_precision, clock, lr=LR, max_grad_norm=1.0)
        for step in range(STEPS)
    ]
    return tuple(float(report.loss_sum) / report.token_count for report in reports)


@pytest.mark.parametrize(
    ("precision", "weights"),
    [
        pytest.param("bf16", torch.bfloat16, id="bf16 weights with fp32 copies"),
        pytest.param("bf16", torch.float32, id="bf16 products", marks=pytest.mark.full),
        pytest.param("fp16", torch.float32, id="fp16 products with a scaled loss", marks=pytest.mark.full),
    ],
)
def test_sixteen_bits_learn_like_fp32(precision, weights):
    exact, found = np.array(losses("fp32")), np.array(losses(precision, weights))
    print(f"worst {np.abs(found - exact).max():.4f}, last ten {found[-10:].mean() - exact[-10:].mean():+.4f}")
    assert exact[-10:].mean() < 0.6 * exact[0], "fp32 learns"
    assert np.isfinite(found).all()
    assert not np.array_equal(found, exact), "it was not computed in fp32"
    assert np.abs(found - exact).max() < WORST
    assert abs(found[-10:].mean() - exact[-10:].mean()) < LAST_TEN


@pytest.mark.full
def test_gradient_checkpointing_changes_no_bit():
    assert losses("fp32", checkpointing=True) == losses("fp32")


def test_gradient_checkpointing_is_refused_for_a_model_that_does_not_support_it():
    with pytest.raises(ConfigError, match="albert does not support gradient checkpointing") as refused:
        checkpoint_activations(tiny_model("albert"))
    assert refused.value.problems[0].key == "training.gradient_checkpointing"


class PrecisionOfProducts(TorchDispatchMode):
    """Records the precision of fp32 products when cosines of rotary angles are computed, and when matrices are."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
        if (name := str(func).split(".")[1]) in ("cos", "mm"):
            self.found.add((name, torch.get_float32_matmul_precision()))
        return func(*args, **(kwargs or {}))


def test_rotary_angles_are_exact_while_other_products_use_tf32():
    model = tiny_model("llama")
    keep_rotary_exact(model)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        with PrecisionOfProducts() as precision, torch.no_grad():
            model(torch.tensor([[3, 4, 5]]))
        assert precision.found == {("cos", "highest"), ("mm", "high")}
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
