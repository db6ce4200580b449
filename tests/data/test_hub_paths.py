"""Names of data sets on the hub, and which of their files belong together, decided by names alone."""

from __future__ import annotations

import pytest

from tui_trainer.data.sources.hub import HubPath, chosen_names, data_names, parse_hub_path
from tui_trainer.data.sources.source_file import FORMS
from tui_trainer.data.sources.splits import tell_apart
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import could_be_on_the_hub

TRAIN = [f"data/train-0000{shard}-of-00003.parquet" for shard in range(3)]
TEST = "data/test-00000-of-00001.parquet"


HUB_PATHS = [
    ("hub:org/d", HubPath("org/d")),
    ("hub:tweet_eval", HubPath("tweet_eval")),
    ("org/d/", HubPath("org/d")),
    ("hub:org/d-1.x/en/train", HubPath("org/d-1.x", "main", "en/train")),
    ("hub:org/d@v2/a.jsonl", HubPath("org/d", "v2", "a.jsonl")),
    ("hub:org/d@refs/convert/parquet/x/train", HubPath("org/d", "refs/convert/parquet", "x/train")),
    ("hub:org/d@refs/pr/7", HubPath("org/d", "refs/pr/7")),
    ("hub:org/d@my%2Fbranch/x", HubPath("org/d", "my/branch", "x")),
]


def test_a_hub_path_is_parsed_and_written_again(subtests):
    for written, meant in HUB_PATHS:
        with subtests.test(written=written):
            assert parse_hub_path(written) == meant
            assert parse_hub_path(str(meant)) == meant


NOT_HUB_PATHS = ["hub:", "hub:a--b/c", "hub:/a/b", "hub:a/b@", "hub:a/b/../c", "hub:a/b@..", "hub:a/b@-x"]


def test_a_path_that_cannot_name_a_data_set_is_refused(subtests):
    for path in NOT_HUB_PATHS:
        with subtests.test(path=path), pytest.raises(DataError):
            parse_hub_path(path)


def test_the_revision_of_the_config_applies_unless_the_path_has_one():
    assert parse_hub_path("org/d", "v2") == HubPath("org/d", "v2") == parse_hub_path("org/d@v2", "v2")
    with pytest.raises(DataError, match="org/d is asked for in two revisions"):
        parse_hub_path("org/d@v1", "v2")


def test_only_a_name_without_a_file_extension_can_be_on_the_hub():
    for name in ("tweet_eval", "org/conversations", "org/conversations-1.5", "o/My.Data"):
        assert could_be_on_the_hub(name), name
    for path in (
        "conversations.txt",
        "org/conversations.jsonl",
        "./conversations",
        "/org/conversations",
        "a/b/c",
        "org/ta lks",
    ):
        assert not could_be_on_the_hub(path), path
    assert not any(could_be_on_the_hub(f"org/rows{ending}") for ending in [*FORMS, ".gz", ".JSONL"])


SPLITS = [
        (TRAIN, {"train": 3}),
        (["a/0.parquet", "b/c/1.parquet"], {}),
        ([TEST, *TRAIN], {"test": 1, "train": 3}),
        (["train.csv", "test.csv"], {"train": 1, "test": 1}),
        (["trainset.csv", "testset.csv"], {"train": 1, "test": 1}),
        (["x/test/0.parquet", "x/train/0.parquet", "x/train/1/1.parquet"], {"test": 1, "train": 2}),
        (
            ["c/train.00000-of-00002.json.gz", "c/train.00001-of-00002.json.gz", "c/validation.00000-of-00001.json"],
            {"train": 2, "validation": 1},
        ),
        (["d/train_sft-00000-of-00001.parquet", "d/train_gen-00000-of-00001.parquet"],
         {"train_sft": 1, "train_gen": 1}),
        (["rows.csv", "rows.parquet"], {}),
        (["contest.csv", "latest.csv"], {}),
        (["training_data/test.jsonl", "training_data/train.jsonl"], {"train": 1, "test": 1}),
        (["d/test-suite/test.csv", "d/test-suite/train.csv"], {"train": 1, "test": 1}),
        (["train/a/train-x.csv", "train/b/train-x.csv", "test/x.csv"], {"train": 2, "test": 1}),
        (["d/en.csv", "d/fr.csv", "d/test_en.csv"], {"": 2, "test": 1}),
    ]  # fmt: skip


def test_files_are_grouped_by_split_and_none_is_lost(subtests):
    for names, labels in SPLITS:
        with subtests.test(names=names):
            parts = tell_apart(data_names(names)).parts
            assert {part.label: len(files) for part, files in parts.items()} == labels
            assert not parts or sorted(name for files in parts.values() for name in files) == sorted(names)


def test_a_glob_matches_as_in_a_shell():
    names = ["a/train/x.csv", "a/y.csv", "z.csv"]
    assert chosen_names(names, "*.csv") == ["z.csv"]
    assert chosen_names(names, "a/*.csv") == ["a/y.csv"]
    assert chosen_names(names, "**/*.csv") == chosen_names(names, "**") == names
    assert chosen_names(names, "a/**") == ["a/train/x.csv", "a/y.csv"]
    assert chosen_names(names, "a/[xy].csv") == ["a/y.csv"]
