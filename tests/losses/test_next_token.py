"""The loss of the next token: only labels reach the head, and chunks change nothing but the memory."""

import pytest
import torch
import torch.nn.functional as F

from tests.tiny_models import tiny_model
from tui_trainer.data.batching.collate import IGNORE, collate
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.next_token import NextTokenLoss


def batch_of(*lengths: int) -> MicroBatch:
    draw = torch.Generator().manual_seed(1)
    rows = [torch.randint(3, 380, (length,), generator=draw).numpy().astype("int32") for length in lengths]
    return micro_batch(collate(rows, 0))


@pytest.fixture
def batch() -> MicroBatch:
    return batch_of(9, 17, 5)


def reference(model, batch: MicroBatch) -> torch.Tensor:
    """Compute the loss from the logits of all positions."""
    logits = model(input_ids=batch.inputs["input_ids"], use_cache=False).logits.flatten(0, 1).float()
    labels = torch.full((len(logits),), IGNORE)
    labels[batch.label_positions] = batch.labels
    return F.cross_entropy(logits, labels, reduction="sum", ignore_index=IGNORE)


def gradients(model, loss: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_loss_and_gradients_equal_those_of_all_logits(batch, subtests):
    for family in ("llama", "gpt2", "phi", "gemma"):
        for chunk_tokens in (0, 4):
            model = tiny_model(family)
            wanted = reference(model, batch)
            expected = gradients(model, wanted)
            loss = NextTokenLoss(model, chunk_tokens=chunk_tokens)(batch)
            with subtests.test(f"{family} in chunks of {chunk_tokens}"):
                assert loss.item() == pytest.approx(wanted.item(), rel=1e-6)
                for mine, theirs in zip(gradients(model, loss), expected, strict=True):
                    torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=1e-4)


def test_the_head_sees_only_positions_with_a_label(batch):
    model = tiny_model("llama")
    loss = NextTokenLoss(model)
    seen = []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(output.shape))
    loss(batch)
    assert seen == [(len(batch.labels), 384)]
    assert len(batch.labels) < batch.inputs["input_ids"].numel()
    assert model(input_ids=batch.inputs["input_ids"]).logits.shape[:2] == batch.inputs["input_ids"].shape, (
        "texts are written with the whole head"
    )


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_sixteen_bits_on_a_cpu_pad_the_number_of_labels_without_changing_the_loss(smoothing):
    """oneDNN compiles and keeps a kernel for each number of rows, so the head sees multiples of 16."""
    model = tiny_model("llama")
    loss, seen = NextTokenLoss(model, label_smoothing=smoothing), []
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append(len(output)))
    for labels, head_rows in ((182, 192), (192, 192), (193, 208), (208, 208), (209, 224)):
        batch = batch_of(labels - 122, 5, 120)
        seen.clear()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            total, each = loss(batch), loss.label_losses(batch)
            assert set(seen) == {head_rows}
            hidden = model.model(input_ids=batch.inputs["input_ids"]).last_hidden_state.flatten(0, 1)
            logits = model.lm_head(hidden)[batch.label_positions].float()
        expected = F.cross_entropy(logits, batch.labels, reduction="none", label_smoothing=smoothing)
        assert len(each) == len(batch.labels) == labels
        torch.testing.assert_close(each, expected, atol=2e-2, rtol=1e-2)
        assert total.item() == pytest.approx(expected.sum().item(), rel=1e-3)
    exact = gradients(model, loss(batch))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        in_16_bits = loss(batch)
    for mine, theirs in zip(gradients(model, in_16_bits), exact, strict=True):
        assert (mine - theirs).norm() <= 0.05 * theirs.norm(), "the padding has no gradient"


def test_chunks_save_no_logits_for_the_backward_pass(batch):
    sizes = []
    for chunk_tokens in (4, 0):
        kept = []
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.numel()) or t, lambda t: t)
        with hooks:
            NextTokenLoss(tiny_model("llama"), chunk_tokens=chunk_tokens)(batch)
        sizes.append(kept)
    logits = len(batch.labels) * 384
    assert logits not in sizes[0]
    assert logits in sizes[1], "the control: all at once saves them"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_chunks_in_16_bits_are_close_to_fp32(batch, dtype):
    model, other = tiny_model("llama"), tiny_model("llama")
    exact = gradients(other, NextTokenLoss(other)(batch))
    with torch.autocast("cpu", dtype):
        loss = NextTokenLoss(model, chunk_tokens=4)(batch)
    for mine, theirs in zip(gradients(model, loss), exact, strict=True):
        assert (mine - theirs).norm() <= 0.05 * theirs.norm()


def test_a_batch_without_padding_keeps_all_positions():
    batch = batch_of(5, 5)
    assert len(batch.labels) == batch.inputs["input_ids"].numel() == batch.label_count == 8
    assert batch.sample_count == 2
