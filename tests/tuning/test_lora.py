"""LoRA: what moves, what is saved, what a plan counts, and that plain peft and transformers load the result."""

import copy

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.models.headed import CASES, headed
from tests.tiny_models import TRAINED, tiny_model
from tui_trainer.config.sections import TuningSection
from tui_trainer.data.batching.collate import collate
from tui_trainer.losses.micro_batch import micro_batch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models.shape import shape_of
from tui_trainer.models.targets import adapted_linears as layers_of
from tui_trainer.models.targets import adapter_parameters, head_modules, match_targets, saved_module_parameters
from tui_trainer.tuning import find_method
from tui_trainer.tuning.lora import METHOD

IDS = torch.arange(3, 43).reshape(2, 20)


def adapted(model, *, autocast=False, **settings):
    return METHOD.apply(model, TuningSection(method="lora", r=4, **settings), seed=7, autocast=autocast)


def trained(model, steps=4, rate=0.05):
    """Train for a few steps with a high rate, so that every trained weight has moved."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


def assert_loads_with_plain_peft(family, base, folder):
    model = trained(adapted(base(family)))
    METHOD.save_model(model, folder)
    again = PeftModel.from_pretrained(base(family), folder)
    assert torch.equal(logits(again), logits(model))
    assert (logits(base(family)) - logits(model)).abs().max() > 1e-2, "it has learnt something"
    return model


def test_a_saved_adapter_is_loaded_by_plain_peft_and_by_transformers(base, tmp_path):
    model = assert_loads_with_plain_peft("llama", base, tmp_path / "adapter")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")), logits(model))
    assert not (tmp_path / "adapter" / "README.md").exists()


@pytest.mark.full
def test_saved_adapters_of_other_families_are_loaded_by_plain_peft(base, tmp_path, subtests):
    for family in set(TRAINED) - {"llama"}:
        with subtests.test(family):
            assert_loads_with_plain_peft(family, base, tmp_path / f"adapter-{family}")


@pytest.mark.parametrize("saved", ["embed_tokens", pytest.param("embed_tokens, lm_head", marks=pytest.mark.full)])
def test_a_trained_tied_embedding_stays_tied_through_save_reload_and_merge(saved, base, tmp_path):
    model = adapted(base(tie_word_embeddings=True), modules_to_save=saved)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight
    before = model.get_input_embeddings().weight.clone()
    wanted = logits(trained(model))
    assert not torch.equal(model.get_input_embeddings().weight, before)
    METHOD.save_model(model, tmp_path / "adapter")
    reloaded = PeftModel.from_pretrained(base(), tmp_path / "adapter")
    assert torch.equal(logits(reloaded), wanted)
    merged = reloaded.merge_and_unload()
    merged.save_pretrained(tmp_path / "merged")
    for again in (merged, AutoModelForCausalLM.from_pretrained(tmp_path / "merged")):
        torch.testing.assert_close(logits(again), wanted, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_a_tied_embedding_shares_its_memory_under_both_names(base, tmp_path):
    model = trained(adapted(base(tie_word_embeddings=True), modules_to_save="embed_tokens"))
    weights = METHOD.weights(model)
    embeddings = [name for name in weights if "lora" not in name]
    assert len(embeddings) == 2
    assert len({weights[name].data_ptr() for name in embeddings}) == 1
    save_file({name: tensor.clone() for name, tensor in weights.items()}, tmp_path / METHOD.weights_file)
    METHOD.describe(model, tmp_path)
    other = PeftModel.from_pretrained(base(), tmp_path)
    assert torch.equal(logits(other), logits(model))


def test_only_adapters_in_fp32_and_saved_modules_in_the_dtype_of_the_model_train(base):
    model = adapted(base(dtype=torch.bfloat16), modules_to_save="embed_tokens", autocast=True)
    moving = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert {p for name, p in moving.items() if "lora_" in name} == {torch.float32}
    assert {p for name, p in moving.items() if "modules_to_save" in name} == {torch.bfloat16}
    assert all("lora_" in name or "modules_to_save" in name for name in moving)
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_saved_modules_get_gradients_inside_a_16_bit_model(subtests):
    batch = micro_batch(collate([IDS[0].numpy().astype("int32")], 0))
    for family, saved in (("llama", "embed_tokens"), ("llama", "lm_head"), ("gpt2", "wte")):
        for autocast in (True, False):
            base = tiny_model(family, tie_word_embeddings=False).bfloat16()
            model = adapted(base, modules_to_save=saved, autocast=autocast).train()
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                NextTokenLoss(model)(batch).backward()
            moving = [w for name, w in model.named_parameters() if "modules_to_save" in name and w.requires_grad]
            with subtests.test(f"{saved} of {family}, autocast {autocast}"):
                assert moving and all(weight.grad.abs().sum() > 0 for weight in moving)


def test_under_autocast_no_second_copy_of_the_inputs_is_kept(base):
    """peft casts each input to fp32, which autocast undoes: what is kept then is a copy instead of the input."""

    def kept_bytes(autocast):
        model = adapted(base(dtype=torch.bfloat16), autocast=autocast)
        kept = {}

        def note(tensor):
            kept[tensor.data_ptr()] = (tensor.numel() * tensor.element_size(), tensor)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
        with hooks, torch.autocast("cpu", torch.bfloat16):
            model(input_ids=IDS, use_cache=False)
        return sum(size for size, _ in kept.values())

    assert kept_bytes(autocast=True) < 0.95 * kept_bytes(autocast=False)


def test_settings_reach_peft(base):
    plain = adapted(base(), lora_alpha=8.0)
    stabilised = adapted(base(), lora_alpha=8.0, use_rslora=True, use_dora=True, lora_dropout=0.3)
    layer, other = (model.base_model.model.model.layers[0].self_attn.q_proj for model in (plain, stabilised))
    assert (layer.scaling["default"], other.scaling["default"]) == (2.0, 4.0)
    assert other.use_dora["default"]
    assert other.lora_dropout["default"].p == 0.3
    assert type(plain.peft_config["default"].lora_alpha) is int, "a whole number is saved as one"
    targeted = adapted(base(), target_modules="q_proj, v_proj")
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, _ in targeted.named_parameters() if "lora_" in name}
    assert names == {"q_proj", "v_proj"}


def test_the_same_seed_gives_the_same_adapter(base):
    first, second = (METHOD.weights(adapted(base())) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_full_tuning_keeps_a_shared_weight_once(base, tmp_path):
    model = base(tie_word_embeddings=True)
    full = find_method("full")
    assert full.apply(model, TuningSection(), seed=0, autocast=False) is model
    weights = full.weights(model)
    assert "model.embed_tokens.weight" in weights
    assert "lm_head.weight" not in weights
    full.describe(model, tmp_path)
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, tmp_path / full.weights_file,
              metadata={"format": "pt"})  # fmt: skip
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path)), logits(model))
    assert load_file(tmp_path / full.weights_file).keys() == weights.keys()


# Models that classify or answer ---------------------------------------------------------------------------------------


def trained_parameters(model):
    """Return the parameters of adapters, those of modules that are trained as a whole, and the names of the latter."""
    counts = {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}
    whole = {name: count for name, count in counts.items() if "modules_to_save" in name}
    modules = {name.split(".modules_to_save")[0].rpartition(".")[2] for name in whole}
    return sum(counts.values()) - sum(whole.values()), sum(whole.values()), modules


def assert_all_linear_trains_what_a_plan_counts(variant, head):
    tiny = headed(variant, head)
    shape = shape_of(tiny.config, head=head)
    adapters, saved, modules = trained_parameters(adapted(copy.deepcopy(tiny.model)))
    whole = head_modules(shape)
    assert adapters == adapter_parameters(layers_of(shape, match_targets(shape, "all-linear")), 4) > 0
    assert saved == saved_module_parameters(shape, ",".join(whole))
    assert modules == set(whole)


COMMON = ("bert", "roberta", "gpt2", "t5")


@pytest.mark.parametrize("is_common", [True, pytest.param(False, marks=pytest.mark.full)], ids=["common", "others"])
def test_all_linear_trains_what_a_plan_counts_and_the_whole_head(is_common, subtests):
    for variant, head in CASES:
        if (variant in COMMON) == is_common:
            with subtests.test(f"{variant} {head}"):
                assert_all_linear_trains_what_a_plan_counts(variant, head)


def test_a_target_name_that_the_head_has_too_adapts_the_body_only():
    for variant in ("bert", "roberta"):
        tiny = headed(variant, "sequence_classification")
        shape = shape_of(tiny.config, head="sequence_classification")
        adapters, saved, _ = trained_parameters(adapted(copy.deepcopy(tiny.model), target_modules="dense"))
        assert adapters == adapter_parameters(layers_of(shape, match_targets(shape, "dense")), 4)
        assert saved == saved_module_parameters(shape, ",".join(head_modules(shape)))


def test_the_head_is_saved_with_the_adapter_and_loaded_by_plain_peft(tmp_path):
    tiny = headed("distilbert", "sequence_classification")
    model = adapted(copy.deepcopy(tiny.model))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight.add_(0.1)
    assert any("pre_classifier" in name for name in METHOD.weights(model))
    METHOD.save_model(model, tmp_path)
    again = PeftModel.from_pretrained(copy.deepcopy(tiny.model), tmp_path)
    torch.testing.assert_close(logits(model), logits(again), atol=1e-6, rtol=0)
    assert not torch.allclose(logits(model), logits(copy.deepcopy(tiny.model)), atol=1e-3)
