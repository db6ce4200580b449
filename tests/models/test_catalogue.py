"""The catalogue of models: each row against the model that transformers builds from it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from operator import attrgetter

import pytest

from tests import catalogue_rows
from tui_trainer.config.toml_files import all_profiles
from tui_trainer.models import catalogue
from tui_trainer.models.catalogue import CatalogueEntry, all_entries, find_shape
from tui_trainer.models.facts import find_model
from tui_trainer.models.heads import auto_class
from tui_trainer.models.shape import shape_of
from tui_trainer.models.towers import has_towers

ENTRIES = all_entries()
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
EVERY = pytest.mark.parametrize("entry", ENTRIES, ids=attrgetter("name"))
# The smallest of each architecture.
BY_TYPE = {entry.config["model_type"]: entry for entry in sorted(ENTRIES, key=attrgetter("parameters"), reverse=True)}
ONE_OF_EACH = pytest.mark.parametrize("entry", BY_TYPE.values(), ids=attrgetter("name"))


HEADS = {
    "ForCausalLM": "causal_lm", "LMHeadModel": "causal_lm", "ForConditionalGeneration": "seq2seq_lm",
    "ForSequenceClassification": "sequence_classification", "ForMaskedLM": "token_classification",
}  # fmt: skip


def head_of(entry):
    """What a plan would train of it; models that fill gaps have no head that is trained here."""
    if has_towers(entry.config["model_type"]):
        return "causal_lm"
    return next(head for ending, head in HEADS.items() if entry.config["architectures"][0].endswith(ending))


def built(entry, build=None):
    """The model on torch's meta device: shapes without numbers."""
    import torch
    import transformers

    fields = dict(entry.config)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        return (build or getattr(transformers, entry.config["architectures"][0])._from_config)(config)


def own_head(entry):
    """transformers ties the head of every T5, unless the files have one of their own, as those of version 1.1."""
    config = entry.config
    return 0 if config.get("tie_word_embeddings", True) else config["vocab_size"] * config["d_model"]


def stored_bytes_of_qwen3_5(entry):
    """With a layer of full attention behind all others, to which the last hidden state and the next token's vector
    lead; in fp32 of each recurrent layer the decay of its heads and its norm."""
    text = entry.config["text_config"]
    width, size = text["hidden_size"], text["head_dim"]
    queries, keys = (size * text[name] for name in ("num_attention_heads", "num_key_value_heads"))
    matrices = 2 * width * width + 2 * queries * width + 2 * keys * width + queries * width  # queries have gates
    layer = matrices + 3 * width * text["intermediate_size"] + 2 * size + 5 * width
    recurrent = text["layer_types"].count("linear_attention")
    in_fp32 = recurrent * (text["linear_num_value_heads"] + text["linear_value_head_dim"])
    return 2 * (entry.parameters + layer + in_fp32)


@ONE_OF_EACH
def test_a_row_has_as_many_parameters_as_the_model_built_from_it(entry):
    model = built(entry)
    more = own_head(entry) if entry.config["model_type"] == "t5" else 0
    assert sum(parameter.numel() for parameter in model.parameters()) + more == entry.parameters
    assert type(model).__name__ == entry.config["architectures"][0]


@pytest.mark.parametrize("entry", [BY_TYPE[kind] for kind in ("gpt2", "llama", "t5", "bert")], ids=attrgetter("name"))
def test_a_row_is_remade_from_a_config_json(entry, tmp_path, capsys):
    """As transformers writes one of that architecture, with all of its fields."""
    from transformers import AutoConfig

    fields = dict(entry.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.save_pretrained(tmp_path)
    if entry.config["model_type"] == "t5":
        # transformers ties the head of every T5; the files of version 1.1 say that they have one of their own.
        tied = {"tie_word_embeddings": entry.config["tie_word_embeddings"]}
        (tmp_path / "config.json").write_text(json.dumps(config.to_diff_dict() | tied))
    catalogue_rows.main([str(tmp_path), "--name", entry.name])
    [(name, row)] = json.loads(capsys.readouterr().out).items()
    made = CatalogueEntry(name=name, **row)
    assert replace(made, config=entry.config) == entry
    assert {field: made.config.get(field) for field in entry.config} == entry.config
    assert shape_of(made.config, head=head_of(entry)) == shape_of(entry.config, head=head_of(entry))


@EVERY
def test_the_shape_that_a_plan_works_with_has_as_many(entry):
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


@EVERY
def test_the_files_hold_the_parameters_and_what_the_source_says(entry):
    if entry.weights_bytes is None:
        assert "safetensors" not in entry.source
        return
    stored = entry.weights_bytes // BYTES[entry.config["torch_dtype"]]
    more = stored - entry.parameters
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


@EVERY
def test_a_row_names_its_page_and_is_found_by_its_name(entry):
    assert f"huggingface.co/{entry.name}:" in entry.source
    assert entry.license
    assert entry.gated == entry.name.startswith(("meta-llama/", "google/gemma"))
    assert find_shape(entry.name) is entry
    assert find_shape(f" {entry.name.upper()} ") is entry


def test_a_new_row_is_put_behind_the_others_and_an_old_one_stays_where_it_is(tmp_path, monkeypatch):
    data = tmp_path / "catalogue.json"
    monkeypatch.setattr(catalogue_rows, "DATA", data)
    small = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 8, "n_layer": 1, "n_head": 2}
    (tmp_path / "config.json").write_text(
        json.dumps({**small, "n_positions": 16, "vocab_size": 32, "dtype": "float32"})
    )
    (tmp_path / "other.json").write_text(json.dumps(dict(ENTRIES[0].config)))
    paths = [str(tmp_path), str(tmp_path / "other.json")]
    catalogue_rows.main([*paths, "--name", "somebody/small", ENTRIES[0].name, "--license", "mit", "--gated", "--write"])
    rows = json.loads(data.read_text())
    assert list(rows) == [*(entry.name for entry in ENTRIES), "somebody/small"]
    assert rows[ENTRIES[1].name]["config"] == ENTRIES[1].config
    made = CatalogueEntry(name="somebody/small", **rows["somebody/small"])
    assert (made.parameters, made.license, made.gated, made.weights_bytes) == (1272, "mit", True, None)
    assert made.source == "huggingface.co/somebody/small: config.json"
    assert made.config["torch_dtype"] == "float32" and "dtype" not in made.config
    assert shape_of(made.config).parameters == 1272
    assert rows[ENTRIES[0].name]["source"] == ENTRIES[0].source
    assert rows[ENTRIES[0].name]["weights_bytes"] == ENTRIES[0].weights_bytes


def test_a_row_of_a_model_with_towers_keeps_what_describes_both():
    row = find_shape("Qwen/Qwen3-VL-4B-Instruct").config
    text = {**row["text_config"], "dtype": "float16", "use_cache": True, "initializer_range": 0.02}
    told = {**row, "text_config": text, "transformers_version": "5.0"}
    del told["torch_dtype"]
    made = catalogue_rows.make_entry(told, "somebody/seeing")
    assert made.config == row | {"torch_dtype": "float16"}
    assert made.parameters == find_shape("Qwen/Qwen3-VL-4B-Instruct").parameters


def test_a_row_that_would_lose_what_decides_its_size_is_not_made():
    config = {"model_type": "mamba", "architectures": ["MambaForCausalLM"], "hidden_size": 8, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match="by the fields that are kept"):
        catalogue_rows.make_entry({**config, "vocab_size": 32, "state_size": 4}, "somebody/mamba")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"model_type": "gpt2"}', "KeyError: 'architectures'"),
        ('{"model_type": "novel", "architectures": ["Novel"]}', "Unrecognized model identifier: novel"),
        ('{"model_type": "gpt2", "architectures": ["Novel"]}', "Novel"),
    ],
)
def test_a_config_that_makes_no_row_is_named_in_one_line(text, words, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(SystemExit):
        catalogue_rows.main([str(tmp_path), "--name", "somebody/small"])
    shown = capsys.readouterr()
    assert shown.out == ""
    last = shown.err.splitlines()[-1]
    assert f"{tmp_path / 'config.json'}: " in last and words in last


def test_the_data_file_is_as_the_command_writes_it():
    assert catalogue.DATA.read_text("utf-8") == catalogue_rows.as_json(ENTRIES)


def test_no_name_stands_twice():
    assert len(ENTRIES) >= 45
    assert max(Counter(entry.name.lower() for entry in ENTRIES).values()) == 1


def test_the_organisation_may_be_left_out():
    assert find_shape("distilgpt2").name == "distilbert/distilgpt2"
    assert find_shape("GPT2").name == "openai-community/gpt2"
    assert find_shape("qwen3-0.6b").name == "Qwen/Qwen3-0.6B"
    assert find_shape("bert-base-uncased").name == "google-bert/bert-base-uncased"


def test_a_name_that_two_organisations_have_is_not_guessed(monkeypatch):
    copy = replace(find_shape("openai-community/gpt2"), name="somebody/gpt2")
    monkeypatch.setattr(catalogue, "all_entries", lambda: (*ENTRIES, copy))
    assert find_shape("gpt2") is None
    assert find_shape("somebody/gpt2") is copy


@pytest.mark.parametrize("name", ["", "gpt", "openai-community", "other/gpt2", "openai-community/", "./gpt2", "2b"])
def test_an_unknown_name_has_no_shape(name):
    assert find_shape(name) is None


def test_every_model_that_a_recipe_names_is_here():
    named = {
        profile.name: model
        for profile in all_profiles("recipes").values()
        if (model := profile.values.get("model", {}).get("model_name_or_path"))
    }
    assert set(named) >= {"distilgpt2-full", "tinyllama-lora", "llama-8b-lora", "qwen-lora"}
    assert [name for name, model in named.items() if find_shape(model) is None] == []
