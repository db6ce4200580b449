"""Faults that only a card shows, planted one by one: each is found on the simulated one, and for its own reason."""

from __future__ import annotations

import gc
import re
import shutil
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module

import pytest
import torch

from tests.simulated_card import liger_stand_in as liger
from tests.simulated_card.card import now
from tests.simulated_card.kernels import KERNELS, VARLEN, VARLEN_BACKWARD
from tests.simulated_card.machine import simulated_card
from tests.simulated_card.test_matrix import of_kind
from tests.simulated_card.waits import unexpected_waits
from tui_trainer.launching.prepare import read_plan
from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.runs.events import RunProblem, StepDone
from tui_trainer.training import compiled, components
from tui_trainer.training.components import Components
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.recorder import Recorder

_to, _loss, _of_logits = MicroBatch.to, NextTokenLoss.__call__, ClassificationLoss.of_logits
_add, _init, _norm_backward = Recorder.add, Components.__init__, liger.RMSNormFunction.backward
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


class _NoBackward(liger.RMSNormFunction):
    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("Triton Error: out of resource: shared memory")


class _WrongBackward(liger.RMSNormFunction):
    @staticmethod
    def backward(ctx, gradient):
        x, weight, rest = _norm_backward(ctx, gradient)
        return x * 1.1, weight, rest


def _wrong_numbers(x, weight, eps):
    return liger._normed(x.float(), weight.float() * 1.1, eps).to(x.dtype)


LIGER = {**PADDED, "model.kernels": "auto"}
KERNEL_FAULTS = [
    ("norm", _wrong_numbers, "with it logits differ by"),
    ("RMSNormFunction", _WrongBackward, "with it gradients differ by"),
    pytest.param("RMSNormFunction", _NoBackward, "RuntimeError: Triton Error", marks=pytest.mark.e2e),
]


@pytest.mark.parametrize(("name", "fault", "reason"), KERNEL_FAULTS)
def test_a_kernel_that_computes_otherwise_or_fails_is_not_used(name, fault, reason, run_on_card, monkeypatch):
    """And the run learns what one without it learns, to the bit."""
    monkeypatch.setattr(liger, name, fault)
    card, folder, failure = run_on_card("causal_lm", LIGER, name="faulty")
    assert not failure and read_plan(folder).kernels.value == "liger"
    (problem,) = [event for event in of_kind(folder, RunProblem) if event.kind == "kernels not used"]
    assert reason in problem.message
    _, plain, failure = run_on_card("causal_lm", {**LIGER, "model.kernels": "none"}, name="plain")
    assert not failure
    losses = [[event.loss for event in of_kind(each, StepDone)] for each in (folder, plain)]
    assert losses[0] == losses[1] and len(losses[0]) == 2
    gc.collect()
    assert card.allocated_bytes == 0, "what was tried leaves the card empty"


@pytest.mark.parametrize("far", [0.999, float("nan")])
def test_a_loss_that_a_kernel_computes_otherwise_is_not_fused(far, run_on_card, monkeypatch):
    """The other kernels stay."""
    right = liger.cross_entropy
    monkeypatch.setattr(liger, "cross_entropy", lambda *given: tuple(far * x for x in right(*given)))
    _, folder, failure = run_on_card("causal_lm", LIGER)
    assert not failure
    found = {event.kind: event.message for event in of_kind(folder, RunProblem)}
    assert "losses differ by" in found["loss not fused"] and not found["kernels"].endswith("loss")
    assert liger.calls.losses == 1 and liger.calls.norms_backward


BROKEN = torch.AcceleratorError("CUDA error: an illegal memory access was encountered")
NO_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
PACKED = {"data.packing": "true"}


def compiled_layers(monkeypatch, fails):
    monkeypatch.setattr(compiled, "_try_one_pass", fails)


@pytest.mark.parametrize("error", [BROKEN, NO_MEMORY], ids=["broken", "out of memory"])
@pytest.mark.parametrize(
    ("settings", "plant"),
    [
        (LIGER, lambda patches, fails: patches.setattr(liger, "norm", fails)),
        (PACKED, lambda patches, fails: patches.setitem(KERNELS, VARLEN, fails)),
        ({"training.torch_compile": "true"}, compiled_layers),
    ],
    ids=["norms", "attention by lengths", "compiled layers"],
)
def test_a_card_that_is_broken_or_full_at_the_start_ends_the_run(settings, plant, error, run_on_card, monkeypatch):
    """Nothing can be computed after it: a run that goes on would fail at its next line, for another reason."""

    def fails(*_, **__):
        raise error

    plant(monkeypatch, fails)
    _, folder, failure = run_on_card("causal_lm", settings)
    assert str(error) in failure
    assert not of_kind(folder, StepDone)


def test_a_kernel_by_lengths_that_fails_is_told_and_rows_get_a_mask(run_on_card, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("FlashAttention only supports Ampere")

    monkeypatch.setitem(KERNELS, VARLEN, fails)
    _, folder, failure = run_on_card("causal_lm", PACKED)
    assert not failure and len(of_kind(folder, StepDone)) == 2
    [problem] = [event for event in of_kind(folder, RunProblem) if event.kind == "attention changed"]
    assert problem.message == (
        "attention by lengths is not used because torch: RuntimeError: FlashAttention only supports Ampere"
    )


def test_what_kernels_have_changed_is_taken_back_after_the_run(run_on_card):
    names = import_module("transformers.models.llama.modeling_llama")
    before = dict(vars(names))
    _, folder, failure = run_on_card("causal_lm", LIGER)
    assert not failure and liger.calls.norms_backward
    assert dict(vars(names)) == before
    assert "kernels" in {event.kind for event in of_kind(folder, RunProblem)}


def test_a_run_that_goes_on_without_its_kernels_is_told_so(run_on_card, monkeypatch):
    settings = {**LIGER, "training.max_steps": 3, "checkpoint.save_total_limit": 3}
    _, folder, failure = run_on_card("causal_lm", settings)
    assert not failure
    for step in (2, 3):
        shutil.rmtree(folder.checkpoints / f"step-{step}")
    shutil.rmtree(folder.model)
    monkeypatch.setattr(liger, "FAMILIES", ())
    _, _, failure = run_on_card("causal_lm", folder=folder)
    assert not failure
    told = {event.kind: event.message for event in of_kind(folder, RunProblem)}
    assert "it has no kernel for this model" in told["kernels not used"]
    assert told["kernels changed"] == "until step 1 model.kernels were liger, from here on none"


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
