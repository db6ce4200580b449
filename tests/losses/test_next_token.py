"""The loss of the next token: only labels reach the head, and chunks change nothing but the memory."""

import pytest
import torch
import torch.nn.functional as F

from tests.tiny_models import tiny_model
from tui_trainer.data.batching.collate import IGNORE, Batch, collate
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.next_token import NextTokenLoss


@pytest.fixture
def batch() -> MicroBatch:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 380, (length,), generator=draw).numpy().astype("int32") for length in (9, 17, 5)]
    return micro_batch(collate(rows, 0))


def reference(model, batch: MicroBatch) -> torch.Tensor:
    """All logits, and the labels laid over them."""
    logits = model(input_ids=batch.inputs["input_ids"], use_cache=False).logits.flatten(0, 1).float()
    labels = torch.full((len(logits),), IGNORE)
    labels[batch.places] = batch.labels
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE)


def gradients(model, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("family", ["llama", "gpt2", "phi", "gemma"])
@pytest.mark.parametrize("chunk_tokens", [0, 4])
def test_loss_and_gradients_are_those_of_all_logits(family, chunk_tokens, batch):
    model = tiny_model(family)
    wanted = reference(model, batch)
    expected = gradients(model, wanted)
    found = NextTokenLoss(model, chunk_tokens=chunk_tokens)(batch)
    assert found.item() == pytest.approx(wanted.item(), rel=1e-6)
    for mine, theirs in zip(gradients(model, found), expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


def test_the_head_sees_only_places_with_a_label(batch):
    model = tiny_model("llama")
    loss = NextTokenLoss(model)
    seen = []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    loss(batch)
    places = batch.inputs["input_ids"].numel()
    assert seen == [(len(batch.labels), 384)]
    assert len(batch.labels) < places


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_in_16_bits_on_a_cpu_the_head_sees_few_numbers_of_labels_and_the_loss_is_that_of_all(smoothing):
    """oneDNN compiles and keeps a kernel for each number of rows."""
    model, draw = tiny_model("llama"), torch.Generator().manual_seed(1)
    loss, seen = NextTokenLoss(model, label_smoothing=smoothing), []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    for first in range(60, 100):
        rows = [torch.randint(3, 380, (length,), generator=draw).numpy().astype("int32") for length in (first, 5, 120)]
        batch = micro_batch(collate(rows, 0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, each = loss(batch), loss.by_label(batch)
            hidden = model.model(input_ids=batch.inputs["input_ids"]).last_hidden_state.flatten(0, 1)
            logits = model.lm_head(hidden)[batch.places].float()
            seen.pop()
        expected = F.cross_entropy(logits, batch.labels, reduction="none", label_smoothing=smoothing)
        assert len(each) == len(batch.labels) == first + 123 - 1
        torch.testing.assert_close(each, expected, atol=2e-2, rtol=1e-2)
        assert found.item() == pytest.approx(expected.sum().item(), rel=1e-3)
    assert set(seen) == {192, 208, 224}
    exact = gradients(model, loss(batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        in_16_bits = loss(batch)
    for mine, theirs in zip(gradients(model, in_16_bits), exact, strict=True):
        assert (mine - theirs).norm() <= 0.05 * theirs.norm(), "what is filled up has no gradient"


def test_texts_are_written_with_the_whole_head(batch):
    model = tiny_model("llama")
    NextTokenLoss(model)(batch)
    assert model(input_ids=batch.inputs["input_ids"]).logits.shape[:2] == batch.inputs["input_ids"].shape


def test_a_chunk_keeps_no_logits(batch):
    """The largest tensor that lives until the backward pass has no vocabulary in it."""
    model = tiny_model("llama")
    sizes = []

    def keep(tensor):
        sizes.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        NextTokenLoss(model, chunk_tokens=4)(batch)
    assert len(batch.labels) * 384 not in sizes
    sizes.clear()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        NextTokenLoss(tiny_model("llama"))(batch)
    assert len(batch.labels) * 384 in sizes, "the control: all at once keeps them"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_in_16_bits_are_near_to_fp32(batch, dtype):
    model = tiny_model("llama")
    exact = gradients(model, NextTokenLoss(tiny := model)(batch))
    tiny.lm_head._forward_pre_hooks.clear()
    loss = NextTokenLoss(model, chunk_tokens=4)
    with torch.autocast("cpu", dtype):
        found = loss(batch)
    for mine, theirs in zip(gradients(model, found), exact, strict=True):
        assert (mine - theirs).norm() <= 0.05 * theirs.norm()


def test_a_batch_without_padding_selects_nothing():
    ids = torch.arange(3, 13, dtype=torch.int32).numpy().reshape(2, 5)
    batch = micro_batch(collate(list(ids), 0))
    assert isinstance(collate(list(ids), 0), Batch)
    assert len(batch.labels) == batch.inputs["input_ids"].numel() == batch.label_count == 8
    assert batch.samples == 2
