"""The fingerprint of a model changes with whatever would make a resumed run follow another curve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tui_trainer.errors import ConfigError
from tui_trainer.models.facts import find_model
from tui_trainer.models.files.fingerprint import SAMPLE_BYTES, SAMPLES, fingerprint

BIG = 8 * 1024 * 1024  # in bytes; more than is read whole


@pytest.fixture
def folder(llama_folder, tmp_path) -> Path:
    return Path(shutil.copytree(llama_folder, tmp_path / "model"))


def key(folder: Path, *, with_weights: bool = True) -> str:
    return fingerprint(find_model(str(folder)), with_weights=with_weights)


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_one_changed_byte_changes_the_fingerprint(folder, subtests):
    before = key(folder)
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        with subtests.test(name):
            path = folder / name
            content = path.read_bytes()
            # A tab for a space, or another number: the files stay readable.
            changed = content.replace(b": ", b":\t", 1) if name.endswith(".json") else content[:-1] + b"\x01"
            assert len(changed) == len(content) and changed != content
            path.write_bytes(changed)
            assert key(folder) != before
            path.write_bytes(content)
    (folder / "README.md").write_text("a card is no part of a model")
    assert key(Path(shutil.copytree(folder, folder.parent / "moved"))) == before


def test_only_the_config_counts_for_random_weights(folder):
    before = key(folder, with_weights=False)
    flip(folder / "model.safetensors", -1)
    assert key(folder, with_weights=False) == before
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 5000.0}))
    assert key(folder, with_weights=False) != before


def test_each_changed_tensor_of_a_big_file_changes_the_fingerprint(folder):
    """Such a file is sampled; a small tensor is in its middle, between two samples."""
    path = folder / "model.safetensors"
    sizes = {"m.1": BIG, "m.2": 8, "m.3": BIG}
    tensors = load_file(path) | {name: np.zeros(size, dtype=np.uint8) for name, size in sizes.items()}
    save_file(tensors, path, metadata={"format": "pt"})
    assert path.stat().st_size > SAMPLES * SAMPLE_BYTES
    keys = {key(folder)}
    flip(path, -1)
    keys.add(key(folder))
    for name, tensor in tensors.items():
        changed = tensor.copy()
        changed.reshape(-1)[0] += 1
        save_file({**tensors, name: changed}, path, metadata={"format": "pt"})
        keys.add(key(folder))
    assert len(tensors) > 10 and len(keys) == len(tensors) + 2


def test_code_of_a_model_changes_the_fingerprint_and_a_missing_file_is_one_sentence(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoConfig": "mine.Mine"}}))
    (folder / "mine.py").write_text("width = 1\n")
    before = key(folder)
    (folder / "mine.py").write_text("width = 2\n")
    assert key(folder) != before
    facts = find_model(str(folder))
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json cannot be read: No such file"):
        fingerprint(facts, with_weights=True)
