"""QLoRA: what is packed into 4 bits, what is not, and that the adapter is loaded beside the model in 16 bits.

bitsandbytes packs on a CPU as well, so none of this needs a GPU. Layers are 64 wide: outside of training, on a CPU with
AVX512-BF16, bitsandbytes 0.50 fails unless a row is whole blocks of 64 weights and the rows are a multiple of 32.
"""

from __future__ import annotations

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText

from tests.tiny_models import PACKED_TOWERS, TRAINED, save_tiny_model, save_tiny_model_with_towers
from tui_trainer.config.sections import Config, ModelSection, QuantizationSection, TuningSection
from tui_trainer.errors import ConfigError
from tui_trainer.models.added_tokens import resize_tables
from tui_trainer.models.facts import find_model
from tui_trainer.models.four_bits import FourBits, quantised_linears, refuse_poisoned_files
from tui_trainer.models.heads import CLASSIFYING_HEADS, Labels, lacks_head
from tui_trainer.models.loading import load_pretrained
from tui_trainer.models.towers import tower_modules
from tui_trainer.training.components import checkpoint_activations
from tui_trainer.tuning import find_method
from tui_trainer.tuning.qlora import METHOD

pytestmark = pytest.mark.versions
IDS = torch.arange(3, 43).reshape(2, 20)
PACKED = "Params4bit"
_WIDE = {"hidden_size": 64, "intermediate_size": 128}
WIDE = {
    "llama": _WIDE,
    "qwen2": _WIDE,
    "gemma": {**_WIDE, "head_dim": 16},
    "phi": _WIDE,
    "gpt2": {"n_embd": 64},
    "bert": _WIDE,
    "roberta": _WIDE,
    "distilbert": {"dim": 64, "hidden_dim": 128},
}
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
LABELS = Labels(("no", "yes", "both"), "single_label_classification")
ENDS = Labels(("start", "end"))


@pytest.fixture(scope="module")
def bitsandbytes():
    return pytest.importorskip("bitsandbytes")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory):
    made = {}

    def folder(family):
        if family not in made:
            made[family] = save_tiny_model(tmp_path_factory.mktemp("models") / family, family, **WIDE[family])
        return made[family]

    return folder


def settings(folder, *, quantization=None, **tuning):
    return Config(
        model=ModelSection(model_name_or_path=str(folder)),
        tuning=TuningSection(**{"method": "qlora", "r": 4, **tuning}),
        quantization=QuantizationSection(**(quantization or {})),
    )


def labels_of(head):
    return ENDS if head == "question_answering" else LABELS if head in CLASSIFYING_HEADS else None


def shape_and_bits(config, head="causal_lm"):
    labels = labels_of(head)
    shape = find_model(config.model.model_name_or_path, head=head, labels=len(labels.names) if labels else 0).shape
    return shape, FourBits.of(config, shape)


def packed_model(folder, dtype=torch.float32, head="causal_lm", **more):
    config = settings(folder, **more)
    _, four_bits = shape_and_bits(config, head)
    torch.manual_seed(1)
    labels = labels_of(head)
    return load_pretrained(folder, config.model, dtype, head=head, labels=labels, pad_token_id=0, four_bits=four_bits)


def adapted(model, **tuning):
    return METHOD.apply(model, TuningSection(**{"method": "qlora", "r": 4, **tuning}), seed=7, autocast=False)


def packed_names(model):
    return {name for name, weight in model.named_parameters() if type(weight).__name__ == PACKED}


def loss_of(model):
    return model(input_ids=IDS, labels=IDS).loss


def trained(model, steps=6):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.02)
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.full] * (name != "llama")) for name in TRAINED]
)
def test_only_the_matrices_of_the_layers_are_packed_as_the_plan_counts_them(family, folder_of, bitsandbytes):
    model = packed_model(folder_of(family), torch.bfloat16)
    shape, four_bits = shape_and_bits(settings(folder_of(family)))
    packed = packed_names(model)
    weights = dict(model.named_parameters())
    linears = quantised_linears(shape, four_bits)
    assert len(packed) == sum(linear.count for linear in linears) > 0
    assert sum(weights[name].numel() * 2 for name in packed) == sum(linear.matrix_parameters for linear in linears)
    assert {weights[name].dtype for name in weights.keys() - packed} == {torch.bfloat16}
    ends = (model.get_input_embeddings().weight, model.get_output_embeddings().weight)
    assert all(type(weight).__name__ != PACKED for weight in ends)


def assert_head_trains_unpacked(family, head, folder_of):
    folder = folder_of(family)
    model = packed_model(folder, head=head)
    shape, four_bits = shape_and_bits(settings(folder), head)
    packed = packed_names(model)
    assert len(packed) == sum(linear.count for linear in quantised_linears(shape, four_bits)) > 0
    whole = adapted(model)
    moving = {name: weight for name, weight in whole.named_parameters() if weight.requires_grad}
    heads = {name for name in moving if "modules_to_save" in name}
    assert any(part in name for name in heads for part in ("score", "classifier", "qa_outputs"))
    assert {"lora_" in name for name in moving.keys() - heads} == {True}
    before = {name: moving[name].clone() for name in heads}
    result = whole(input_ids=IDS, attention_mask=torch.ones_like(IDS))
    logits = result.start_logits + result.end_logits if head == "question_answering" else result.logits
    logits.float().square().sum().backward()
    with torch.no_grad():
        for weight in moving.values():
            weight -= 0.1 * weight.grad
    assert all(not torch.equal(before[name], moving[name]) for name in heads)


def test_a_new_head_of_a_classifier_is_not_packed_and_trains_with_the_adapters(folder_of, bitsandbytes):
    assert_head_trains_unpacked("bert", "sequence_classification", folder_of)


@pytest.mark.full
def test_no_new_head_of_any_family_is_packed(folder_of, bitsandbytes, subtests):
    for family in ("bert", "roberta", "distilbert", "llama", "gpt2"):
        for head in CLASSIFYING_HEADS:
            if not lacks_head(family, head):
                with subtests.test(f"{family} {head}"):
                    assert_head_trains_unpacked(family, head, folder_of)


@pytest.mark.full
@pytest.mark.parametrize("family", PACKED_TOWERS)
def test_in_a_model_with_towers_only_the_language_model_is_packed_and_adapted(family, bitsandbytes, tmp_path):
    wide = {**_WIDE, "num_attention_heads": 8, "num_key_value_heads": 4}
    folder = save_tiny_model_with_towers(tmp_path / family, family, **wide)
    model = packed_model(folder, torch.bfloat16)
    shape, four_bits = shape_and_bits(settings(folder))
    packed, weights = packed_names(model), dict(model.named_parameters())
    assert {name.split(".")[-2] for name in packed} == set(LAYERS)
    assert all(".language_model." in name for name in packed)
    assert len(packed) == sum(linear.count for linear in quantised_linears(shape, four_bits)) == 2 * len(LAYERS)
    assert {weights[name].dtype for name in weights.keys() - packed} == {torch.bfloat16}
    stored = dict(AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.bfloat16).named_parameters())
    towers = [name for path in tower_modules(model) for name in weights if name.startswith(f"{path}.")]
    assert towers and all(torch.equal(weights[name], stored[name]) for name in towers)

    whole = adapted(packed_model(folder))
    first = loss_of(whole).item()
    last = loss_of(trained(whole)).item()
    METHOD.save_model(whole, tmp_path / "adapter")
    learnt = load_file(tmp_path / "adapter" / METHOD.weights_file)
    assert learnt and all(".language_model." in name for name in learnt)
    base = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32)
    merged = PeftModel.from_pretrained(base, tmp_path / "adapter").eval().merge_and_unload()
    assert loss_of(merged).item() < first - 0.5 * (first - last)


def test_modules_that_are_trained_as_a_whole_stay_in_16_bits(folder_of, bitsandbytes):
    folder = folder_of("qwen2")
    more = {"modules_to_save": "down_proj", "target_modules": "q_proj"}
    model = packed_model(folder, torch.bfloat16, **more)
    assert packed_names(model) and not any("down_proj" in name for name in packed_names(model))
    shape, four_bits = shape_and_bits(settings(folder, **more))
    assert "down_proj" not in {linear.name for linear in quantised_linears(shape, four_bits)}
    saved = {n: p.dtype for n, p in adapted(model, **more).named_parameters() if p.requires_grad and "down_proj" in n}
    assert set(saved.values()) == {torch.bfloat16}


def test_no_frozen_weight_is_cast_and_adapters_are_fp32(folder_of, bitsandbytes):
    model = adapted(packed_model(folder_of("llama"), torch.bfloat16))
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    assert {weight.dtype for weight in model.parameters() if not weight.requires_grad} == {torch.uint8, torch.bfloat16}


@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set")  # peft corrects it for GPT-2's layers, which lie crosswise
@pytest.mark.parametrize("family", ["llama", pytest.param("gpt2", marks=pytest.mark.full)])
def test_an_adapter_is_loaded_by_plain_peft_beside_the_unpacked_model_and_merged(
    family, folder_of, bitsandbytes, tmp_path
):
    model = adapted(packed_model(folder_of(family)))
    before = loss_of(model).item()
    after = loss_of(trained(model)).item()
    METHOD.save_model(model, tmp_path / "adapter")
    fields = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(folder_of(family))
    whole = AutoModelForCausalLM.from_pretrained(folder_of(family), dtype=torch.float32)
    again = PeftModel.from_pretrained(whole, tmp_path / "adapter").eval()
    stored = load_file(tmp_path / "adapter" / METHOD.weights_file)
    assert stored.keys() == METHOD.weights(again).keys()
    assert all(torch.equal(tensor, stored[name]) for name, tensor in METHOD.weights(again).items())
    merged = again.merge_and_unload()
    # The weights are rounded to 4 bits on one side only: what was learnt carries over, not the last digit.
    assert loss_of(merged).item() < before - 0.5 * (before - after)


def test_checkpointed_layers_give_the_same_gradients(folder_of, bitsandbytes):
    found = []
    for checkpointed in (False, True):
        model = adapted(packed_model(folder_of("llama"))).train()
        if checkpointed:
            checkpoint_activations(model)
        loss_of(model).backward()
        found.append({name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad})
    plain, again = found
    assert plain.keys() == again.keys() and all(gradient is not None for gradient in plain.values())
    assert any(float(gradient.abs().max()) > 0 for gradient in plain.values())
    for name, gradient in plain.items():
        torch.testing.assert_close(again[name], gradient)


@pytest.mark.parametrize(("double", "bits"), [(True, 4.127), (False, 4.5)])
def test_a_packed_weight_takes_the_bits_that_are_planned(double, bits, bitsandbytes):
    assert FourBits(double_quant=double).bits_per_weight == pytest.approx(bits, abs=1e-3)
    weight = bitsandbytes.nn.Params4bit(torch.randn(1024, 1024), blocksize=64, compress_statistics=double)
    packed = weight.to("cpu")
    state = packed.quant_state
    scales = [state.absmax, *([state.state2.absmax] if double else [])]
    found = packed.nbytes + sum(tensor.nbytes for tensor in scales)
    assert 8 * found / 1024**2 == pytest.approx(bits, rel=0.001)


def test_settings_reach_bitsandbytes(folder_of, bitsandbytes):
    chosen = {
        "bnb_4bit_quant_type": "fp4", "bnb_4bit_use_double_quant": False, "bnb_4bit_compute_dtype": "float32",
    }  # fmt: skip
    plain, other = (packed_model(folder_of("llama"), torch.bfloat16, quantization=q) for q in ({}, chosen))
    one, two = (model.model.layers[0].mlp.up_proj for model in (plain, other))
    assert (one.weight.quant_type, one.weight.compress_statistics, one.compute_dtype) == ("nf4", True, torch.bfloat16)
    assert (two.weight.quant_type, two.weight.compress_statistics, two.compute_dtype) == ("fp4", False, torch.float32)


def test_weights_that_are_not_finite_are_refused_before_they_are_packed(tmp_path):
    folder = save_tiny_model(tmp_path / "llama", "llama")
    refuse_poisoned_files(folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    weights[name][3, 5] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=name):
        refuse_poisoned_files(folder)
    with pytest.raises(ConfigError, match="not finite"):
        load_pretrained(folder, ModelSection(), torch.float32, four_bits=FourBits())
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    torch.save(
        {"a.weight": torch.ones(2, 2), "b.weight": torch.full((2,), float("inf"))}, pickled / "pytorch_model.bin"
    )
    with pytest.raises(ConfigError, match=r"b\.weight"):
        refuse_poisoned_files(pickled)


def test_only_qlora_has_weights_in_4_bits(folder_of):
    for method in ("full", "lora"):
        assert shape_and_bits(settings(folder_of("llama"), method=method))[1] is None
    assert shape_and_bits(settings(folder_of("llama")))[1] == FourBits()
    assert find_method("qlora") is METHOD and METHOD.weights_file == find_method("lora").weights_file


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2", marks=pytest.mark.full)])
def test_new_tokens_train_beside_weights_in_four_bits(bitsandbytes, folder_of, family, tmp_path):
    """The tables of tokens are never packed: their new rows train and are loaded as those of LoRA."""
    config = settings(folder_of(family))
    shape = find_model(str(folder_of(family))).shape
    model = load_pretrained(folder_of(family), config.model, torch.float32, four_bits=FourBits.of(config, shape))
    ids = range(384, 387)
    resize_tables(model, 448, ids)
    adapted = METHOD.apply(model, config.tuning, seed=0, autocast=False, token_ids=ids)
    rows = [name for name, one in adapted.named_parameters() if one.requires_grad and "trainable_tokens" in name]
    assert len(rows) == (1 if family == "llama" else 2)
    tokens = torch.tensor([[1, 384, 40, 385, 386, 2]])
    adapted(input_ids=tokens, labels=tokens).loss.backward()
    assert all(adapted.get_parameter(name).grad.abs().sum(1).min() > 0 for name in rows)
    METHOD.save_model(adapted, tmp_path)
    assert json.loads((tmp_path / "config.json").read_bytes())["vocab_size"] == 448
    plain = AutoModelForCausalLM.from_pretrained(folder_of(family))
    resize_tables(plain, 448, ids)
    merged = PeftModel.from_pretrained(plain, tmp_path).merge_and_unload()
    assert merged(tokens).logits.isfinite().all() and merged.config.vocab_size == 448
