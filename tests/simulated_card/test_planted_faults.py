"""Faults that only a card shows, planted one by one: each is found on the simulated one, and for its own reason."""

from __future__ import annotations

import gc
import re
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from tests.simulated_card.card import now
from tests.simulated_card.kernels import VARLEN_BACKWARD
from tests.simulated_card.machine import simulated_card
from tests.simulated_card.waits import unexpected_waits
from tui_trainer.launching.prepare import read_plan
from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.training import components
from tui_trainer.training.components import Components
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.recorder import Recorder

_to, _loss, _of_logits = MicroBatch.to, NextTokenLoss.__call__, ClassificationLoss.of_logits
_add, _init = Recorder.add, Components.__init__
PADDED = {"data.packing": "false"}
TWO_DEVICES = "Expected all tensors to be on the same device"


def mask_stays_on_the_host(monkeypatch):
    def to(batch, device):
        moved = _to(batch, device)
        return replace(moved, inputs={**moved.inputs, "attention_mask": batch.inputs["attention_mask"]})

    monkeypatch.setattr(MicroBatch, "to", to)


def labels_stay_on_the_host(monkeypatch):
    monkeypatch.setattr(MicroBatch, "to", lambda batch, device: replace(_to(batch, device), labels=batch.labels))


def evaluation_forgets_the_device(monkeypatch):
    monkeypatch.setattr(
        MicroBatch, "to", lambda batch, device: batch if now().phase == "evaluation" else _to(batch, device)
    )


def number_is_read_in_each_pass(monkeypatch):
    def read(loss, batch):
        found = _loss(loss, batch)
        assert found.item() > 0
        return found

    monkeypatch.setattr(NextTokenLoss, "__call__", read)


def labels_are_chosen_by_a_mask(monkeypatch):
    def chosen(loss, logits_BC, labels):
        return _of_logits(loss, logits_BC[labels >= 0], labels[labels >= 0])

    monkeypatch.setattr(ClassificationLoss, "of_logits", chosen)


def adapter_meets_other_weights(monkeypatch):
    monkeypatch.setattr(MixedPrecision, "autocast", lambda self: nullcontext())


def batches_are_not_pinned(monkeypatch):
    monkeypatch.setattr(MicroBatch, "pinned", lambda batch: batch)


def times_are_read_before_they_are_over(monkeypatch):
    def add(recorder, step, report):
        report.seconds()
        _add(recorder, step, report)

    monkeypatch.setattr(Recorder, "add", add)


def masks_are_asked_for_on_the_device(monkeypatch):
    for module in ("next_token", "classification"):
        monkeypatch.setattr(f"tui_trainer.losses.{module}.known_masks", lambda batch: nullcontext())


def lengths_are_64_bits(monkeypatch):
    made = components.varlen.attention_by

    def attention_by(kernel):
        attend = made(kernel)

        def wide(*args, **kwargs):
            ends = kwargs.get("cu_seq_lens_q")
            return attend(*args, **{**kwargs, "cu_seq_lens_q": None if ends is None else ends.long()})

        return wide

    monkeypatch.setattr(components.varlen, "attention_by", attention_by)


FAULTS = [
    (mask_stays_on_the_host, "sequence_classification", {}, "micro-batches copy to the card .*masking_utils"),
    (labels_stay_on_the_host, "causal_lm", PADDED, TWO_DEVICES),
    (evaluation_forgets_the_device, "causal_lm", PADDED, "(?s)evaluate.py.*" + TWO_DEVICES),
    (number_is_read_in_each_pass, "causal_lm", PADDED, "micro-batches .*scalar.* training/step.py take_step"),
    (labels_are_chosen_by_a_mask, "sequence_classification", {}, "micro-batches .*index.* losses/classification.py"),
    (adapter_meets_other_weights, "causal_lm", {**PADDED, "tuning.method": "lora", "model.dtype": "bfloat16"},
     "mat1 and mat2 must have the same dtype|expected m1 and m2 to have the same dtype"),
    (batches_are_not_pinned, "causal_lm", PADDED, "micro-batches copy to the card losses/micro_batch.py"),
    (times_are_read_before_they_are_over, "causal_lm", PADDED, "CUDA error: device not ready"),
    (masks_are_asked_for_on_the_device, "causal_lm", PADDED, "micro-batches .*losses/next_token.py .*masking_utils"),
    (masks_are_asked_for_on_the_device, "seq2seq", {"evaluation.generate_rows": 0},
     "micro-batches .*losses/next_token.py .*masking_utils"),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "task", "settings", "reason"), FAULTS)
def test_a_planted_fault_is_found(plant, task, settings, reason, run_on_card, monkeypatch):
    plant(monkeypatch)
    card, _, failure = run_on_card(task, settings)
    waits = [f"{wait.phase} {wait.what} {wait.function} {wait.line}" for wait in unexpected_waits(card)]
    assert bool(failure) != bool(waits), (failure, waits)
    found = [text for text in (failure, *waits) if text]
    assert any(re.search(reason, text) for text in found), found


def test_lengths_that_the_kernel_refuses_are_found_by_the_probe(run_on_card, monkeypatch):
    """Documents are then packed by a mask: no step goes by lengths."""
    lengths_are_64_bits(monkeypatch)
    card, folder, failure = run_on_card("causal_lm", {"data.packing": "true"})
    assert not failure and read_plan(folder).packing.value
    assert VARLEN_BACKWARD not in card.computed


def test_a_model_that_outlives_its_run_is_found(run_on_card, monkeypatch):
    kept = []

    def init(self, *arguments):
        _init(self, *arguments)
        kept.append(self.model)

    monkeypatch.setattr(Components, "__init__", init)
    card, _, failure = run_on_card("causal_lm", PADDED)
    gc.collect()
    assert not failure
    assert card.allocated_bytes >= sum(p.numel() * p.element_size() for p in kept[0].parameters())
    del kept[:]
    gc.collect()
    assert card.allocated_bytes == 0


def test_a_norm_of_two_dtypes_is_refused_as_on_a_card():
    with simulated_card():
        x, weight = torch.ones(2, 8, device="cuda", dtype=torch.bfloat16), torch.ones(8, device="cuda")
        with pytest.raises(RuntimeError, match="expected scalar type"):
            torch.nn.functional.layer_norm(x, (8,), weight)
