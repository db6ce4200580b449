"""Shapes of causal language models against the models that transformers builds."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.models.conftest import VARIANTS, Tiny
from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import ConfigError
from tui_trainer.models import counting
from tui_trainer.models.files.weights import TensorFacts
from tui_trainer.models.modules import Linear
from tui_trainer.models.shape import scratch_shape, shape_of
from tui_trainer.planning.duration import training_flops
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.worker import asking


def linears_in(model: Any) -> Counter[tuple[str, int, int]]:
    """Count the matrix products among the modules, by name, inputs and outputs."""
    import torch
    from transformers.pytorch_utils import Conv1D

    found: Counter[tuple[str, int, int]] = Counter()
    for name, module in model.named_modules():
        if isinstance(module, Conv1D):
            found[name.rpartition(".")[2], *module.weight.shape] += 1
        elif isinstance(module, torch.nn.Linear):
            found[name.rpartition(".")[2], module.in_features, module.out_features] += 1
    return found


def linears_told(linears: tuple[Linear, ...]) -> Counter[tuple[str, int, int]]:
    found: Counter[tuple[str, int, int]] = Counter()
    for linear in linears:
        found[linear.name, linear.inputs, linear.outputs] += linear.count
    return found


def headers_of(tiny: Tiny) -> dict[str, TensorFacts]:
    """Return the tensors that the file with the weights would hold: a tied head is not stored."""
    seen: dict[int, str] = {}
    for name, weight in tiny.model.state_dict().items():
        seen.setdefault(weight.data_ptr(), name)
    state = tiny.model.state_dict()
    return {name: TensorFacts(tuple(state[name].shape), "F32", "model.safetensors") for name in seen.values()}


FEW = ("llama-tied", "gpt2", "opt-projected")
MORE = [variant for variant in VARIANTS if variant not in FEW]


@pytest.mark.parametrize("variants", [FEW, pytest.param(MORE, marks=pytest.mark.full)], ids=["few", "more"])
def test_a_shape_is_that_of_the_model_that_transformers_builds(variants, make_tiny, subtests):
    for variant in variants:
        with subtests.test(variant):
            tiny = make_tiny(variant)
            shape = shape_of(tiny.config)
            assert shape.parameters == tiny.model.num_parameters()
            assert linears_told(shape.linears) == linears_in(tiny.model)
            assert [linear for linear in shape.linears if linear.is_head] == [shape.linears[-1]]
            tied = tiny.model.get_input_embeddings().weight is tiny.model.get_output_embeddings().weight
            assert shape.tied_embeddings == tied
            assert shape.attention_dropout == pytest.approx(0.1 if "gpt2" in variant else 0.0)
            names = [name for name, _ in tiny.model.named_modules()]
            for entry in (*shape.linears, *shape.parts):
                assert sum(f".{name}".endswith(f".{entry.path}") for name in names) >= min(entry.count, 1), entry
            embeddings = tiny.model.get_input_embeddings().weight.numel()
            assert sum(part.parameters for part in shape.parts if part.is_embedding) >= embeddings
            assert shape_of(tiny.config, headers_of(tiny)).parameters == tiny.model.num_parameters()


@pytest.mark.full
def test_headers_of_an_unknown_architecture_give_its_parts(make_tiny, subtests):
    """The names of tensors tell matrices from embedding tables."""
    for variant in ["llama-biases", "gpt2", "opt-projected", "falcon-new", "bloom"]:
        with subtests.test(variant):
            tiny = make_tiny(variant)
            config = {**tiny.config, "model_type": "novel"}
            shape = shape_of(config, headers_of(tiny))
            assert shape.parameters == tiny.model.num_parameters()
            if variant != "gpt2":  # its matrices are stored the other way round
                assert linears_told(shape.linears) == linears_in(tiny.model)
            known = shape_of(tiny.config)
            assert (shape.layers, shape.vocabulary, shape.tied_embeddings) == (
                known.layers,
                known.vocabulary,
                known.tied_embeddings,
            )


@pytest.mark.full
def test_masks_and_frequencies_in_old_files_are_not_counted(make_tiny):
    tiny = make_tiny("gpt2")
    old = headers_of(tiny)
    old["h.0.attn.bias"] = TensorFacts((1, 1, 1024, 1024), "F32", "model.safetensors")
    old["h.0.attn.masked_bias"] = TensorFacts((), "F32", "model.safetensors")
    old["model.layers.0.self_attn.rotary_emb.inv_freq"] = TensorFacts((4,), "F32", "model.safetensors")
    assert shape_of(tiny.config, old).parameters == tiny.model.num_parameters()


def test_an_architecture_is_counted_once_and_kept(tmp_path, monkeypatch):
    config = {
        "model_type": "olmo", "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "tie_word_embeddings": True, "eos_token_id": 2, "pad_token_id": 1,
    }  # fmt: skip
    monkeypatch.setenv("TUI_TRAINER_HOME", str(tmp_path / "other"))
    shape = shape_of(config)
    matrices = 2 * (4 * 32 * 32 + 3 * 32 * 48)
    assert shape.parameters == 96 * 32 + matrices  # its norms have no weights
    assert shape.tied_embeddings
    assert linears_told(shape.linears)["gate_proj", 32, 48] == 2
    assert [linear.name for linear in shape.linears if linear.is_head] == ["lm_head"]

    monkeypatch.setattr(asking.Worker, "ask", None)  # a second question would now be a TypeError
    assert shape_of(config) == shape
    counting.answers._cache.clear()
    assert shape_of(config) == shape
    # Data decides the vocabulary.
    assert shape_of({**config, "vocab_size": 100}).parameters == shape.parameters + 4 * 32


def test_counting_runs_no_code_of_a_config_or_folder(tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    for name in ("torch.py", "own.py"):
        (tmp_path / name).write_text(f"open({str(canary)!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    config = {
        "model_type": "olmo", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1,
        "num_attention_heads": 2, "eos_token_id": 2, "trust_remote_code": True,
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
        "_attn_implementation_internal": "stranger/kernel", "attn_implementation": "stranger/kernel",
        "quantization_config": {"quant_method": "gptq", "bits": 4},
    }  # fmt: skip
    assert shape_of(config).parameters == 2 * 40 * 16 + 4 * 16 * 16 + 3 * 16 * 24
    assert not canary.exists()


def test_an_architecture_unknown_to_transformers_is_refused():
    config = {"model_type": "zebra", "hidden_size": 8, "num_hidden_layers": 1, "vocab_size": 9}
    with pytest.raises(ConfigError, match=r"cannot build zebra: transformers does not know the architecture; a newer"):
        shape_of(config)


INCOMPLETE = [
    ({"hidden_size": None}, "config.json has no hidden_size"),
    ({"num_hidden_layers": "two"}, "num_hidden_layers is 'two', not a whole number from 1 to 999,999,999"),
    ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ({"vocab_size": True}, "vocab_size is True"),
    ({"model_type": None}, "config.json has no model_type"),
    ({"text_config": {"model_type": "llama"}}, "combines several models"),
]


def test_a_config_without_the_sizes_of_a_decoder_is_refused(make_tiny, subtests):
    for change, words in INCOMPLETE:
        with subtests.test(words):
            with pytest.raises(ConfigError, match=r"model\.model_name_or_path") as caught:
                shape_of({**make_tiny("llama").config, **change})
            assert words in str(caught.value)


def test_a_shape_from_scratch_is_that_of_the_model():
    from transformers import LlamaConfig, LlamaForCausalLM

    scratch = ScratchSection(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    shape = scratch_shape(scratch, 77)
    config = LlamaConfig(
        vocab_size=77, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=scratch.mlp_size, tie_word_embeddings=True,
    )  # fmt: skip
    assert shape.parameters == LlamaForCausalLM(config).num_parameters()
    assert shape.tied_embeddings and shape.attention_dropout == 0


def test_operations_are_six_per_weight_and_twelve_for_attention():
    """Compare with torch's count of the matrix products of a real forward pass, attention among them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode
    from transformers import LlamaConfig, LlamaForCausalLM

    shape = scratch_shape(ScratchSection(hidden_size=64, num_hidden_layers=3, num_attention_heads=4), 128)
    config = LlamaConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=shape.mlp_size,
        attn_implementation="eager",
    )  # fmt: skip
    tokens = 40
    with FlopCounterMode(display=False) as counter:
        LlamaForCausalLM(config)(torch.zeros(1, tokens, dtype=torch.long))
    training = training_flops(shape, TrainingSetup(), tokens=1, row_tokens=tokens)
    assert counter.get_total_flops() / tokens == pytest.approx(training / 3, rel=0.01)
