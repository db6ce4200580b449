"""Training of some layers: frozen weights stay to the byte, without state or copy, and the plan counts the others."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.runs.journals import read_all
from tests.tiny_models import TOWERS, save_tiny_model, tiny_model_with_towers
from tests.trained_runs import train
from tui_trainer.advice.rules.memory import method_patch
from tui_trainer.config.sections import Config, TuningSection
from tui_trainer.errors import ConfigError
from tui_trainer.exporting.trained_model import TrainedModel
from tui_trainer.launching.open_run import reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.models.heads import CAUSAL, auto_class
from tui_trainer.planning.plan_file import read_plan_file
from tui_trainer.runs.state import apply_events
from tui_trainer.tuning.freeze_layers import METHOD, planned_part, trained_names, trained_part

IDS = torch.arange(3, 43).reshape(2, 20)


@pytest.fixture
def model_of(tmp_path):
    def make(family, head=CAUSAL):
        folder = tmp_path / family
        if not folder.exists():
            save_tiny_model(folder, family)
        return auto_class(head).from_pretrained(folder)

    return make


def assert_plan_counts_what_trains(family, wanted, model_of, tmp_path):
    model = METHOD.apply(model_of(family), TuningSection(trainable_layers=wanted), seed=1, autocast=False)
    config = json.loads((tmp_path / family / "config.json").read_text())
    planned = planned_part(config, CAUSAL, 0, wanted)
    assert planned == trained_part(model, wanted)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert planned.parameters == sum(p.numel() for p in trained.values()) < sum(p.numel() for p in model.parameters())
    model(input_ids=IDS, labels=IDS).loss.backward()
    assert {name for name, p in model.named_parameters() if p.grad is not None} == trained.keys()
    assert planned.backward_layers == (1 if wanted == "last 1" else 2)
    assert planned.trains_output == (wanted[0] == "w" and (family == "gpt2" or model.config.tie_word_embeddings))


PARTS = ("last 1", "first 1", "norm|ln_", "wte|embed_tokens")


OTHER_FAMILIES = [("gpt2", PARTS), ("qwen2", PARTS[:1]), ("gemma", PARTS[1:2]), ("phi", PARTS[2:3])]


@pytest.mark.parametrize(
    "families", [[("llama", PARTS)], pytest.param(OTHER_FAMILIES, marks=pytest.mark.full)], ids=["few", "more"]
)
def test_a_plan_counts_what_a_run_trains(families, model_of, tmp_path, subtests):
    for family, parts in families:
        for wanted in parts:
            with subtests.test(f"{wanted} of {family}"):
                assert_plan_counts_what_trains(family, wanted, model_of, tmp_path)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.full] * (name != "gemma3")) for name in TOWERS]
)
def test_beside_towers_only_layers_of_the_language_model_train(family):
    model = tiny_model_with_towers(family)
    names = trained_names(model, "last 1")
    assert names and all(".language_model.layers.1." in name for name in names)
    assert trained_part(model, "last 1").backward_layers == 1
    with pytest.raises(ConfigError, match="matches no weight"):
        trained_names(model, "visual|vision_tower")


@pytest.mark.parametrize(
    "family",
    ["bert", *(pytest.param(name, marks=pytest.mark.full) for name in ("distilbert", "modernbert"))],
)
def test_the_head_of_a_classifier_always_trains(family, model_of):
    model = model_of(family, "sequence_classification")
    names = trained_names(model, "last 1")
    own = [name for name, _ in model.named_parameters() if not name.startswith(f"{model.base_model_prefix}.")]
    assert own and {*own} <= {*names}
    assert {name for name in names if name not in own and "pooler" not in name} == {
        name for name, _ in model.named_parameters() if ".1." in name and name not in own
    }


def test_a_choice_of_no_layer_or_of_all_is_refused(tmp_path, subtests):
    rows = [
        ("llama", "last 2", "selects 2 of 2 layers"),
        ("llama", "layers.7.", "matches no weight of the model: layers.7."),
        ("llama", ".", "matches all weights"),
        ("llama", "(", "is not a valid pattern"),
        ("t5", "last 1", "this model has 2 lists of layers"),
    ]
    configs = {}
    for family in ("llama", "t5"):
        configs[family] = json.loads((save_tiny_model(tmp_path / family, family) / "config.json").read_text())
    for family, wanted, words in rows:
        head = "seq2seq_lm" if family == "t5" else CAUSAL
        with subtests.test(f"{wanted} of {family}"):
            with pytest.raises(ConfigError, match=r"tuning\.trainable_layers") as refused:
                planned_part(configs[family], head, 0, wanted)
            assert words in str(refused.value)


@pytest.mark.parametrize(("wanted", "layers"), [("last 2", 2), ("last 4", 4), ("first 1", 8)])
def test_activations_are_saved_only_for_layers_that_gradients_reach(wanted, layers):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "num_attention_heads": 4}

    def kept_bytes(trainable_layers):
        model = AutoModelForCausalLM.from_config(LlamaConfig(**sizes, vocab_size=50)).train()
        if trainable_layers:
            METHOD.apply(model, TuningSection(trainable_layers=trainable_layers), seed=1, autocast=False)
            assert trained_part(model, trainable_layers).backward_layers == layers
        own, found = {p.untyped_storage().data_ptr() for p in model.parameters()}, {}
        keep = []

        def pack(tensor):
            keep.append(tensor)
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in own:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            hidden = model.model(IDS).last_hidden_state
        assert hidden.requires_grad
        return sum(found.values())

    share = kept_bytes(wanted) / kept_bytes("")
    # The frozen weights within them save less.
    assert layers / 8 * 0.7 < share < layers / 8 + 0.02


def test_advice_of_another_method_drops_the_chosen_layers():
    chosen = Config(tuning=TuningSection(method="full", trainable_layers="last 2"))
    for method in ("lora", "qlora"):
        assert method_patch(chosen, method) == {"tuning.method": method, "tuning.trainable_layers": ""}
        assert method_patch(Config(), method) == {"tuning.method": method}


def settings(tmp_path, family="llama", **changes):
    folder = tmp_path / family
    if not folder.exists():
        save_tiny_model(folder, family)
    return {
        "model.init": "pretrained", "model.model_name_or_path": folder, "tuning.method": "full",
        "tuning.trainable_layers": "last 1", "training.max_steps": 6, "checkpoint.save_steps": 3, **changes,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"training.gradient_checkpointing": "true", "training.loss_chunk_tokens": 16}),
        pytest.param(
            "qwen2", {"tuning.trainable_layers": "lm_head", "training.loss_chunk_tokens": 16}, marks=pytest.mark.full
        ),
    ],
)
def test_frozen_weights_stay_and_have_no_state_and_no_copy(family, changes, tmp_path):
    run = train(tmp_path, "causal_lm", settings(tmp_path, family, **changes))
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (tmp_path / family, run.model))
    wanted = changes.get("tuning.trainable_layers", "layers.1.")
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    saved = load_file(run.checkpoints / "step-6" / METHOD.weights_file)
    assert changed and all(wanted in name for name in changed) and changed == saved.keys()
    state = load_file(run.checkpoints / "step-6" / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in state} == changed
    plan = read_plan_file(run.plan.read_bytes())
    assert plan.trained_parameters.value == sum(tensor.numel() for tensor in saved.values())
    assert plan.training_setup.backward_layers == (0 if wanted == "lm_head" else 1)


@pytest.mark.full
def test_a_run_is_resumed_to_the_bit_and_its_checkpoint_can_be_tried(tmp_path):
    (tmp_path / "whole").mkdir()
    run = train(tmp_path / "whole", "causal_lm", settings(tmp_path))
    whole, losses = load_file(run.model / "model.safetensors"), list(apply_events(read_all(run.journal)).losses)
    (run.model).rename(tmp_path / "model")
    tried = TrainedModel.of(run, unfinished=True).load()
    assert all(torch.equal(tensor, tried.state_dict()[name]) for name, tensor in whole.items())
    for path in run.checkpoints.glob("step-6"):
        path.rename(tmp_path / "step-6")
    assert execute_run(reopen_run(run)).exit_code == 0
    again = load_file(run.model / "model.safetensors")
    assert all(torch.equal(tensor, again[name]) for name, tensor in whole.items())
    assert list(apply_events(read_all(run.journal)).losses) == losses
