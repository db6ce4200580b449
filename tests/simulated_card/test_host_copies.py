"""Copies between a card and the host: tensors of a checkpoint, and the lengths of a batch."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from tests.simulated_card.card import CUDA
from tests.simulated_card.machine import H200, hardware_with, simulated_card
from tui_trainer.data.batching.collate import collate_packed
from tui_trainer.exporting import predicting
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.training import checkpoint as checkpoint_tensors
from tui_trainer.training.checkpoint import _on_host
from tui_trainer.tuning.full import SplitTensor

PINNED = 64


def test_the_lengths_of_a_batch_are_sent_to_the_card_once():
    rows = [[np.arange(3, 9, dtype="int32"), np.arange(3, 7, dtype="int32")]]
    batch = micro_batch(collate_packed(rows, 0), by_lengths=True)
    with simulated_card():
        for found in (pinned := batch.pinned(), pinned.to(CUDA)):
            assert found.inputs["cu_seq_lens_q"] is found.inputs["cu_seq_lens_k"]


def test_commands_with_a_trained_model_switch_off_the_attention_of_cudnn(monkeypatch):
    """Their passes are as wide as the longest row, and it builds a plan for each width."""
    monkeypatch.setattr(predicting, "probe", lambda: hardware_with(H200))
    torch.backends.cuda.enable_cudnn_sdp(True)
    try:
        with simulated_card():
            assert predicting.inference_device(None) == CUDA
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    finally:
        torch.backends.cuda.enable_cudnn_sdp(True)


def tensors() -> dict[str, torch.Tensor]:
    """Tensors of 4, 300, 0, 6, 300 and 48 bytes."""
    draw = torch.Generator().manual_seed(1)
    return {
        "step": torch.tensor(3.0),
        "moment": torch.randn(5, 15, generator=draw),
        "nothing": torch.empty(0, 3),
        "16 bits": torch.randn(3, generator=draw).bfloat16(),
        "codes": torch.randint(0, 255, (300,), generator=draw).to(torch.uint8),
        "crosswise": torch.randn(4, 3, generator=draw).t(),
    }


def copied(card, expected):
    given = {name: tensor.to(CUDA) for name, tensor in expected.items()}
    card.waits.clear()
    return _on_host(given, given)


def test_a_checkpoint_copies_through_pinned_buffers_and_waits_for_these_alone(monkeypatch, subtests):
    monkeypatch.setattr(checkpoint_tensors, "PINNED_BYTES", PINNED)
    with simulated_card() as card:
        with subtests.test("copies are whole, and each buffer is waited for once"):
            found = copied(card, tensors())
            for name, tensor in tensors().items():
                assert found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
                assert found[name].is_contiguous()
            assert card.pinned_peak_bytes == PINNED
            # 610 bytes in buffers of 32; a tensor that is not contiguous is copied by itself.
            assert Counter(wait.what for wait in card.waits) == {"synchronize an event": 20, "copy to the host": 1}

        with subtests.test("many small tensors share one wait"), monkeypatch.context() as patched:
            patched.setattr(checkpoint_tensors, "PINNED_BYTES", 4096)
            adapters = {str(n): torch.full((8,), float(n)) for n in range(40)}
            found = copied(card, adapters)
            assert all(torch.equal(found[name], tensor) for name, tensor in adapters.items())
            assert len(card.waits) == 1

        with subtests.test("a gathered tensor is copied before the next one is gathered"):
            alive = []
            before = card.allocated_bytes

            def gather(number):
                alive.append(card.allocated_bytes - before)
                return torch.full((12,), float(number)).to(CUDA)

            parts = {str(n): SplitTensor(torch.Size((12,)), torch.float32, lambda n=n: gather(n)) for n in range(4)}
            found = _on_host(parts, parts)
            assert [found[name][0].item() for name in parts] == [0, 1, 2, 3]
            # The last one is held while the next is gathered, and never two.
            assert max(alive) <= 48

        with subtests.test("without pinned memory copies are the same"), monkeypatch.context() as patched:
            make, card.pinned_peak_bytes = torch.empty, 0

            def refused(*args, pin_memory=False, **more):
                if pin_memory:
                    raise torch.AcceleratorError("CUDA error: out of memory")
                return make(*args, **more)

            patched.setattr(torch, "empty", refused)
            found = copied(card, tensors())
            assert all(torch.equal(found[name], tensor) for name, tensor in tensors().items())
            assert card.pinned_peak_bytes == 0 and {wait.what for wait in card.waits} == {"copy to the host"}
