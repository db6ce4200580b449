"""Corners where a run would learn something else, fail late, or not go on."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.tiny_models import SHAPES, save_tiny_model, texts, tiny_model
from tui_trainer.config.load import Request
from tui_trainer.config.sections import TrainingSection, TuningSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.launching.carry_out import carry_out
from tui_trainer.launching.open_run import load_config, open_again, open_new
from tui_trainer.losses.chunked_head import HeadLoss
from tui_trainer.losses.micro_batch import MicroBatch, micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.runs.events import TextSampled
from tui_trainer.runs.journal import read_all
from tui_trainer.training.clock import Clock
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.step import take_step
from tui_trainer.tuning import find_method

CPU = torch.device("cpu")


def small_model(dtype=torch.float32) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)).to(dtype)


def optimizer_of(model, optim="adamw_torch_fused") -> RunOptimizer:
    return RunOptimizer(model, TrainingSection(optim=optim), lr=0.01)


@pytest.fixture
def tune(tmp_path):
    """`tune(family, settings, **shape)`: carries a run out; the opened run and its outcome."""
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts(60)))

    def make(family, settings, **shape):
        model = tmp_path / family
        if not model.exists():
            save_tiny_model(model, family, **shape)
        settings = {"data.max_length": 64, "training.effective_batch_size": 4, "training.max_steps": 4,
                    "tuning.method": "full", "checkpoint.save_steps": 2, "logging.sample_steps": 0,
                    "output.runs_dir": tmp_path / "runs", **settings}  # fmt: skip
        shortcuts = {"data.path": str(documents), "model.model_name_or_path": str(model)}
        assignments = tuple(f"{key}={value}" for key, value in settings.items())
        opened = open_new(load_config(Request(assignments=assignments, shortcuts=shortcuts)))
        return opened.folder, carry_out(opened)

    return make


def of_kind(folder, kind):
    return [event for event in read_all(folder.journal) if isinstance(event, kind)]


# Gradients and optimizers


def test_a_scaled_loss_goes_with_weights_of_16_bits():
    """A card without bf16 takes fp16 products, and `model.dtype` may still be bfloat16."""
    norms = []
    for precision in ("fp16", "fp32"):
        model, numbers = small_model(torch.bfloat16), MixedPrecision(precision, CPU)
        loss = model(torch.ones(3, 8, dtype=torch.bfloat16)).float().square().sum()
        numbers.backward(loss)
        optimizer = optimizer_of(model)
        norms.append(float(optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0, scaler=numbers.scaler)))
    assert norms[0] == pytest.approx(norms[1], rel=1e-2)


def test_gradients_of_16_bit_weights_are_summed_in_fp32():
    """600 equal parts of a gradient of 1: in bf16 the sum stands still long before."""
    model = nn.Linear(8, 1, bias=False).bfloat16()
    part = MicroBatch({"x": torch.ones(1, 8).bfloat16()}, torch.zeros(1), torch.zeros(1), 1, 8)
    optimizer, start = optimizer_of(model, "sgd"), model.weight.detach().float().clone()
    (kept,) = optimizer.masters.values()
    take_step(lambda: [part] * 600, lambda batch: model(batch.inputs["x"]).float().sum(), optimizer,
              MixedPrecision("fp32", CPU), Clock(CPU), lr=1.0, max_grad_norm=0.0)  # fmt: skip
    torch.testing.assert_close(start - kept, torch.ones(1, 8), atol=0.01, rtol=0)
    plain = nn.Linear(8, 1, bias=False).bfloat16()
    for _ in range(600):
        (plain(part.inputs["x"]).float().sum() / 600).backward()
    assert (plain.weight.grad < 0.9).all(), "the control"


@pytest.mark.parametrize("optim", ["adafactor", "adamw_torch_fused", "sgd"])
def test_a_run_goes_on_whose_every_step_was_passed_over(optim):
    model, numbers = small_model(), MixedPrecision("fp16", CPU)
    optimizer = optimizer_of(model, optim)
    loss = model(torch.ones(1, 8)).sum() * 1e36
    numbers.backward(loss)
    optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0, scaler=numbers.scaler)
    again = optimizer_of(small_model(), optim)
    again.load_shards([optimizer.tensors()])
    assert again.tensors().keys() == optimizer.tensors().keys()


def test_a_run_goes_on_whose_model_has_a_weight_that_nothing_uses():
    model = small_model()
    model.append(nn.Identity())
    model.unused = nn.Linear(2, 2)
    optimizer = optimizer_of(model)
    loss = model[:3](torch.ones(1, 8)).sum()
    loss.backward()
    optimizer.apply(loss.detach(), lr=0.01, max_grad_norm=1.0)
    again = optimizer_of(model)
    again.load_shards([optimizer.tensors()])
    assert again.tensors().keys() == optimizer.tensors().keys()
    assert not any("unused" in name for name in optimizer.tensors())


def test_a_table_that_all_parameters_share_can_be_saved(tmp_path):
    """bitsandbytes keeps one table of 8-bit values for all parameters; safetensors refuses shared memory."""
    optimizer, table = optimizer_of(small_model(), "sgd"), torch.linspace(-1, 1, 256)
    optimizer.spec = OPTIMIZERS["adamw_8bit"]
    for parameter in optimizer.trained_by_name.values():
        bytes_ = torch.zeros_like(parameter, dtype=torch.uint8)
        optimizer.torch.state[parameter] = {"state1": bytes_, "state2": bytes_ + 1, "qmap1": table, "step": 3}
    save_file(optimizer.tensors(), tmp_path / "optimizer.safetensors")
    found = load_file(tmp_path / "optimizer.safetensors")
    assert torch.equal(found["0.weight.qmap1"], table)
    assert torch.equal(found["2.weight.qmap1"], table)


def test_a_counter_that_is_read_as_a_number_is_one():
    weight, counter = torch.empty(2, device="meta"), torch.tensor(3.0)
    assert OPTIMIZERS["adafactor"].placed("step", counter, weight) == 3
    assert OPTIMIZERS["adamw_torch_fused"].placed("step", counter, weight).device == weight.device
    # torch keeps it there, and reads it once for each weight and step.
    assert OPTIMIZERS["adamw_torch"].placed("step", counter, weight).device.type == "cpu"
    assert OPTIMIZERS["adamw_torch"].placed("exp_avg", counter, weight).device == weight.device


def test_without_gradients_a_chunked_loss_computes_none():
    class Products(TorchDispatchMode):
        count = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.count += func.overloadpacket is torch.ops.aten.mm
            return func(*args, **(kwargs or {}))

    hidden, weight, labels = torch.randn(16, 8, requires_grad=True), nn.Parameter(torch.randn(20, 8)), torch.arange(16)
    with Products() as training:
        HeadLoss(chunk_tokens=4).sum(hidden, weight, labels)
    with torch.no_grad(), Products() as evaluation:
        HeadLoss(chunk_tokens=4).sum(hidden, weight, labels)
    assert (training.count, evaluation.count) == (12, 4)


@pytest.mark.parametrize(("family", "shape"), [
    ("recurrent_gemma", {"lru_width": 32, "num_attention_heads": 4, "logits_soft_cap": 2.0}),
    ("xlstm", {"num_heads": 4, "num_blocks": 2, "output_logit_soft_cap": 2.0}),
])  # fmt: skip
def test_a_cap_of_the_logits_is_kept_whatever_its_name(family, shape, monkeypatch):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    monkeypatch.setitem(SHAPES, family, sizes | shape)
    draw = np.random.default_rng(1)
    batch = micro_batch(collate([draw.integers(3, 380, size=17, dtype=np.int32)], 0))
    model = tiny_model(family).eval()
    with torch.no_grad():
        whole, chunked = (float(NextTokenLoss(model, chunk_tokens=chunk)(batch)) for chunk in (0, 4))
    assert chunked == pytest.approx(whole, rel=1e-5)


# Models, and what is saved of them


@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize(("family", "saved"), [("llama", "embed_tokens"), ("llama", "lm_head"), ("gpt2", "wte")])
def test_saved_modules_fit_the_16_bit_model_around_them(family, saved, autocast):
    draw = np.random.default_rng(1)
    batch = micro_batch(collate([draw.integers(3, 380, size=9, dtype=np.int32)], 0))
    base = tiny_model(family, tie_word_embeddings=False).bfloat16()
    settings = TuningSection(method="lora", modules_to_save=saved)
    model = find_method("lora").apply(base, settings, seed=1, autocast=autocast).train()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        NextTokenLoss(model)(batch).backward()
    optimizer = optimizer_of(model)
    optimizer.collect()
    moved = {name: weight for name, weight in optimizer.trained_by_name.items() if "modules_to_save" in name}
    assert moved
    assert all(weight.dtype == torch.float32 and weight.grad.abs().sum() > 0 for weight in moved.values())


def test_a_text_sample_of_short_rows_stays_within_the_places_that_a_model_has(tune):
    settings = {"data.max_length": 8, "logging.sample_steps": 2}
    folder, outcome = tune("gpt2", settings, n_positions=8)
    assert outcome.exit_code == 0, outcome
    assert len(of_kind(folder, TextSampled)) == 2


# Going on


def test_a_run_with_other_weights_in_the_model_folder_is_not_continued(tune, tmp_path):
    folder, outcome = tune("llama", {"training.max_steps": 4})
    assert outcome.exit_code == 0
    model = tiny_model("llama")
    with torch.no_grad():
        model.model.norm.weight.add_(1.0)
    model.save_pretrained(tmp_path / "llama")
    again = carry_out(open_again(folder))
    assert again.exit_code == 2
    assert "the model changed since this run began" in str(again.problems[0])
