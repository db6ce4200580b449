"""LoRA: what moves, what is saved, and that plain peft and transformers take it."""

from types import SimpleNamespace

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.tiny_models import TRAINED, save_tiny_model
from tui_trainer.config.sections import Config, ModelSection, TaskSection, TuningSection
from tui_trainer.training.final_model import _use
from tui_trainer.tuning import find_method
from tui_trainer.tuning.lora import METHOD

IDS = torch.arange(3, 43).reshape(2, 20)


@pytest.fixture
def base(tmp_path):
    """`base(family)`: a model from a folder, so that an adapter can name what it belongs to."""

    def load(family="llama", dtype=torch.float32, **changes):
        folder = tmp_path / family
        if not folder.exists():
            save_tiny_model(folder, family, **changes)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    return load


def adapted(model, *, autocast=False, **settings):
    return METHOD.apply(model, TuningSection(method="lora", r=4, **settings), seed=7, autocast=autocast)


def trained(model, steps=4, rate=0.05):
    """A few steps with a high rate, so that every trained weight has moved."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
    for _ in range(steps):
        model(input_ids=IDS, labels=IDS).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=IDS).logits


@pytest.mark.parametrize("family", TRAINED)
def test_an_adapter_that_was_saved_loads_with_plain_peft(family, base, tmp_path):
    model = trained(adapted(base(family)))
    METHOD.save_model(model, tmp_path / "adapter")
    again = PeftModel.from_pretrained(base(family), tmp_path / "adapter")
    assert torch.equal(logits(again), logits(model))
    assert (logits(base(family)) - logits(model)).abs().max() > 1e-2, "it has learnt something"
    assert not (tmp_path / "adapter" / "README.md").exists()


def test_the_code_on_the_card_of_an_adapter_loads_it(base, tmp_path):
    model = trained(adapted(base()))
    METHOD.save_model(model, tmp_path / "adapter")
    wanted = logits(model)
    section = ModelSection(model_name_or_path=str(tmp_path / "llama"))
    config = Config(model=section, tuning=TuningSection(method="lora"), task=TaskSection(type="causal_lm"))
    card = "\n".join(_use(SimpleNamespace(config=config)))
    code = card.partition("```python\n")[2].partition("```")[0]
    found: dict = {}
    code = code.replace("path/of/this/folder", str(tmp_path / "adapter"))
    exec(code.replace("path/of/the/base/model", str(tmp_path / "llama")), found)
    torch.testing.assert_close(logits(found["model"]), wanted, atol=1e-5, rtol=1e-5)
    whole = config.model_copy(update={"tuning": TuningSection(method="full")})
    assert _use(SimpleNamespace(config=whole)) == []


def test_transformers_alone_finds_the_base_of_an_adapter(base, tmp_path):
    model = trained(adapted(base()))
    METHOD.save_model(model, tmp_path / "adapter")
    assert torch.equal(logits(AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")), logits(model))


@pytest.mark.parametrize("saved", ["embed_tokens", "embed_tokens, lm_head"])
def test_a_tied_embedding_that_is_trained_stays_tied_through_save_reload_and_merge(saved, base, tmp_path):
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
    for found in (merged, AutoModelForCausalLM.from_pretrained(tmp_path / "merged")):
        torch.testing.assert_close(logits(found), wanted, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_a_tied_embedding_holds_it_once_for_each_name(base, tmp_path):
    model = trained(adapted(base(tie_word_embeddings=True), modules_to_save="embed_tokens"))
    weights = METHOD.weights(model)
    embeddings = [name for name in weights if "lora" not in name]
    assert len(embeddings) == 2
    assert len({weights[name].data_ptr() for name in embeddings}) == 1
    save_file({name: tensor.clone() for name, tensor in weights.items()}, tmp_path / METHOD.weights_file)
    METHOD.describe(model, tmp_path)
    other = PeftModel.from_pretrained(base(), tmp_path)
    assert torch.equal(logits(other), logits(model))


def test_only_adapters_and_saved_modules_move_the_first_in_fp32_the_others_as_the_model(base):
    model = adapted(base(dtype=torch.bfloat16), modules_to_save="embed_tokens", autocast=True)
    moving = {name: p.dtype for name, p in model.named_parameters() if p.requires_grad}
    assert {p for name, p in moving.items() if "lora_" in name} == {torch.float32}
    assert {p for name, p in moving.items() if "modules_to_save" in name} == {torch.bfloat16}
    assert all("lora_" in name or "modules_to_save" in name for name in moving)
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_weights_are_the_models_own_and_can_be_put_back(base):
    model = adapted(base())
    kept = {name: tensor.clone() for name, tensor in METHOD.weights(model).items()}
    untouched = logits(model)
    trained(model)
    for name, tensor in METHOD.weights(model).items():
        tensor.copy_(kept[name])
    assert torch.equal(logits(model), untouched)


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


def test_dropout_and_scales_reach_peft(base):
    plain = adapted(base(), lora_alpha=8.0)
    stabilised = adapted(base(), lora_alpha=8.0, use_rslora=True, use_dora=True, lora_dropout=0.3)
    layer, other = (model.base_model.model.model.layers[0].self_attn.q_proj for model in (plain, stabilised))
    assert layer.scaling["default"] == 2.0
    assert other.scaling["default"] == 4.0
    assert other.use_dora["default"]
    assert other.lora_dropout["default"].p == 0.3
    assert plain.peft_config["default"].lora_alpha == 8 and type(plain.peft_config["default"].lora_alpha) is int


def test_named_targets_alone_get_an_adapter(base):
    model = adapted(base(), target_modules="q_proj, v_proj")
    names = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name, _ in model.named_parameters() if "lora_" in name}
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
