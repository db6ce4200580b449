"""Facts and memory of multimodal checkpoints: the language model, and its towers beside it."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_models import TOWERS, save_tiny_model_with_towers, tiny_model_with_towers
from tui_trainer.config.sections import Config, TuningSection
from tui_trainer.errors import ConfigError
from tui_trainer.models.facts import find_model
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.problems import model_problems
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import adapted_linears, adapter_parameters, match_targets
from tui_trainer.models.towers import TEXT_TRAINED_TYPES, language_model, move_to_device, tower_modules
from tui_trainer.planning.memory.host import host_memory
from tui_trainer.planning.memory.parts import Static
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tuning import find_method

# Published configs, without fields that decide no size. The parameters are those of the files on the hub.
_SIGLIP = {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
           "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False}  # fmt: skip
PUBLISHED = {
    "gemma-3-4b": (
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "mm_tokens_per_image": 256,
         "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                         "num_hidden_layers": 34, "sliding_window": 1024},
         "vision_config": _SIGLIP},
        4_300_079_472, 419_816_304,
    ),
    # The fields of its language model are at the top level of the file.
    "Qwen2.5-VL-7B": (
        {"model_type": "qwen2_5_vl", "hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28,
         "num_hidden_layers": 28, "num_key_value_heads": 4, "tie_word_embeddings": False, "vocab_size": 152064,
         "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
         "vision_config": {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16,
                           "out_hidden_size": 3584, "patch_size": 14, "fullatt_block_indexes": [7, 15, 23, 31]}},
        8_292_166_656, 676_550_144,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("towers")
    for family in TOWERS:
        save_tiny_model_with_towers(place / family, family)
    return place


@pytest.mark.full
@pytest.mark.versions
def test_the_language_model_and_its_towers_are_counted_separately(folders, subtests):
    assert set(TOWERS) == set(TEXT_TRAINED_TYPES)
    for family in TOWERS:
        with subtests.test(family):
            facts, model = find_model(str(folders / family)), tiny_model_with_towers(family)
            shape, towers = facts.shape, tower_modules(model)
            frozen = sum(weight.numel() for tower in towers.values() for weight in tower.parameters())
            assert sum(shape.towers.values()) == frozen > 0
            whole = model.num_parameters()
            assert (shape.loaded_parameters, shape.parameters) == (whole, whole - frozen)
            counted = shape_of(facts.config)
            assert (counted.parameters, counted.towers) == (shape.parameters, shape.towers)
            layers = language_model(model)[1]
            assert (shape.layers, shape.hidden_size, shape.vocabulary) == (2, 32, layers.config.vocab_size)
            # Of Qwen 3.5 one layer has attention and one is recurrent.
            counts = {linear.count for linear in shape.linears if not linear.is_head}
            assert counts == ({1, 2} if family == "qwen3_5" else {2})
            assert model_problems(facts, "pretrained", trust_remote_code=False) == []


@pytest.mark.full
def test_published_configs_have_the_published_parameters(subtests):
    for name in PUBLISHED:
        with subtests.test(name):
            config, parameters, towers = PUBLISHED[name]
            shape = shape_of(config)
            assert (shape.loaded_parameters, sum(shape.towers.values())) == (parameters, towers)


@pytest.mark.full
def test_embeddings_are_tied_if_config_and_files_name_no_head(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "mistral3", tmp_path / "silent"))
    config = json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"]
    (folder / "config.json").write_text(json.dumps(config))
    assert not find_model(str(folder)).shape.tied_embeddings
    assert shape_of(config).tied_embeddings


LOST = [("gemma3", "vision_tower", "parameters in module vision_tower, but config.json specifies 5,408"),
 ("qwen2_5_vl", "visual", "the weights have 0 parameters in module visual"),
 ("qwen3_vl", "embed_tokens", "the weights have no embed_tokens.weight"),
 ("mistral3", "layers.1", "config.json specifies 2 layers, but the weights have 1")]  # fmt: skip


@pytest.mark.full
def test_weights_that_lack_a_part_are_refused(folders, tmp_path, subtests):
    for family, lost, words in LOST:
        with subtests.test(words):
            folder = Path(shutil.copytree(folders / family, tmp_path / family))
            file = folder / "model.safetensors"
            tensors = {name: tensor for name, tensor in load_file(file).items() if lost not in name}
            save_file(tensors, file, metadata={"format": "pt"})
            found = model_problems(find_model(str(folder)), "pretrained", trust_remote_code=False)
            assert any(words in problem.message for problem in found), found


def test_towers_take_memory_for_weights_but_not_for_gradients(folders):
    shape = find_model(str(folders / "gemma3")).shape
    frozen = sum(shape.towers.values())
    plain = replace(shape, towers={})
    adapters = TrainingSetup(method="lora", lora_targets=("q_proj",), lora_rank=4)
    packed = replace(adapters, method="qlora", four_bits=FourBits(), weights="bfloat16")
    for setup in (TrainingSetup(method="full"), adapters, packed):
        static, without = Static(shape, setup), Static(plain, setup)
        assert static.weights().bytes - without.weights().bytes == frozen * static.weight_number_bytes
        assert static.trained_parameters == without.trained_parameters and static.optimizer() == without.optimizer()


@pytest.mark.full
def test_towers_on_the_host_take_no_memory_of_the_card(folders):
    shape = find_model(str(folders / "gemma3")).shape
    frozen = 2 * sum(shape.towers.values())
    on_card = TrainingSetup(device="cuda", weights="bfloat16")
    on_host = replace(on_card, host_towers=True)
    assert Static(shape, on_card).weights().bytes - Static(shape, on_host).weights().bytes == frozen
    assert host_parts(shape, on_card, Config())["towers"] == 0
    assert host_parts(shape, on_host, Config())["towers"] == frozen
    for other in (replace(on_host, device="cpu"), replace(on_host, cpu_offload=True)):
        assert not other.towers_on_host
        assert Static(shape, other).weights() == Static(shape, replace(other, host_towers=False)).weights()


def host_parts(shape, setup, config):
    parts, _ = host_memory(shape, setup, config, loader_workers=0, processes=2)
    return Counter({part.name: part.bytes // 2 for part in parts})


@pytest.mark.full
@pytest.mark.versions
def test_a_model_moves_to_its_device_without_its_towers(subtests):
    for family, method in product(TOWERS, ("full", "lora")):
        with subtests.test(f"{family} {method}"):
            model = tiny_model_with_towers(family)
            adapted = find_method(method).apply(model, TuningSection(method=method), seed=0, autocast=False)
            names = {name for name, _ in adapted.named_parameters(remove_duplicate=False)}
            move_to_device(adapted, torch.device("meta"), towers_on_host=True)
            inside = {f"{path}." for path in tower_modules(adapted)}
            assert inside and {name for name, _ in adapted.named_parameters(remove_duplicate=False)} == names
            for name, weight in adapted.named_parameters(remove_duplicate=False):
                assert weight.device.type == ("cpu" if name.startswith(tuple(inside)) else "meta"), name
            assert adapted.device.type == "meta"
            move_to_device(adapted, torch.device("meta"), towers_on_host=False)
            assert {weight.device.type for weight in adapted.parameters()} == {"meta"}


def test_adapters_are_counted_in_the_language_model_only(folders):
    shape = find_model(str(folders / "qwen3_vl")).shape
    with pytest.raises(ConfigError, match="the model has no module called qkv"):
        match_targets(shape, "qkv")
    # q 32 x 32, k and v 32 x 16, o 32 x 32, of two layers, each with both narrow matrices.
    assert adapter_parameters(adapted_linears(shape, ("q_proj", "k_proj", "v_proj", "o_proj")), 4) == 2 * 4 * (
        64 + 48 + 48 + 64
    )


def test_other_multimodal_kinds_are_refused_with_the_supported_ones(folders, tmp_path):
    folder = Path(shutil.copytree(folders / "gemma3", tmp_path / "other"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llava"}))
    with pytest.raises(ConfigError, match=r"is not supported; these types can be trained on text: gemma3, m"):
        find_model(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "llama4"}))
    with pytest.raises(ConfigError, match=r"every forward pass of this model class fails in transformers 5\.24"):
        find_model(str(folder))
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["Gemma3ForSequenceClassification"]}))
    with pytest.raises(ConfigError, match="is a text classifier"):
        find_model(str(folder))
