"""A deterministic run on a simulated card: alone, after other runs of the process, and taken up again after those.

What is refused here, a card would compute each time a little differently, or refuse as well.
"""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn.attention import varlen

from tests.simulated_card import card as cards
from tests.simulated_card.card import Cublas
from tests.simulated_card.kernels import VARLEN_BACKWARD
from tests.simulated_card.test_resume import DROPOUT, differing, weights_of
from tui_trainer.hardware import environment
from tui_trainer.losses.next_token import NextTokenLoss

STRICT = {**DROPOUT, "tuning.method": "lora", "training.deterministic": "true", "data.packing": "true"}
# What a process may have seen before: other precisions, methods, attention, a run that failed.
OTHERS = (
    ("causal_lm", {"tuning.method": "full", "training.mixed_precision": "fp16"}, "by mask"),
    ("sequence_classification", {"tuning.method": "lora", "training.optim": "adafactor"}, "padded"),
    ("causal_lm", {"tuning.method": "qlora", "data.packing": "false"}, "padded"),
)
_loss = NextTokenLoss.__call__


@pytest.fixture(autouse=True)
def new_process(monkeypatch):
    """cuBLAS has not begun yet."""
    monkeypatch.setattr(cards, "cublas", Cublas())


def run_others(run_on_card, monkeypatch):
    for number, (task, settings, layout) in enumerate(OTHERS):
        _, _, failure = run_on_card(task, settings, layout, name=f"other-{number}")
        assert not failure, failure
    with monkeypatch.context() as planted:
        planted.setattr(NextTokenLoss, "__call__", lambda loss, batch: _loss(loss, batch) / 0 + {}["planted"])
        _, _, failure = run_on_card("causal_lm", {"training.deterministic": "true"}, name="failed")
        assert "planted" in failure


def test_a_deterministic_run_after_others_ends_with_the_bytes_of_one_alone(run_on_card, monkeypatch):
    """One that begins after them, and one that is taken up again after them."""
    card, alone, failure = run_on_card("causal_lm", STRICT, name="alone")
    assert not failure, failure
    assert card.computed[VARLEN_BACKWARD], "the attention that has two kernels on this card"
    run_others(run_on_card, monkeypatch)
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled()
    _, after, failure = run_on_card("causal_lm", STRICT, name="after")
    assert not failure, failure
    whole = weights_of(alone)
    assert differing(whole, weights_of(after)) == []
    for step in (2, 3):
        shutil.rmtree(alone.checkpoints / f"step-{step}")
    shutil.rmtree(alone.model)
    _, _, failure = run_on_card("causal_lm", folder=alone)
    assert not failure, failure
    assert differing(whole, weights_of(alone)) == []


def test_cublas_that_began_without_its_setting_is_found(run_on_card, monkeypatch):
    """It reads it once: a first run that did not need it decides for the second."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    _, _, failure = run_on_card("causal_lm", {"data.packing": "false"}, name="first")
    assert not failure, failure
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", environment._DETERMINISTIC[0])
    _, _, failure = run_on_card("causal_lm", STRICT, name="second")
    assert "cuBLAS began with the workspace ''" in failure


@pytest.mark.skipif(
    not hasattr(varlen, "_cudnn_version_and_major_capability"), reason="torch 2.11 has none for attention by lengths"
)
def test_attention_of_cudnn_in_a_deterministic_run_is_found(run_on_card, monkeypatch):
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: True)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", lambda enabled: None)
    card, _, failure = run_on_card("causal_lm", STRICT)
    # The probe before the first step meets it, and documents are packed by a mask from there on.
    assert "cuDNN's attention" in failure or VARLEN_BACKWARD not in card.computed


def test_an_operation_without_a_deterministic_form_is_found(run_on_card, monkeypatch):
    def binned(loss, batch):
        found = _loss(loss, batch)
        assert torch.histc(found.detach(), 4).sum() >= 0
        return found

    monkeypatch.setattr(NextTokenLoss, "__call__", binned)
    _, _, failure = run_on_card("causal_lm", STRICT)
    assert "histc.default does not have a deterministic implementation" in failure
