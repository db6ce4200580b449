"""Suggestions for a path that does not exist."""

from pathlib import Path

import pytest

from tui_trainer.data.sources.source import open_source
from tui_trainer.errors import ConfigError, DataError
from tui_trainer.files.local_paths import nearest_path
from tui_trainer.models.facts import find_model


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    for name in ("models/llama-small", "models/gpt2", "texts"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "texts" / "data.jsonl").write_text('{"text": "hello"}\n')
    (tmp_path / "model.txt").write_text("a file, not a folder")
    (tmp_path / "models" / "gpt2" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


PATHS = [
    ("texts/dta.jsonl", "texts/data.jsonl"),
    ("./txts/data.jsonl", "./texts/data.jsonl"),
    ("txts/dat.jsonl", "texts/data.jsonl"),
    ("~/texts/data.json", "~/texts/data.jsonl"),
    ("./modles/gpt2", "./models/gpt2"),
    ("models/lama-small", "models/llama-small"),
    ("texts/data.jsonl", "texts/data.jsonl"),
    ("texts/nothing like it.csv", ""),
    ("elsewhere/data.jsonl", ""),
    ("~nobody-of-this-name/x", ""),
    ("model.txt/x", ""),
    ("texts/" + 300 * "x", ""),
    ("a/" * 5000, ""),
]


def test_the_nearest_path_is_found_in_every_part(folder, subtests):
    for path, nearest in PATHS:
        with subtests.test(f"{path[:30]}"):
            assert nearest_path(path) == nearest
    # Only folders are suggested for a folder.
    assert nearest_path("modle.txt") == "model.txt"
    assert nearest_path("modle.txt", folders_only=True) == ""


def test_missing_data_and_models_are_reported_with_the_nearest_path(folder):
    with pytest.raises(DataError, match=r"no file or folder 'texts/dta\.jsonl'; did you mean 'texts/data\.jsonl'\?"):
        open_source("texts/dta.jsonl")
    with pytest.raises(DataError, match="check the path"):
        open_source("nowhere/at-all.csv")
    # A missing model is reported with the nearest model folder.
    with pytest.raises(ConfigError, match=r"the folder \./modles/gpt2 does not exist; did you mean \./models/gpt2\?"):
        find_model("./modles/gpt2")
    with pytest.raises(ConfigError, match=r"did you mean the folder \./models/gpt2\? Otherwise run `tui-trainer d"):
        find_model("modles/gpt2")
    with pytest.raises(ConfigError, match=r"\./models/llama-smal does not exist; give a folder that holds a config"):
        find_model("./models/llama-smal")
