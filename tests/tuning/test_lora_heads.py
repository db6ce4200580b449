"""Adapters for models that classify or answer: what they train, against the counts that a plan works with."""

from __future__ import annotations

import copy

import pytest

from tests.models.headed import CASES, headed
from tui_trainer.config.sections import TuningSection
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import head_modules, lora_parameters, match_targets, saved_module_parameters
from tui_trainer.tuning.lora import METHOD


def trained_in(model):
    """Weights of adapters, and of modules that are trained as a whole; and the names of what trains."""
    trained = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    saved = sum(count for name, count in trained.items() if "modules_to_save" in name)
    return sum(trained.values()) - saved, saved, trained


@pytest.mark.parametrize(("variant", "head"), CASES)
def test_all_linear_trains_what_a_plan_counts_and_all_of_the_head(variant, head):
    tiny = headed(variant, head)
    shape = shape_of(tiny.config, head=head)
    model = METHOD.apply(copy.deepcopy(tiny.model), TuningSection(method="lora", r=4), seed=0, autocast=False)
    adapters, saved, names = trained_in(model)
    whole = head_modules(shape)
    assert adapters == lora_parameters(shape, match_targets(shape, "all-linear"), 4) > 0
    assert saved == saved_module_parameters(shape, ",".join(whole))
    assert {name.split(".modules_to_save")[0].rpartition(".")[2] for name in names if "modules_to_save" in name} == set(
        whole
    )


@pytest.mark.parametrize("variant", ["bert", "roberta"])
def test_a_name_that_the_head_has_too_adapts_the_body_only(variant):
    tiny = headed(variant, "sequence_classification")
    shape = shape_of(tiny.config, head="sequence_classification")
    tuning = TuningSection(method="lora", r=4, target_modules="dense")
    adapters, saved, _ = trained_in(METHOD.apply(copy.deepcopy(tiny.model), tuning, seed=0, autocast=False))
    assert adapters == lora_parameters(shape, match_targets(shape, "dense"), 4)
    assert saved == saved_module_parameters(shape, ",".join(head_modules(shape)))


def test_the_head_is_kept_with_the_adapter_and_comes_back_with_plain_peft(tmp_path):
    import torch
    from peft import PeftModel

    tiny = headed("distilbert", "sequence_classification")
    model = METHOD.apply(copy.deepcopy(tiny.model), TuningSection(method="lora", r=4), seed=0, autocast=False)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    assert any("pre_classifier" in name for name in METHOD.weights(model))
    METHOD.save_model(model, tmp_path)
    again = PeftModel.from_pretrained(copy.deepcopy(tiny.model), tmp_path)
    rows = torch.randint(0, 90, (2, 7))
    model.eval(), again.eval()
    with torch.no_grad():
        assert torch.allclose(model(rows).logits, again(rows).logits, atol=1e-6)
        assert not torch.allclose(model(rows).logits, tiny.model.eval()(rows).logits, atol=1e-3)
