"""Headers of safetensors files: exact for whole files, one sentence for each kind of damage."""

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


def test_headers_are_those_that_safetensors_reads(llama_folder, make_tiny):
    from safetensors import safe_open

    headers = read_headers(llama_folder)
    with safe_open(llama_folder / "model.safetensors", "pt") as file:
        assert set(headers) == set(file.keys())
        for name, facts in headers.items():
            assert facts.shape == tuple(file.get_slice(name).get_shape())
            assert facts.dtype == file.get_slice(name).get_dtype() == "F32"
    assert sum(facts.parameters for facts in headers.values()) == make_tiny("llama").model.num_parameters()
    assert sum(facts.size_bytes for facts in headers.values()) == 4 * make_tiny("llama").model.num_parameters()


def test_headers_of_shards_are_those_of_the_whole_model(shards, llama_folder, tmp_path):
    headers = read_headers(shards)
    one = read_headers(llama_folder)
    assert {name: facts.shape for name, facts in headers.items()} == {name: facts.shape for name, facts in one.items()}
    assert {facts.file for facts in headers.values()} == set(weight_files(shards))
    assert weight_files(llama_folder) == ("model.safetensors",)
    assert read_headers(tmp_path / "none") == {} and weight_files(tmp_path / "none") == ()


def test_a_file_that_is_cut_anywhere_is_reported(copied, subtests):
    path = copied / "model.safetensors"
    content = path.read_bytes()
    for lost in (1, 100, 40_000, 88_000):
        with subtests.test(f"{lost} bytes lost"):
            path.write_bytes(content[:-lost])
            assert "model.safetensors is truncated" in complaint(copied)
    for left in (0, 4, 8):
        with subtests.test(f"{left} bytes left"):
            path.write_bytes(content[:left])
            assert "model.safetensors is" in complaint(copied)
    path.write_bytes(content + b"xyz")
    assert "3 bytes more than its header describes" in complaint(copied)


def entry(shape=(2, 2), dtype="F32", offsets=(0, 16)) -> dict[str, object]:
    return {"shape": list(shape), "dtype": dtype, "data_offsets": list(offsets)}


HEADERS = [
    (b"{" * 50_000, "its header is not JSON"),
    (b"[" * 200_000, "its header is not JSON"),
    ([1], "its header lists no tensors"),
    ({"w": entry(shape=(2, 3))}, "16 bytes do not match the shape and dtype of w"),
    ({"w": entry(shape=(-2, -2))}, "does not describe w"),
    ({"w": entry(shape=(2, 2.0))}, "does not describe w"),
    ({"w": entry(shape=("a",))}, "does not describe w"),
    ({"w": entry(dtype=7)}, "does not describe w"),
    ({"w": entry(offsets=(16, 0))}, "-16 bytes do not match"),
    ({"w": {"shape": [2]}}, "does not describe w"),
    ({"w": None}, "does not describe w"),
    ({"\x1b[31mw": None}, "does not describe \u241b[31mw"),
]


def test_an_impossible_header_is_one_sentence(tmp_path, subtests):
    for header, words in HEADERS:
        with subtests.test(ascii(header)[:60]):
            rewrite(tmp_path / "model.safetensors", header, bytes(16))
            text = complaint(tmp_path)
            assert words in text and "\n" not in text and "\x1b" not in text


def test_a_huge_header_length_or_a_git_lfs_pointer_is_refused(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes((10**15).to_bytes(8, "little") + b"{}")
    assert "model.safetensors is not a safetensors file" in complaint(tmp_path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 4976698672\n")
    assert "git lfs pull" in complaint(tmp_path)


INDEXES = [
    ({}, "is not a weight index"),
    ({"weight_map": {}}, "lists no weights"),
    ({"weight_map": {"w": "../../secret"}}, "names files outside its folder"),
    ({"weight_map": {"w": "/etc/passwd"}}, "names files outside its folder"),
    ({"weight_map": {"w": 3}}, "names files outside its folder"),
    ({"weight_map": ["w"]}, "is not a weight index"),
    ([], "is not a weight index"),
]


def test_an_impossible_index_is_one_sentence(tmp_path, subtests):
    for index, words in INDEXES:
        with subtests.test(str(index)):
            (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
            assert words in complaint(tmp_path)


def test_tensors_of_the_index_that_no_file_holds_and_torn_or_missing_shards_are_named(shards):
    index = shards / "model.safetensors.index.json"
    text = index.read_text()
    content = json.loads(text)
    content["weight_map"]["model.extra.weight"] = sorted(shards.glob("model-*"))[0].name
    index.write_text(json.dumps(content))
    assert "lists tensors that its files do not contain: model.extra.weight" in complaint(shards)
    index.write_text(text)
    files = sorted(shards.glob("model-*.safetensors"))
    files[0].unlink()
    os.truncate(files[1], files[1].stat().st_size - 10)
    found = complaint(shards)
    assert f"1 of {len(files)} weight files are missing: {files[0].name}" in found
    assert f"{files[1].name} is truncated: 10 of" in found


def test_only_the_header_of_a_huge_file_is_read(tmp_path):
    """The file is sparse, of 40 GB."""
    path = tmp_path / "model.safetensors"
    rewrite(path, {"w": entry((10_000_000_000,), "F32", (0, 40_000_000_000))})
    start = path.stat().st_size
    os.truncate(path, start + 40_000_000_000)
    assert read_file_header(path)["w"] == TensorFacts((10_000_000_000,), "F32", "model.safetensors")
