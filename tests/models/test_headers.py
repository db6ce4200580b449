"""Headers of safetensors files: exact for whole ones, one sentence for every way a file can be broken."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tui_trainer.errors import ConfigError
from tui_trainer.models.files.weights import TensorFacts, read_file_header, read_headers, weight_files


@pytest.fixture
def shards(make_tiny, tmp_path) -> Path:
    """A model in several files with an index."""
    folder = make_tiny("llama").save(tmp_path / "sharded", max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) >= 3
    return folder


@pytest.fixture
def copied(llama_folder, tmp_path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "copied"))


def complaint(folder: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        read_headers(folder)
    assert all(problem.key == "model.model_name_or_path" for problem in caught.value.problems)
    return str(caught.value)


def rewrite(path: Path, header: object, data: bytes = b"") -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_headers_are_those_that_the_library_reads(llama_folder, make_tiny):
    from safetensors import safe_open

    headers = read_headers(llama_folder)
    with safe_open(llama_folder / "model.safetensors", "pt") as file:
        assert set(headers) == set(file.keys())
        for name, facts in headers.items():
            assert facts.shape == tuple(file.get_slice(name).get_shape())
            assert facts.dtype == file.get_slice(name).get_dtype() == "F32"
    assert sum(facts.parameters for facts in headers.values()) == make_tiny("llama").model.num_parameters()
    assert sum(facts.size_bytes for facts in headers.values()) == 4 * make_tiny("llama").model.num_parameters()


def test_shards_together_are_the_whole(shards, llama_folder):
    headers = read_headers(shards)
    one = read_headers(llama_folder)
    assert {name: facts.shape for name, facts in headers.items()} == {name: facts.shape for name, facts in one.items()}
    assert {facts.file for facts in headers.values()} == set(weight_files(shards))
    assert weight_files(llama_folder) == ("model.safetensors",)


def test_a_folder_without_weights_has_no_headers(tmp_path):
    assert read_headers(tmp_path) == {} and weight_files(tmp_path) == ()


def test_missing_shards_are_named_together_with_torn_ones(shards):
    files = sorted(shards.glob("model-*.safetensors"))
    files[0].unlink()
    os.truncate(files[1], files[1].stat().st_size - 10)
    text = complaint(shards)
    assert f"1 of {len(files)} files with weights are missing: {files[0].name}" in text
    assert f"{files[1].name} is cut short: 10 of" in text


@pytest.mark.parametrize("lost", [1, 100, 40_000, 88_000])
def test_a_file_that_is_cut_anywhere_is_found(copied, lost):
    path = copied / "model.safetensors"
    os.truncate(path, path.stat().st_size - lost)
    assert "model.safetensors is cut short" in complaint(copied)


@pytest.mark.parametrize("left", [0, 4, 8])
def test_a_file_without_a_header_is_no_safetensors_file(copied, left):
    os.truncate(copied / "model.safetensors", left)
    assert "model.safetensors is" in complaint(copied)


def test_bytes_after_the_end_are_damage(copied):
    with (copied / "model.safetensors").open("ab") as file:
        file.write(b"xyz")
    assert "3 bytes more than its header says" in complaint(copied)


def entry(shape=(2, 2), dtype="F32", offsets=(0, 16)) -> dict[str, object]:
    return {"shape": list(shape), "dtype": dtype, "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (b"{" * 50_000, "its header is no JSON"),
        (b"[" * 200_000, "its header is no JSON"),
        ([1], "its header lists no tensors"),
        ({"w": entry(shape=(2, 3))}, "w does not take 16 bytes"),
        ({"w": entry(shape=(-2, -2))}, "does not describe w"),
        ({"w": entry(shape=(2, 2.0))}, "does not describe w"),
        ({"w": entry(shape=("a",))}, "does not describe w"),
        ({"w": entry(dtype=7)}, "does not describe w"),
        ({"w": entry(offsets=(16, 0))}, "does not take -16 bytes"),
        ({"w": {"shape": [2]}}, "does not describe w"),
        ({"w": None}, "does not describe w"),
        ({"\x1b[31mw": None}, "does not describe \u241b[31mw"),
    ],
)
def test_a_header_that_cannot_be_right_is_one_sentence(tmp_path, header, words):
    rewrite(tmp_path / "model.safetensors", header, bytes(16))
    text = complaint(tmp_path)
    assert words in text and "\n" not in text and "\x1b" not in text


def test_a_huge_length_is_not_believed(tmp_path):
    (tmp_path / "model.safetensors").write_bytes((10**15).to_bytes(8, "little") + b"{}")
    assert "model.safetensors is no safetensors file" in complaint(tmp_path)


def test_a_pointer_of_git_lfs_is_told_from_weights(tmp_path):
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n"
    (tmp_path / "model.safetensors").write_bytes(pointer)
    assert "git lfs pull" in complaint(tmp_path)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({}, "is no index of weights"),
        ({"weight_map": {}}, "lists no weights"),
        ({"weight_map": {"w": "../../secret"}}, "names files outside its folder"),
        ({"weight_map": {"w": "/etc/passwd"}}, "names files outside its folder"),
        ({"weight_map": {"w": 3}}, "names files outside its folder"),
        ({"weight_map": ["w"]}, "is no index of weights"),
        ([], "is no index of weights"),
    ],
)
def test_an_index_that_cannot_be_right_is_one_sentence(tmp_path, index, words):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert words in complaint(tmp_path)


def test_tensors_that_the_index_promises_and_no_file_holds_are_named(shards):
    index = shards / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    content["weight_map"]["model.extra.weight"] = sorted(shards.glob("model-*"))[0].name
    index.write_text(json.dumps(content))
    assert "lists tensors that its files do not hold: model.extra.weight" in complaint(shards)


def test_half_a_file_is_read_in_no_time_and_no_memory(tmp_path):
    """A sparse file of 40 GB: only its header is read."""
    path = tmp_path / "model.safetensors"
    rewrite(path, {"w": entry((10_000_000_000,), "F32", (0, 40_000_000_000))})
    start = path.stat().st_size
    os.truncate(path, start + 40_000_000_000)
    assert read_file_header(path)["w"] == TensorFacts((10_000_000_000,), "F32", "model.safetensors")
