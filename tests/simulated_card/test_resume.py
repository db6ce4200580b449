"""Runs on a simulated card that go on: resumed, deterministic ones after other runs, and those that start from an
adapter.

Dropout is drawn from the card's own generator, and states of optimizers lie on the card or in paged memory.
"""

from __future__ import annotations

import shutil

import pytest
import torch

from tests.simulated_card import card as cards
from tests.simulated_card.card import Cublas
from tests.simulated_card.cases import DROPOUT, differing, saved_tensors
from tests.simulated_card.kernels import VARLEN_BACKWARD
from tests.simulated_card.liger_stand_in import calls as liger
from tui_trainer.runs.overview import overview

pytestmark = pytest.mark.full


@pytest.fixture
def train(run_on_card):
    """`train(settings, layout, name=..., folder=...)`: the folder of a run of causal_lm that reached its end."""

    def run(settings=None, layout="by lengths", **more):
        _, folder, failure = run_on_card("causal_lm", settings, layout, **more)
        assert not failure, failure
        return folder

    return run


def expect_the_same_bytes_after_a_resume(train, folder):
    """Resume the run after the first of its two steps."""
    whole = saved_tensors(folder, 2)
    shutil.rmtree(folder.checkpoints / "step-2")
    shutil.rmtree(folder.model)
    train(folder=folder)
    assert differing(whole, saved_tensors(folder, 2)) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"tuning.method": "lora", "training.optim": "adafactor", "training.mixed_precision": "fp16"},
        {
            "tuning.method": "full", "training.optim": "adamw_torch", "training.mixed_precision": "fp16",
            "training.loss_chunk_tokens": 8,
        },
        {"tuning.method": "full", "training.optim": "adamw_torch_4bit", "model.kernels": "liger"},
        {"tuning.method": "full", "model.dtype": "bfloat16"},
    ],
    ids=lambda settings: " ".join(map(str, settings.values())),
)  # fmt: skip
def test_a_resumed_run_ends_with_the_same_bytes(settings, train):
    folder = train({**DROPOUT, "training.mixed_precision": "bf16", **settings})
    expect_the_same_bytes_after_a_resume(train, folder)
    assert bool(liger.losses) == ("model.kernels" in settings)


NO_LEARNING = {"training.learning_rate": 1e-12, "training.max_steps": 1}


def test_a_4_bit_run_is_resumed_to_the_same_bytes_and_its_adapter_continues_where_it_ended(train):
    # Without dropout adapters are computed together with their weights (`fused_lora.py`).
    settings = {**DROPOUT, "tuning.method": "qlora", "training.optim": "paged_adamw_8bit", "tuning.lora_dropout": 0}
    first = train({**settings, "training.mixed_precision": "bf16"}, name="first")
    expect_the_same_bytes_after_a_resume(train, first)
    again = train({**settings, "model.model_name_or_path": first.model, **NO_LEARNING}, name="again")
    assert overview(again).eval_loss == pytest.approx(overview(first).eval_loss, abs=1e-5)


def test_a_deterministic_run_resumed_after_other_runs_ends_with_the_same_bytes(run_on_card, train, monkeypatch):
    """cuBLAS reads its workspace once in a process, and has not begun yet in this one."""
    monkeypatch.setattr(cards, "cublas", Cublas())
    strict = {**DROPOUT, "tuning.method": "lora", "training.deterministic": "true", "data.packing": "true"}
    card, alone, failure = run_on_card("causal_lm", strict, name="alone")
    assert not failure, failure
    assert card.computed[VARLEN_BACKWARD], "the attention that has two kernels on this card"
    train({"tuning.method": "full", "training.mixed_precision": "fp16"}, "by mask", name="other")
    with monkeypatch.context() as planted:
        planted.setattr("tui_trainer.losses.next_token.NextTokenLoss.__call__", lambda loss, batch: {}["planted"])
        _, _, failure = run_on_card("causal_lm", {"training.deterministic": "true"}, name="failed")
        assert "planted" in failure
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    expect_the_same_bytes_after_a_resume(train, alone)


def test_adapters_that_begin_as_a_part_of_16_bit_weights_are_continued_as_ordinary_ones(train):
    settings = {"tuning.method": "lora", "tuning.r": 4, "training.weight_decay": 0}
    first = train({**settings, "tuning.init_lora_weights": "pissa"}, name="first")
    converted = {"tuning.r": 8, "tuning.lora_alpha": 64, "model.model_name_or_path": first.model}
    second = train({**settings, **converted, **NO_LEARNING}, name="second")
    assert overview(second).eval_loss == pytest.approx(overview(first).eval_loss, rel=0.01)
