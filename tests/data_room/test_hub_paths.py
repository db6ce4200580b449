"""Names of data sets of the hub, and which files of one belong together: by their names alone."""

from __future__ import annotations

import pytest
from tui_trainer.data.sources.hub_parts import chosen_names, data_names, separate_parts
from tui_trainer.data.sources.hub_path import HubPath, could_be_on_the_hub, parse_hub_path

from tui_trainer.errors import DataError

TRAIN = [f"data/train-0000{shard}-of-00003.parquet" for shard in range(3)]
TEST = "data/test-00000-of-00001.parquet"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("hub:org/d", HubPath("org/d")),
        ("org/d/", HubPath("org/d")),
        ("hub:org/d-1.x/en/train", HubPath("org/d-1.x", "main", "en/train")),
        ("hub:org/d@v2/a.jsonl", HubPath("org/d", "v2", "a.jsonl")),
        ("hub:org/d@refs/convert/parquet/x/train", HubPath("org/d", "refs/convert/parquet", "x/train")),
        ("hub:org/d@refs/pr/7", HubPath("org/d", "refs/pr/7")),
        ("hub:org/d@my%2Fbranch/x", HubPath("org/d", "my/branch", "x")),
    ],
)
def test_a_path_of_the_hub_is_read_and_written_again(written, meant):
    assert parse_hub_path(written) == meant
    assert parse_hub_path(str(meant)) == meant


@pytest.mark.parametrize(
    "path", ["hub:", "hub:imdb", "hub:a--b/c", "hub:/a/b", "hub:a/b@", "hub:a/b/../c", "hub:a/b@..", "hub:a/b@-x"]
)
def test_what_cannot_be_a_data_set_is_refused(path):
    with pytest.raises(DataError):
        parse_hub_path(path)


def test_only_a_name_with_its_owner_is_taken_for_one_of_the_hub():
    assert could_be_on_the_hub("org/talks") and could_be_on_the_hub("org/talks-1.5")
    for path in ("talks", "org/talks.jsonl", "./talks", "/org/talks", "a/b/c", "org/ta lks"):
        assert not could_be_on_the_hub(path), path


@pytest.mark.parametrize(
    ("names", "ways"),
    [
        (TRAIN, ()),
        (["a/0.parquet", "b/c/1.parquet"], ()),
        ([TEST, *TRAIN], ("data/train-*.parquet", TEST)),
        (["train.csv", "test.csv"], ("train.csv", "test.csv")),
        (["trainset.csv", "testset.csv"], ("trainset.csv", "testset.csv")),
        (["x/test/0.parquet", "x/train/0.parquet", "x/train/1/1.parquet"], ("x/train", "x/test/0.parquet")),
        (["en/train-0.json.gz", "en/train-1.json.gz", "de/train-0.json.gz"], ("de/train-0.json.gz", "en")),
        (
            ["c/train.00000-of-00002.json.gz", "c/train.00001-of-00002.json.gz", "c/validation.00000-of-00001.json"],
            ("c/train.*.json.gz", "c/validation.00000-of-00001.json"),
        ),
        (["d/train_sft-00000-of-00001.parquet", "d/train_gen-00000-of-00001.parquet"],
         ("d/train_gen-00000-of-00001.parquet", "d/train_sft-00000-of-00001.parquet")),
        (["rows.csv", "rows.parquet"], ("rows.csv", "rows.parquet")),
        (["contest.csv", "latest.csv"], ()),
        (["en/c.csv", "en/x/a.jsonl", "en/y/b.jsonl"], ("en/c.csv", "en/**/*.jsonl")),
        (["training_data/test.jsonl", "training_data/train.jsonl"],
         ("training_data/train.jsonl", "training_data/test.jsonl")),
        (["d/test-suite/test.csv", "d/test-suite/train.csv"], ("d/test-suite/train.csv", "d/test-suite/test.csv")),
        (["train/a/train-x.csv", "train/b/train-x.csv", "test/x.csv"], ("train", "test/x.csv")),
        (["d/en.csv", "d/fr.csv", "d/test_en.csv"], (("d/en.csv", "d/fr.csv"), "d/test_en.csv")),
    ],
)  # fmt: skip
def test_splits_configurations_and_forms_are_told_apart_and_each_way_names_its_own_files(names, ways):
    names = data_names(names)
    found = separate_parts(names)
    assert found == tuple((way,) if isinstance(way, str) else way for way in ways)
    if found:
        assert sorted(name for way in found for part in way for name in chosen_names(names, part)) == names


def test_a_glob_is_taken_as_the_shell_takes_it():
    names = ["a/train/x.csv", "a/y.csv", "z.csv"]
    assert chosen_names(names, "*.csv") == ["z.csv"]
    assert chosen_names(names, "a/*.csv") == ["a/y.csv"]
    assert chosen_names(names, "**/*.csv") == chosen_names(names, "**") == names
    assert chosen_names(names, "a/**") == ["a/train/x.csv", "a/y.csv"]
    assert chosen_names(names, "a/[xy].csv") == ["a/y.csv"]
