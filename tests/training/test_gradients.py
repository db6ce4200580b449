"""An effective batch gives the same gradient, however it is split into micro-batches or packed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tui_trainer.config.sections import TrainingSection, TuningSection
from tui_trainer.data.batching.collate import collate, collate_packed
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.training.batches import Layout
from tui_trainer.training.clock import Clock
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.step import StepReport, take_step
from tui_trainer.tuning import find_method

CPU = torch.device("cpu")
ROW_LENGTHS = (17, 5, 9, 2)  # uneven, so that a mean of means would be another gradient
CUTS = ((1, 4), (2, 2), (4, 1))  # micro-batch x accumulation
# Width of a packed row, rows of a pass, and the number of passes for the 16, 4, 8 and 1 labels.
PACKED_CUTS = ((16, 1, 2), (16, 2, 1), (32, 1, 1))


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    return [random.integers(3, 40, size=length, dtype=np.int32) for length in ROW_LENGTHS]


def model_of(dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, tie_word_embeddings=True, pad_token_id=0, eos_token_id=2, bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(shape).to(dtype)
    # Larger than transformers begins with: what attention sees then weighs in the gradient.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2:
                parameter.mul_(5.0)
    return model


def lora_model():
    """Return a model with adapters whose second matrix is not zero; else the first would have no gradient."""
    model = find_method("lora").apply(model_of(), TuningSection(method="lora", r=4), seed=5, autocast=False)
    draw = torch.Generator().manual_seed(6)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.data.normal_(std=0.2, generator=draw)
    return model


def window(rows, micro_batch: int, packed_width: int = 0) -> list[MicroBatch]:
    layout = Layout(
        collate=partial(collate, pad_id=0),
        collate_packed=partial(collate_packed, pad_id=0),
        rows_per_pass=micro_batch,
        packed_width=packed_width,
    )
    return list(layout.micro_batches([TokenRow(row) for row in rows]))


def step(batches, loss, optimizer, *, lr: float = 0.0, max_grad_norm: float = 0.0) -> StepReport:
    mixed_precision, clock = MixedPrecision("fp32", CPU), Clock(CPU)
    return take_step(lambda: batches, loss, optimizer, mixed_precision, clock, lr=lr, max_grad_norm=max_grad_norm)


class _KeepGradients:
    """Keeps the gradients in the place of an optimizer."""

    def __init__(self, model) -> None:
        self._model = model

    def collect(self):
        """All weights are fp32 here: their sums stay where they are."""

    def apply(self, loss_sum, *, lr, max_grad_norm, scaler=None):
        self.kept = {name: p.grad.clone() for name, p in self._model.named_parameters() if p.requires_grad}
        return torch.zeros(())


def gradients(batches, make=model_of) -> dict[str, torch.Tensor]:
    model = make()
    optimizer = _KeepGradients(model)
    step(batches, NextTokenLoss(model), optimizer)
    return optimizer.kept


def assert_equal(mine: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    assert mine.keys() == theirs.keys()
    assert all(gradient.abs().max() > 1e-4 for gradient in theirs.values()), "every parameter learns something"
    for name, gradient in mine.items():
        torch.testing.assert_close(gradient, theirs[name], atol=1e-5, rtol=0)


def test_the_gradient_of_uneven_rows_does_not_depend_on_the_micro_batches(rows, subtests):
    for make in (model_of, lora_model):
        whole = gradients(window(rows, 4), make)
        assert len(whole) > 10
        for micro_batch, accumulation in CUTS[:-1]:
            with subtests.test(f"{make.__name__}, {micro_batch} rows in a pass"):
                assert len(window(rows, micro_batch)) == accumulation
                assert_equal(gradients(window(rows, micro_batch), make), whole)


def test_packed_rows_give_the_gradient_of_separate_rows(rows, subtests):
    for make in (model_of, lora_model):
        apart = gradients(window(rows, 1), make)
        for width, micro_batch, passes in PACKED_CUTS:
            packed = window(rows, micro_batch, width)
            with subtests.test(f"{make.__name__}, {micro_batch} rows of {width} tokens"):
                assert len(packed) == passes
                assert all("position_ids" in batch.inputs for batch in packed)
                assert_equal(gradients(packed, make), apart)


def test_only_adapters_have_gradients_under_lora(rows):
    names = gradients(window(rows, 4), lora_model)
    assert len(names) == 2 * 2 * 7, "two matrices beside each of seven products in two layers"
    assert all(".lora_" in name for name in names)


def test_a_step_counts_its_documents_and_labels_for_any_micro_batch(rows):
    for micro_batch, width in [(1, 0), (2, 0), (4, 0), (1, 16), (1, 32)]:
        batches, model = window(rows, micro_batch, width), model_of()
        report = step(batches, NextTokenLoss(model), _KeepGradients(model))
        assert (report.samples, report.token_count) == (len(rows), sum(ROW_LENGTHS) - len(rows))
        assert len(report.forwards) == len(batches)


def test_the_parts_of_a_step_add_up_to_its_time():
    """Two passes: the forward passes take 2 and 1.5 s, the backward passes the rest until the gradient is there."""
    report = StepReport(
        loss_sum=torch.zeros(()), grad_norm=torch.zeros(()), token_count=1, input_tokens=1, samples=1, lr=0.1,
        data_seconds=0.5, forwards=((1.0, 3.0), (5.0, 6.5)), accumulated_mark=9.0, updated_mark=10.0,
    )  # fmt: skip
    seconds = report.seconds()
    assert seconds == {
        "data_seconds": 0.5, "forward_seconds": 3.5, "backward_seconds": 4.5, "optimizer_seconds": 1.0,
    }  # fmt: skip
    assert sum(seconds.values()) == 0.5 + (10.0 - 1.0)


def loss_of(model):
    """Return the loss of the task in the dtype of the model; the task itself computes it in fp32."""

    def loss_sum(batch: MicroBatch) -> torch.Tensor:
        logits = model(**batch.inputs, use_cache=False).logits.flatten(0, 1)[batch.label_positions]
        return torch.nn.functional.cross_entropy(logits, batch.labels, reduction="sum")

    return loss_sum


def weights_after_five_steps(batches, training: TrainingSection) -> torch.Tensor:
    model = model_of(torch.float64)
    optimizer = RunOptimizer(model, training, lr=0.01)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    for _ in range(5):
        step(batches, loss_of(model), optimizer, lr=0.01, max_grad_norm=1.0)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert (after - before).abs().max() > 0.01
    return after


def test_weights_after_five_steps_agree_in_float64(rows):
    training = TrainingSection(weight_decay=0.1)
    whole = weights_after_five_steps(window(rows, 4), training)
    others = [window(rows, micro_batch) for micro_batch, _ in CUTS[:-1]] + [window(rows, 1, 16), window(rows, 1, 32)]
    for batches in others:
        difference = (weights_after_five_steps(batches, training) - whole).abs().max()
        assert difference < 1e-9
