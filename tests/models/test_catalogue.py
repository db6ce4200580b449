"""The catalogue of models: each entry against the model that transformers builds from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from operator import attrgetter

import pytest

from tests import catalogue_rows
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.models import catalogue
from tui_trainer.models.catalogue import CatalogueEntry, all_entries, find_catalogue_entry
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import auto_class
from tui_trainer.models.shape import shape_of
from tui_trainer.models.towers import has_towers

ENTRIES = all_entries()
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The smallest of each architecture.
BY_TYPE = {entry.config["model_type"]: entry for entry in sorted(ENTRIES, key=attrgetter("parameters"), reverse=True)}
# One entry of each common architecture; the others are in the full part.
COMMON = [BY_TYPE[kind] for kind in ("gpt2", "llama", "t5", "bert", "qwen3")]


HEADS = {
    "ForCausalLM": "causal_lm", "LMHeadModel": "causal_lm", "ForConditionalGeneration": "seq2seq_lm",
    "ForSequenceClassification": "sequence_classification", "ForMaskedLM": "token_classification",
}  # fmt: skip


def head_of(entry):
    """Return the head that a plan would train; fill-mask models have none that is trained here."""
    if has_towers(entry.config["model_type"]):
        return "causal_lm"
    return next(head for ending, head in HEADS.items() if entry.config["architectures"][0].endswith(ending))


def built(entry, build=None):
    """Build the model on torch's meta device: shapes without numbers."""
    import torch
    import transformers

    fields = dict(entry.config)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        return (build or getattr(transformers, entry.config["architectures"][0])._from_config)(config)


def own_head(entry):
    """Return the parameters of a head that is in the files of T5 1.1; transformers ties the head of every T5."""
    config = entry.config
    return 0 if config.get("tie_word_embeddings", True) else config["vocab_size"] * config["d_model"]


def stored_bytes_of_qwen3_5(entry):
    """Return the bytes of the files of Qwen 3.5, which hold more than the model.

    Behind all layers there is one of full attention, to which the last hidden state and the vector of the next token
    lead. The decay of the heads and the norm of each recurrent layer are in fp32.
    """
    text = entry.config["text_config"]
    width, size = text["hidden_size"], text["head_dim"]
    queries, keys = (size * text[name] for name in ("num_attention_heads", "num_key_value_heads"))
    matrices = 2 * width * width + 2 * queries * width + 2 * keys * width + queries * width  # queries have gates
    layer = matrices + 3 * width * text["intermediate_size"] + 2 * size + 5 * width
    recurrent = text["layer_types"].count("linear_attention")
    in_fp32 = recurrent * (text["linear_num_value_heads"] + text["linear_value_head_dim"])
    return 2 * (entry.parameters + layer + in_fp32)


@pytest.mark.parametrize(
    "entries", [COMMON, pytest.param(BY_TYPE.values(), marks=pytest.mark.full)], ids=["some", "all"]
)
def test_an_entry_has_as_many_parameters_as_the_model_built_from_it(entries, subtests):
    for entry in entries:
        with subtests.test(entry.name):
            model = built(entry)
            more = own_head(entry) if entry.config["model_type"] == "t5" else 0
            assert sum(parameter.numel() for parameter in model.parameters()) + more == entry.parameters
            assert type(model).__name__ == entry.config["architectures"][0]


@pytest.mark.parametrize("entries", [COMMON, pytest.param(ENTRIES, marks=pytest.mark.full)], ids=["some", "all"])
def test_a_plan_counts_the_parameters_of_an_entry(entries, subtests):
    for entry in entries:
        with subtests.test(entry.name):
            check_shape(entry)


def check_shape(entry):
    head = head_of(entry)
    shape = shape_of(entry.config, head=head)
    if head == "token_classification":
        # The files hold a head that fills gaps.
        assert shape.parameters == pytest.approx(entry.parameters, rel=0.01)
        if entry in BY_TYPE.values():
            parameters = built(entry, auto_class(head).from_config).num_parameters()
            assert shape.parameters == parameters
            assert find_model(entry.name, head=head, labels=9).shape.parameters > parameters
        return
    assert shape.loaded_parameters == entry.parameters == find_model(entry.name, head=head).shape.loaded_parameters
    if head != "sequence_classification":
        assert shape.tied_embeddings == entry.config.get("tie_word_embeddings", True)


def test_the_published_files_hold_the_parameters_of_the_entry(subtests):
    for entry in ENTRIES:
        with subtests.test(entry.name):
            if entry.weights_bytes is None:
                assert "safetensors" not in entry.source
                continue
            more = entry.weights_bytes // BYTES[entry.config["torch_dtype"]] - entry.parameters
            config = entry.config
            if "several tokens" in entry.source:
                assert stored_bytes_of_qwen3_5(entry) == entry.weights_bytes
            elif "causal masks" in entry.source:
                assert more == config["n_layer"] * config["n_positions"] ** 2
            elif "twice" in entry.source:
                assert config["tie_word_embeddings"]
                assert more == config["vocab_size"] * config["hidden_size"]
            else:
                assert more == 0


def test_entries_are_found_by_name_and_name_their_source(subtests):
    for entry in ENTRIES:
        with subtests.test(entry.name):
            assert f"huggingface.co/{entry.name}:" in entry.source and entry.license
            assert entry.gated == entry.name.startswith(("meta-llama/", "google/gemma"))
            assert find_catalogue_entry(entry.name) is find_catalogue_entry(f" {entry.name.upper()} ") is entry
    for short, name in (("distilgpt2", "distilbert/distilgpt2"), ("GPT2", "openai-community/gpt2")):
        assert find_catalogue_entry(short).name == name
    for unknown in ("", "gpt", "openai-community", "other/gpt2", "openai-community/", "./gpt2", "2b"):
        assert find_catalogue_entry(unknown) is None, unknown
    assert max(Counter(entry.name.lower() for entry in ENTRIES).values()) == 1


def test_the_data_file_is_as_the_command_writes_it():
    """`tests.catalogue_rows` adds entries from a config.json."""
    assert catalogue.DATA.read_text("utf-8") == catalogue_rows.as_json(ENTRIES)


@pytest.mark.full
def test_the_command_makes_an_entry_from_a_config_json(tmp_path, capsys):
    from transformers import AutoConfig

    entry = BY_TYPE["llama"]
    fields = dict(entry.config)
    AutoConfig.for_model(fields.pop("model_type"), **fields).save_pretrained(tmp_path)
    catalogue_rows.main([str(tmp_path), "--name", entry.name])
    [(name, row)] = json.loads(capsys.readouterr().out).items()
    made = CatalogueEntry(name=name, **row)
    assert replace(made, config=entry.config) == entry
    assert {field: made.config.get(field) for field in entry.config} == entry.config


def test_every_model_of_a_recipe_has_an_entry():
    named = {
        profile.name: model
        for profile in all_profiles("recipes").values()
        if (model := profile.values.get("model", {}).get("model_name_or_path"))
    }
    assert set(named) >= {"distilgpt2-full", "tinyllama-lora", "llama-8b-lora", "qwen-lora"}
    assert [name for name, model in named.items() if find_catalogue_entry(model) is None] == []
