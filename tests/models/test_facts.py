"""From the name of a model to facts: folders, the cache of the hub, the catalogue, and refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from tests.models.conftest import VARIANTS
from tui_trainer.errors import ConfigError
from tui_trainer.files.hub_layout import is_hub_name
from tui_trainer.models.facts import find_model, require_folder
from tui_trainer.models.files.hub_cache import cached_snapshot
from tui_trainer.models.files.soundness import embedding_rows, misfits
from tui_trainer.models.shape import shape_of

COMMIT = "ab" * 20


@pytest.fixture
def copied(llama_folder, tmp_path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "copied"))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """An empty hub cache."""
    for name in ("HF_HUB_CACHE", "HF_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf" / "hub"


def put_in_cache(cache: Path, name: str, source: Path, revision: str = "main") -> Path:
    """Lay out a model as huggingface_hub does: blobs, links to them, and a reference."""
    place = cache / f"models--{name.replace('/', '--')}"
    snapshot = place / "snapshots" / COMMIT
    for path in source.iterdir():
        blob = place / "blobs" / path.name
        blob.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, blob)
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / path.name).symlink_to(os.path.relpath(blob, snapshot))
    reference = place / "refs" / revision
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(COMMIT)
    return snapshot


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def refusal(name: str | Path, revision: str = "main") -> str:
    with pytest.raises(ConfigError) as caught:
        _ = find_model(str(name), revision).shape
    assert [problem.key for problem in caught.value.problems] == ["model.model_name_or_path"]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_gives_all_facts(llama_folder, make_tiny):
    facts = find_model(str(llama_folder))
    assert facts.folder == llama_folder and require_folder(facts) == llama_folder
    assert facts.shape.parameters == make_tiny("llama").model.num_parameters()
    assert facts.weights == "safetensors" and facts.weight_files == ("model.safetensors",)
    assert facts.weights_bytes == (llama_folder / "model.safetensors").stat().st_size
    assert facts.dtype == "float32" and facts.eos_token_ids == (2,)
    assert facts.tokenizer_files == ("tokenizer.json", "tokenizer_config.json") and len(facts.tokenizer_key) == 32
    assert not facts.has_remote_code and facts.damage == ()
    assert misfits(facts.shape, facts.headers) == [] and embedding_rows(facts.shape, facts.headers) == 96


@pytest.mark.full
def test_every_family_is_found_in_a_folder_and_its_weights_fit(make_tiny, tmp_path, subtests):
    for variant in VARIANTS:
        with subtests.test(variant):
            facts = find_model(str(make_tiny(variant).save(tmp_path / variant)))
            assert facts.shape.parameters == make_tiny(variant).model.num_parameters()
            assert facts.shape == replace(shape_of(make_tiny(variant).config), stored_dtype="float32")
            assert misfits(facts.shape, facts.headers) == []
            assert embedding_rows(facts.shape, facts.headers) == 96


def test_the_dtype_is_that_of_most_bytes_and_all_eos_tokens_are_read(make_tiny, copied):
    import copy

    import torch

    model = copy.deepcopy(make_tiny("llama").model).to(torch.bfloat16)
    model.model.norm.to(torch.float32)
    model.save_pretrained(copied)
    (copied / "generation_config.json").write_text('{"eos_token_id": [2, 5]}')
    facts = find_model(str(copied))
    assert (facts.dtype, facts.eos_token_ids) == ("bfloat16", (2, 5))


def test_damaged_weights_are_reported_beside_the_other_facts(copied):
    os.truncate(copied / "model.safetensors", 3000)
    facts = find_model(str(copied))
    assert facts.headers is None and facts.weights == "safetensors"
    assert "truncated" in str(facts.damage[0])
    assert facts.shape.parameters == find_model(str(copied)).shape.parameters > 0


def test_a_cached_model_is_found_by_branch_commit_and_short_name(cache, llama_folder):
    snapshot = put_in_cache(cache, "org/tiny", llama_folder)
    assert find_model("org/tiny").folder == find_model("org/tiny", COMMIT).folder == snapshot
    assert find_model("org/tiny").weights == "safetensors"
    assert "is not on this machine" in refusal("org/tiny", "v2")
    (snapshot / "model.safetensors").unlink()
    assert find_model("org/tiny").weights == "not here"
    snapshot = put_in_cache(cache, "openai-community/gpt2", llama_folder)
    assert find_model("gpt2").folder == find_model("openai-community/gpt2").folder == snapshot


@pytest.mark.full
def test_the_cache_is_where_huggingface_hub_looks(cache, llama_folder, tmp_path):
    """Ask in a process of its own: the library reads the environment once."""
    snapshot = put_in_cache(cache, "org/tiny", llama_folder)
    code = "from huggingface_hub import try_to_load_from_cache as t; print(t('org/tiny', 'config.json'))"
    for changed in ({}, {"HF_HUB_CACHE": str(cache)}, {"HF_HOME": str(tmp_path / "elsewhere")}):
        environment = os.environ | changed
        told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True).stdout
        ours = cached_snapshot("org/tiny", "main", environment)
        assert told.strip() == (str(snapshot / "config.json") if ours else "None"), changed


def test_a_folder_takes_precedence_over_the_cache_and_may_be_relative(cache, llama_folder, tmp_path, monkeypatch):
    put_in_cache(cache, "org/tiny", llama_folder)
    shutil.copytree(llama_folder, tmp_path / "org" / "tiny")
    assert find_model("org/tiny").folder == tmp_path / "org" / "tiny"
    monkeypatch.chdir(llama_folder.parent)
    monkeypatch.setenv("HOME", str(llama_folder.parent))
    assert find_model("llama").folder == find_model("./llama").folder == find_model("~/llama").folder == llama_folder


NAMES = [
    ("org/nobody-has-it", "run `tui-trainer download org/nobody-has-it`, or copy the model into ./nobody-has-it"),
    ("", "no model is set"),
    ("  ", "no model is set"),
    ("./nowhere", "the folder ./nowhere does not exist"),
    ("/nowhere/at/all", "the folder /nowhere/at/all does not exist"),
    ("a/b/c", "the folder a/b/c does not exist"),
    ("../../nowhere", "the folder ../../nowhere"),
    ("bad\x1b[31mname", "the folder bad"),
    ("a\0b", "no model is set"),
]


def test_an_unknown_name_is_refused_with_what_to_do(cache, subtests):
    for name, words in NAMES:
        with subtests.test(repr(name)):
            assert words in refusal(name)


def test_a_revision_cannot_point_outside_the_cache(cache):
    for revision in ("../../x", "", "-x", "a b", "x" * 300):
        assert "is not a valid revision" in refusal("org/tiny", revision), revision


def test_a_folder_without_a_config_is_refused_with_what_it_holds(tmp_path):
    assert "the folder has no config.json; give the folder where" in refusal(tmp_path)
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "config.json").write_text("{}")
    assert "these subfolders have a config.json: inner" in refusal(tmp_path)
    (tmp_path / "model.Q4_K_M.gguf").touch()
    assert "llama.cpp" in refusal(tmp_path)
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "org/base"}')
    assert "the adapter is for org/base: the model org/base is not on this machine" in refusal(tmp_path)


def test_a_config_that_is_no_json_is_one_sentence(tmp_path, subtests):
    for content in ("", "[]", "{", "[" * 100_000, "\udcff"):
        with subtests.test(ascii(content[:5])):
            (tmp_path / "config.json").write_bytes(content.encode(errors="surrogateescape"))
            assert "config.json cannot be read as JSON" in refusal(tmp_path)


OTHER_KINDS = [
    ({"architectures": ["BertModel"], "model_type": "bert"}, "BertModel is an encoder"),
    ({"architectures": None, "model_type": "roberta"}, "roberta is an encoder"),
    ({"text_config": {"hidden_size": 8}}, "a multimodal model"),
    ({"num_hidden_layers": None}, "config.json has no num_hidden_layers"),
]


def test_models_of_other_kinds_are_refused_with_their_kind(copied, subtests):
    original = (copied / "config.json").read_bytes()
    for changes, words in OTHER_KINDS:
        with subtests.test(words):
            (copied / "config.json").write_bytes(original)
            change_config(copied, **changes)
            assert words in refusal(copied)


HUB_NAMES = [("gpt2", True), ("org/model-1.5B", True)]
HUB_NAMES += [(name, False) for name in ("a/b/c", "-x", "a..b", "a--b", "x" * 97, "org/", "a b")]


def test_names_of_the_hub_are_valid_where_huggingface_hub_takes_them(subtests):
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    for name, is_valid in HUB_NAMES:
        with subtests.test(name):
            assert is_hub_name(name) == is_valid
            with nullcontext() if is_valid else pytest.raises(HFValidationError):
                validate_repo_id(name)
