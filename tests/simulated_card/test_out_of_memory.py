"""Memory that runs out on a simulated card: the same batch again, with its generator and the loss scale of before."""

from __future__ import annotations

import gc

import pytest
import torch

from tests.simulated_card.cases import DROPOUT, SETTINGS, differing, of_kind, saved_tensors
from tests.simulated_card.waits import unexpected_waits
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.runs.events import MicroBatchReduced

MICRO = "training.per_device_train_batch_size"


@pytest.fixture
def too_large(monkeypatch):
    """The first pass of more than 2 rows fails, once its backward pass has begun."""
    plain, failed = NextTokenLoss.__call__, []

    def fails(gradient):
        failed.append(1)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def loss(self, batch):
        total = plain(self, batch)
        if torch.is_grad_enabled() and batch.sample_count > 2 and not failed:
            total = total * 1
            total.register_hook(fails)
        return total

    monkeypatch.setattr(NextTokenLoss, "__call__", loss)
    return failed


@pytest.mark.full
@pytest.mark.parametrize(
    "changes",
    [
        {"tuning.method": "qlora", "training.mixed_precision": "fp16"},
        {"tuning.method": "full", "training.mixed_precision": "bf16", "model.dtype": "bfloat16"},
    ],
    ids=["qlora", "masters"],
)
def test_a_batch_that_ran_out_of_memory_is_repeated_in_smaller_passes(run_on_card, too_large, changes):
    settings = {**DROPOUT, **changes}
    assert SETTINGS["dataloader.num_workers"], "batches are made ahead and pinned"
    _, small, failure = run_on_card("causal_lm", {**settings, MICRO: 2}, name="small")
    assert not failure and not too_large, failure
    card, folder, failure = run_on_card("causal_lm", {**settings, MICRO: 4}, name="failing")
    assert not failure and too_large, failure
    [event] = of_kind(folder, MicroBatchReduced)
    assert (event.step, event.rows_before, event.rows) == (1, 4, 2) and event.free_memory_bytes
    assert differing(saved_tensors(small, 2), saved_tensors(folder, 2)) == []
    # The step that failed asks for the scale of its loss, and no other step waits.
    waits = [(wait.phase, wait.function) for wait in unexpected_waits(card)]
    assert set(waits) <= {("micro-batches", "training/precision.py discard_step")}
    gc.collect()
    assert card.allocated_bytes == 0
