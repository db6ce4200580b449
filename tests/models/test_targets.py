"""Targets of LoRA and their parameters, counted as peft counts them."""

from __future__ import annotations

import copy
from itertools import product

import pytest

from tui_trainer.errors import ConfigError
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import (
    adapted_linears,
    adapter_parameters,
    match_targets,
    saved_module_parameters,
    target_names,
)

FEW, MORE = ("llama-tied", "gpt2"), ("phi", "opt-projected", "falcon-new")


def peft_counts(tiny, targets, r, use_dora=False, modules_to_save=None) -> tuple[int, int]:
    """Return the trainable parameters of adapters, and of modules that are trained as a whole."""
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        task_type="CAUSAL_LM", target_modules=targets, r=r, use_dora=use_dora, modules_to_save=modules_to_save
    )
    model = get_peft_model(copy.deepcopy(tiny.model), config)
    trained = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    saved = sum(count for name, count in trained.items() if "modules_to_save" in name)
    return sum(trained.values()) - saved, saved


@pytest.mark.parametrize("variants", [FEW, pytest.param(MORE, marks=pytest.mark.full)], ids=["few", "more"])
def test_all_linear_is_counted_as_in_peft(variants, make_tiny, subtests):
    for variant, use_dora in product(variants, (False, True)):
        with subtests.test(f"{variant} dora={use_dora}"):
            tiny = make_tiny(variant)
            shape = shape_of(tiny.config)
            names = match_targets(shape, "all-linear")
            counted = adapter_parameters(adapted_linears(shape, names), 4, use_dora)
            assert counted == peft_counts(tiny, "all-linear", 4, use_dora)[0]
            assert counted == peft_counts(tiny, list(names), 4, use_dora)[0]


NAMED = [
    ("llama", "q_proj, v_proj"),
    ("llama", "self_attn.o_proj"),
    ("gpt2", "c_proj"),
    ("gpt2", "attn.c_proj, c_fc"),
    ("opt-projected", "fc1, project_in"),
    ("phi3", "qkv_proj"),
]


def test_named_targets_are_counted_as_in_peft(make_tiny, subtests):
    for variant, targets in NAMED:
        with subtests.test(f"{variant}: {targets}"):
            tiny = make_tiny(variant)
            shape = shape_of(tiny.config)
            names = match_targets(shape, targets)
            assert adapter_parameters(adapted_linears(shape, names), 8) == peft_counts(tiny, list(names), 8)[0]


SAVED = [
    ("llama", "embed_tokens, lm_head"),
    ("llama-tied", "lm_head"),
    ("llama-tied", "embed_tokens"),
    ("llama", "norm"),
    ("gpt2", "wte, ln_1"),
    ("gpt_neox", "embed_in"),
    ("phi", "final_layernorm, lm_head"),
]


def test_modules_to_save_are_counted_as_in_peft(make_tiny, subtests):
    for variant, saved in SAVED:
        with subtests.test(f"{variant}: {saved}"):
            tiny = make_tiny(variant)
            shape = shape_of(tiny.config)
            target = target_names(shape)[0]
            match_targets(shape, target, saved)
            counted = peft_counts(tiny, [target], 4, modules_to_save=saved.split(", "))
            assert (
                adapter_parameters(adapted_linears(shape, [target]), 4),
                saved_module_parameters(shape, saved),
            ) == counted


UNMATCHED = [
    ("q_prj", "", ("q_prj", "did you mean q_proj", "down_proj", "tuning.target_modules")),
    ("query_key_value", "", ("the model has no module called query_key_value", "linear layers of the model")),
    ("lm_head", "", ("lm_head is not a linear layer inside the model", "tuning.modules_to_save")),
    ("embed_tokens", "", ("embed_tokens is not a linear", "add it to tuning.modules_to_save")),
    ("proj", "", ("called proj",)),
    ("", "", ("names no layer", "all-linear")),
    ("q_proj", "embed_token", ("did you mean embed_tokens", "tuning.modules_to_save")),
    ("all-linear", "gate_proj", ("gate_proj gets an adapter, so",)),
    ("nothing, q_proj, nowhere", "", ("nothing", "nowhere")),
]


def test_targets_that_match_nothing_are_refused_with_similar_names(make_tiny, subtests):
    for targets, saved, words in UNMATCHED:
        with subtests.test(f"{targets}, {saved}"):
            with pytest.raises(ConfigError) as caught:
                match_targets(shape_of(make_tiny("llama").config), targets, saved)
            assert all(word in str(caught.value) for word in words), str(caught.value)


def test_all_linear_leaves_out_the_head(make_tiny):
    shape = shape_of(make_tiny("llama").config)
    names = match_targets(shape, "All-Linear, q_proj")
    assert names == ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
