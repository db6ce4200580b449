"""One effective batch gives one gradient, however it is cut."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tui_trainer.data.collate import collate
from tui_trainer.tasks.char_lm import TASK
from tui_trainer.training.optimiser import build_optimiser
from tui_trainer.training.step import MicroBatch, take_step

ROW_LENGTHS = (17, 5, 9, 2)  # uneven, so that a mean of means would be another gradient
CUTS = ((1, 4), (2, 2), (4, 1))  # micro-batch x accumulation


@pytest.fixture
def rows():
    random = np.random.default_rng(3)
    return [random.integers(3, 40, size=length, dtype=np.int32) for length in ROW_LENGTHS]


def model_of(dtype: torch.dtype) -> LlamaForCausalLM:
    torch.manual_seed(1)
    shape = LlamaConfig(
        vocab_size=40, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, tie_word_embeddings=True, pad_token_id=0, eos_token_id=2, bos_token_id=None,
    )  # fmt: skip
    return LlamaForCausalLM(shape).to(dtype)


def window(rows, micro_batch: int) -> list[MicroBatch]:
    batches = [collate(rows[start : start + micro_batch], 0) for start in range(0, len(rows), micro_batch)]
    return [MicroBatch(torch.from_numpy(b.input_ids), torch.from_numpy(b.labels), b.label_tokens) for b in batches]


def loss_of(model):
    """The task's loss, in the dtype of the model: the task itself computes it in fp32."""

    def loss_sum(ids, labels):
        logits = model(input_ids=ids, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")

    return loss_sum


class _KeepGradients(torch.optim.SGD):
    """Stands in for the optimiser and keeps what it was given."""

    def step(self, closure=None):
        self.kept = [p.grad.clone() for group in self.param_groups for p in group["params"]]


def gradients(rows, micro_batch: int) -> list[torch.Tensor]:
    model = model_of(torch.float32)
    optimiser = _KeepGradients(model.parameters(), lr=0.0)
    parameters = list(model.parameters())
    loss = lambda ids, labels: TASK.loss_sum(model, ids, labels)  # noqa: E731
    take_step(lambda: window(rows, micro_batch), loss, parameters, optimiser, lr=0.0, max_grad_norm=0.0)
    return optimiser.kept


@pytest.mark.parametrize(("micro_batch", "accumulation"), CUTS[:-1])
def test_the_gradient_of_uneven_rows_does_not_depend_on_the_cut(rows, micro_batch, accumulation):
    assert len(window(rows, micro_batch)) == accumulation
    whole = gradients(rows, 4)
    assert len(whole) > 10
    for mine, theirs in zip(gradients(rows, micro_batch), whole, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_a_mean_of_means_would_be_another_gradient(rows):
    """The control: dividing each micro-batch by its own count is what this project does not do."""
    model = model_of(torch.float32)
    for batch in window(rows, 1):
        (TASK.loss_sum(model, batch.input_ids, batch.labels) / batch.label_tokens / 4).backward()
    wrong = torch.cat([p.grad.flatten() for p in model.parameters()])
    right = torch.cat([g.flatten() for g in gradients(rows, 4)])
    assert (wrong - right).abs().max() > 1e-3


def weights_after_five_steps(rows, micro_batch: int, training_section) -> torch.Tensor:
    model = model_of(torch.float64)
    optimiser = build_optimiser(model, training_section)
    parameters = list(model.parameters())
    for _ in range(5):
        take_step(lambda: window(rows, micro_batch), loss_of(model), parameters, optimiser, lr=0.01, max_grad_norm=1.0)
    return torch.cat([p.detach().flatten() for p in parameters])


def test_weights_after_five_steps_agree_in_float64(rows):
    from tui_trainer.config.sections import TrainingSection

    training = TrainingSection(weight_decay=0.1)
    whole = weights_after_five_steps(rows, 4, training)
    for micro_batch, _ in CUTS[:-1]:
        difference = (weights_after_five_steps(rows, micro_batch, training) - whole).abs().max()
        assert difference < 1e-9
