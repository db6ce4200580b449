"""Adapter parameters of a regular expression or of named expert tensors, counted as peft makes them."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch

from tests.planning.families import kept_bytes
from tests.tiny_models import tiny_model, tiny_model_with_towers
from tui_trainer.config.sections import TuningSection
from tui_trainer.errors import ConfigError
from tui_trainer.models.adapter_targets import find_adapted
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import adapter_parameters, match_targets
from tui_trainer.planning.memory.parts import ModelMemory
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tuning import find_method

pytestmark = pytest.mark.versions
EXPERTS = "experts.gate_up_proj, experts.down_proj"


def found_in(model, **settings):
    tuning = TuningSection(method="lora", r=4, **settings)
    config = json.loads(model.config.to_json_string())
    shape = shape_of(config)
    match_targets(shape, tuning.target_modules, tuning.modules_to_save, tuning.target_parameters)
    return find_adapted(config, shape, tuning, tuning.modules_to_save), tuning


COUNTED = [
    ("llama", {"target_modules": r".*\.(q|v)_proj"}),
    ("llama", {"target_modules": r"model\.layers\.1\..*_proj", "use_dora": True}),
    ("mixtral", {"target_modules": "all-linear"}),
    ("gpt2", {"target_modules": r".*h\.0\.attn\.c_(attn|proj)"}),
    ("mixtral", {"target_modules": "q_proj", "target_parameters": EXPERTS}),
    ("mixtral", {"target_modules": "", "target_parameters": "gate.weight, experts.down_proj"}),
    ("qwen3_moe", {"target_modules": "all-linear"}),
    ("qwen3_moe", {"target_modules": r".*\.[qk]_proj", "target_parameters": "experts.down_proj"}),
    ("gpt_oss", {"target_modules": "all-linear"}),
    ("gpt_oss", {"target_modules": "o_proj", "target_parameters": EXPERTS}),
]


@pytest.mark.parametrize("cases", [COUNTED[:3], pytest.param(COUNTED[3:], marks=pytest.mark.full)], ids=["few", "more"])
def test_adapter_parameters_are_counted_as_peft_trains_them(cases, subtests):
    for family, settings in cases:
        with subtests.test(f"{family} {settings}"):
            model = tiny_model(family)
            parts, tuning = found_in(model, **settings)
            adapted = find_method("lora").apply(model, tuning, seed=0, autocast=False)
            trained = {name: weight for name, weight in adapted.named_parameters() if weight.requires_grad}
            counted = adapter_parameters(parts.linears, tuning.r, tuning.use_dora)
            counted += sum(tensor.adapter_parameters for tensor in parts.experts)
            assert trained and counted == sum(weight.numel() for weight in trained.values())
            assert sum(layer.count for layer in parts.linears) == sum(
                ".lora_A." in name and ".experts." not in name and ".gate." not in name for name in trained
            )


REFUSED = [
    ("llama", {"target_modules": r".*\.queries?"}, ("matches no layer", "model.layers.0.self_attn.q_proj")),
    ("llama", {"target_modules": "(q_proj"}, ("is not a valid regular expression",)),
    ("llama", {"target_modules": ".*(q_proj|lm_head)"}, ("matches lm_head (the head)", "not a linear layer inside")),
    ("llama", {"target_modules": r".*self_attn.*"}, ("(LlamaAttention), which is not a linear layer",)),
    ("llama", {"target_modules": r".*\.[qv]_proj", "modules_to_save": "v_proj"}, ("which is fully trained",)),
    ("llama", {"target_parameters": "experts.down_proj"}, ("no tensor of the model is called experts.down_proj",)),
    ("mixtral", {"target_parameters": "experts.up"}, ("called experts.up", "mlp.experts.gate_up_proj")),
    ("mixtral", {"target_parameters": "q_proj.weight"}, ("is part of a linear layer or an embedding",)),
    ("mixtral", {"target_modules": r"model\.layers\.0\.self_attn\.q_proj|.*\.1\..*v_proj"}, ("would not adapt",)),
    ("mixtral", {"target_modules": "q_proj", "target_parameters": EXPERTS, "lora_dropout": 0.1}, ("lora_dropout",)),
    ("mixtral", {"target_modules": "all-linear", "use_dora": True}, ("no DoRA for adapters on expert tensors",)),
    ("gpt_oss", {"target_parameters": "gate_up_proj_bias"}, ("is part of a linear layer",)),
]


@pytest.mark.parametrize("cases", [REFUSED[:4], pytest.param(REFUSED[4:], marks=pytest.mark.full)], ids=["few", "more"])
def test_targets_that_cannot_have_an_adapter_are_refused_with_the_names_that_can(cases, subtests):
    for family, settings, words in cases:
        with subtests.test(f"{family} {settings}"):
            with pytest.raises(ConfigError) as caught:
                found_in(tiny_model(family), **settings)
            assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.full
def test_an_expression_that_matches_a_vision_tower_is_refused():
    model = tiny_model_with_towers("gemma3")
    config = json.loads(model.config.to_json_string())
    shape = shape_of(config)
    inside = TuningSection(method="lora", r=4, target_modules=r".*language_model.*\.q_proj")
    parts = find_adapted(config, shape, inside, "")
    assert [(layer.name, layer.count) for layer in parts.linears] == [("q_proj", 2)]
    with pytest.raises(ConfigError, match=r"frozen parts outside the language model: .*vision_tower"):
        find_adapted(config, shape, TuningSection(method="lora", target_modules=r".*\.q_proj"), "")


@pytest.mark.e2e
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_adapted_experts_keep_as_many_bytes_as_planned(family):
    """Compare the part that does not grow with the rows: the sum of each tensor and its update."""
    parts, tuning = found_in(tiny_model(family), target_modules="q_proj", target_parameters=EXPERTS)
    adapted = find_method("lora").apply(tiny_model(family), tuning, seed=0, autocast=False)
    adapted.train()

    def run(rows):
        adapted(input_ids=torch.arange(3, 19).repeat(rows, 1), use_cache=False)

    one, two = (kept_bytes(adapted, partial(run, rows)) for rows in (1, 2))
    shape = shape_of(json.loads(tiny_model(family).config.to_json_string()))
    [planned] = ModelMemory(shape, TrainingSetup(method="lora", lora_experts=parts.experts), 16).adapted_experts()
    largest = max(tensor.numbers // tensor.count for tensor in parts.experts)
    narrow = sum(tensor.adapter_parameters for tensor in parts.experts)
    assert 0 <= 2 * one - two - (planned.bytes - 4 * largest) <= 4 * narrow + 4096
