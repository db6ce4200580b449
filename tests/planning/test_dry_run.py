from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, masking_utils

from tests.combinations import first_by_default
from tests.planning.families import config_of, setup_of
from tui_trainer.config.load import Request
from tui_trainer.launching.start import load_config
from tui_trainer.models.heads import auto_class
from tui_trainer.models.shape import shape_of
from tui_trainer.planning.memory import dry_run, dry_run_child
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.memory.layers import Layer, has_formula
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup
from tui_trainer.tasks import find_task

PROFILES = Path(__file__).parents[2] / "profiles"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path))
    return tmp_path


def test_a_dry_run_in_a_child_agrees_with_the_formula_and_is_kept(monkeypatch):
    config, setup = config_of("llama"), setup_of("llama", lora=True)
    found = measure_layer(config, setup, 24)
    assert found.layer is not None, found.reason
    assert found.layer.kept == Layer(shape_of(config), setup, 24).kept
    monkeypatch.setattr(dry_run, "ask_child", lambda *question: pytest.fail("the answer was not kept"))
    assert measure_layer(config, setup, 24) == found


def test_what_memory_does_not_depend_on_asks_no_second_time(monkeypatch):
    asked = []
    monkeypatch.setattr(
        dry_run, "ask_child", lambda *question: asked.append(question) or '{"kept": 1, "made": 3, "wide": 1}'
    )
    for changes in ({}, {"optim": "sgd"}, {"packed": True}):
        found = measure_layer(config_of("llama"), setup_of("llama", **changes), 24)
        assert found.layer == LayerBytes(kept=1, made=3, wide=1)
    assert len(asked) == 2


def test_a_model_that_transformers_does_not_know_is_not_known():
    found = measure_layer({"model_type": "no-such-family"}, setup_of("llama"), 24)
    assert found.layer is None
    assert found.reason.startswith("not known: the dry run ended with: transformers does not know")
    assert "\n" not in found.reason


def test_a_dry_run_that_takes_too_long_is_given_up():
    found = measure_layer(config_of("llama"), setup_of("llama"), 24, timeout_seconds=0.01)
    assert found.layer is None
    assert "took more than" in found.reason


@pytest.mark.parametrize("answer", ["", "{", "[]", '{"kept": 3, "made": 3}', '{"kept": null, "made": 1, "wide": 0}'])
def test_an_answer_that_is_none_is_not_known(monkeypatch, answer):
    monkeypatch.setattr(dry_run, "ask_child", lambda *question: answer)
    assert measure_layer(config_of("llama"), setup_of("llama"), 24).layer is None


_SMALL = {
    "hidden_size": 64, "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 200,
    "intermediate_size": 96, "max_position_embeddings": 256, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_HALVES = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 200, "max_position_embeddings": 256, "pad_token_id": 0,
    "decoder_start_token_id": 2, "is_encoder_decoder": True,
}  # fmt: skip
# Attention of other kinds, experts, recurrence, and layers that differ from one another.
UNLISTED = {
    "olmo2": _SMALL,
    "gpt_neox": _SMALL,
    "gemma2": {**_SMALL, "head_dim": 16},
    "bloom": {"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 200},
    "mamba": {"hidden_size": 64, "num_hidden_layers": 3, "state_size": 4, "vocab_size": 200},
    "recurrent_gemma": {**_SMALL, "head_dim": 16, "lru_width": 64, "attention_window_size": 32},
    "lfm2": {**_SMALL, "layer_types": ["conv", "conv", "full_attention", "conv", "conv"]},
    "olmoe": {**_SMALL, "num_experts": 4, "num_experts_per_tok": 2},
    "modernbert": {**_SMALL, "cls_token_id": 1, "sep_token_id": 2},
    "m2m_100": _HALVES,
}
_HEADS = {"modernbert": "sequence_classification", "m2m_100": "seq2seq_lm"}


@pytest.fixture
def unpatched(monkeypatch):
    """The child changes torch and transformers, as it ends with its answer; a test goes on."""
    monkeypatch.setattr(torch.nn.Module, "_apply", torch.nn.Module._apply)
    monkeypatch.setattr(masking_utils, "find_packed_sequence_indices", masking_utils.find_packed_sequence_indices)


@pytest.mark.parametrize(
    "family", first_by_default(["recurrent_gemma", *(name for name in UNLISTED if name != "recurrent_gemma")])
)
def test_an_architecture_that_nobody_listed_is_counted(family, unpatched):
    """As much is kept as the whole model really keeps of one more row, with numbers."""
    head = _HEADS.get(family, "causal_lm")
    config = {"model_type": family, **UNLISTED[family]}
    setup = TrainingSetup(head=head, target_tokens=8 if head == "seq2seq_lm" else 0)
    assert not has_formula(shape_of(config, head=head))
    counted = dry_run_child.count(config, asdict(setup), 24)
    layers = shape_of(config, head=head).layers
    assert counted["kept"] == pytest.approx(_kept_of_a_row(config, head) / 24 / layers, rel=0.15)
    assert counted["made"] >= counted["kept"]


def _kept_of_a_row(config, head):
    """Bytes that autograd keeps of one more row, in a model with numbers whose head sees one token."""
    fields = {name: value for name, value in config.items() if name != "model_type"}
    model = auto_class(head).from_config(AutoConfig.for_model(config["model_type"], **fields)).train()
    weights = {weight.untyped_storage().data_ptr() for weight in model.parameters()}
    if output := model.get_output_embeddings():
        output.register_forward_pre_hook(lambda module, given: (given[0][:, :1],))
    found = []
    for rows in (1, 2):
        kept = {}

        def keep(tensor, kept=kept):
            storage = tensor.untyped_storage()
            kept[storage.data_ptr()] = storage
            return tensor

        inputs = {"input_ids": torch.randint(3, 200, (rows, 24))}
        if head == "seq2seq_lm":
            inputs["decoder_input_ids"] = torch.randint(3, 200, (rows, 8))
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(**inputs, **({"use_cache": False} if head != "sequence_classification" else {}))
        found.append(sum(storage.nbytes() for key, storage in kept.items() if key not in weights))
    return found[1] - found[0]


# The one that leaves the model to the user.
OPEN = "finetune"


@pytest.mark.parametrize("path", sorted(PROFILES.glob("recipes/*.toml")), ids=lambda path: path.stem)
def test_the_first_plan_of_a_shipped_recipe_asks_no_child(path):
    config = load_config(Request(profile=path.stem)).config
    assert (path.stem == OPEN) or has_formula(find_task(config.task.type).model_shape(config, 1000, 3))
