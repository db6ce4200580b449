"""Adapters initialised from the weights: the output does not change, and what is saved fits the original weights."""

from __future__ import annotations

import json

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file

from tests.tuning.test_lora import logits, trained
from tui_trainer.config.sections import TuningSection
from tui_trainer.errors import CheckpointError
from tui_trainer.training.collectives import fill, gather_tensor
from tui_trainer.tuning.adapter_init import initial_adapters_of
from tui_trainer.tuning.lora import METHOD

INITS = ("pissa", "pissa_niter_4", "olora")
pytestmark = pytest.mark.versions  # it calls methods of peft's layers


def adapted(model, init, *, decomposed=True, **settings):
    tuning = TuningSection(method="lora", r=4, init_lora_weights=init, **settings)
    made = METHOD.apply(model, tuning, seed=7, autocast=False)
    if decomposed:
        assert initial_adapters_of(made).decompose(init, lambda done: True)
    return made


def test_the_output_does_not_change_and_the_weights_do(base, subtests):
    for family, matrices in (("llama", 14), ("gpt2", 8)):
        before = base(family)
        for init in INITS:
            with subtests.test(f"{init} of {family}"):
                model = adapted(base(family), init)
                torch.testing.assert_close(logits(model), logits(before), atol=1e-5, rtol=1e-5)
                inside = dict(model.get_base_model().named_parameters())
                changed = [
                    name
                    for name, weight in before.named_parameters()
                    if (left := inside.get(name.replace(".weight", ".base_layer.weight"))) is not None
                    and (left - weight).norm() > 1e-2 * weight.norm()
                ]
                assert len(changed) == len(initial_adapters_of(model)) == matrices
                trained = [weight for weight in model.parameters() if weight.requires_grad]
                assert all(p.dtype == torch.float32 and p.is_contiguous() for p in trained)
                assert all(p.untyped_storage().nbytes() == p.nbytes for p in trained)


@pytest.mark.parametrize("init", ["pissa", "olora"])  # a fast SVD begins with random numbers
def test_adapters_begin_with_the_numbers_of_peft(init, base):
    ours = adapted(base(), init)
    torch.manual_seed(7)
    kinds = {"task_type": "CAUSAL_LM", "r": 4, "lora_alpha": 32, "target_modules": "all-linear"}
    theirs = get_peft_model(base(), LoraConfig(**kinds, init_lora_weights=init))
    for (name, one), (_, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.full
def test_what_is_saved_fits_the_original_weights(base, tmp_path, subtests):
    rslora = {"use_rslora": True, "lora_alpha": 7.0}
    for init, settings in (("pissa", {}), ("olora", rslora)):
        with subtests.test(f"{init} {settings}"):
            model = trained(adapted(base(), init, **settings), rate=0.02)
            METHOD.save_model(model, tmp_path / init)
            fields = json.loads((tmp_path / init / "adapter_config.json").read_bytes())
            assert (fields["r"], fields["init_lora_weights"]) == (8, True)
            again = PeftModel.from_pretrained(base(), tmp_path / init)
            [scaling] = {layer.scaling["default"] for layer in again.modules() if isinstance(layer, LoraLayer)}
            assert scaling == pytest.approx(7 / 2 if settings else 32 / 4)
            torch.testing.assert_close(logits(again), logits(model), atol=1e-4, rtol=1e-4)
            assert (logits(base()) - logits(model)).abs().max() > 1e-2, "it has learnt something"
            torch.testing.assert_close(logits(again.merge_and_unload()), logits(model), atol=1e-4, rtol=1e-4)


def test_modules_that_train_as_a_whole_are_saved_as_well(base, tmp_path):
    """peft's own conversion drops them (0.21)."""
    model = trained(adapted(base(), "pissa", modules_to_save="embed_tokens"), rate=0.02)
    METHOD.save_model(model, tmp_path / "adapter")
    again = PeftModel.from_pretrained(base(), tmp_path / "adapter")
    torch.testing.assert_close(logits(again), logits(model), atol=1e-4, rtol=1e-4)


def test_saving_for_16_bit_weights_loses_no_more_than_their_rounding(base, tmp_path):
    model = trained(adapted(base(dtype=torch.bfloat16), "pissa"), rate=0.02)
    METHOD.save_model(model, tmp_path / "adapter")
    again = PeftModel.from_pretrained(base(dtype=torch.bfloat16), tmp_path / "adapter")
    learnt = (logits(base(dtype=torch.bfloat16)) - logits(model)).norm()
    assert (logits(again) - logits(model)).norm() < 0.1 * learnt


@pytest.mark.parametrize("init", INITS)
def test_a_checkpoint_restores_the_changed_weights_to_the_bit(init, base):
    model = trained(adapted(base(), init), rate=0.02)
    tensors = {name: gather_tensor(tensor).clone() for name, tensor in METHOD.checkpoint_tensors(model).items()}
    other = adapted(base(), init, decomposed=False)
    for _ in range(2):  # a run that returns to its best evaluation loads a second time
        for name, tensor in METHOD.checkpoint_tensors(other).items():
            assert tensor.shape == tensors[name].shape
            fill(tensor, tensors[name])
    for (name, one), (_, again) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(one, again), name
    assert torch.equal(logits(model), logits(other))
    with pytest.raises(CheckpointError, match="was initialised differently from the adapter in this checkpoint"):
        for name, tensor in METHOD.checkpoint_tensors(other).items():
            fill(tensor, tensors[name] + 1)


def test_gaussian_adapters_do_not_change_the_weights_or_the_output(base, tmp_path):
    model = METHOD.apply(
        base(), TuningSection(method="lora", r=4, init_lora_weights="gaussian"), seed=7, autocast=False
    )
    assert initial_adapters_of(model) is None and torch.equal(logits(model), logits(base()))
    usual = METHOD.apply(base(), TuningSection(method="lora", r=4), seed=7, autocast=False)
    names = [name for name in METHOD.weights(model) if "lora_A" in name]
    assert names and not any(torch.equal(METHOD.weights(model)[name], METHOD.weights(usual)[name]) for name in names)
    METHOD.save_model(model, tmp_path)
    assert load_file(tmp_path / "adapter_model.safetensors").keys() == METHOD.weights(model).keys()
