"""Names of data sets on the hub, and which of their files belong together, decided by names alone."""

from __future__ import annotations

import pytest

from tui_trainer.data.sources.hub import HubPath, chosen_names, parse_hub_path
from tui_trainer.data.sources.source_file import FORMS
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import could_be_on_the_hub

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
    # The revision of the config applies unless the path has one.
    assert parse_hub_path("org/d", "v2") == HubPath("org/d", "v2") == parse_hub_path("org/d@v2", "v2")
    with pytest.raises(DataError, match="two revisions are set for org/d"):
        parse_hub_path("org/d@v1", "v2")


NOT_HUB_PATHS = ["hub:", "hub:a--b/c", "hub:/a/b", "hub:a/b@", "hub:a/b/../c", "hub:a/b@..", "hub:a/b@-x"]


def test_a_path_that_cannot_name_a_data_set_is_refused(subtests):
    for path in NOT_HUB_PATHS:
        with subtests.test(path=path), pytest.raises(DataError):
            parse_hub_path(path)


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


def test_a_glob_matches_as_in_a_shell():
    names = ["a/train/x.csv", "a/y.csv", "z.csv"]
    assert chosen_names(names, "*.csv") == ["z.csv"]
    assert chosen_names(names, "a/*.csv") == ["a/y.csv"]
    assert chosen_names(names, "**/*.csv") == chosen_names(names, "**") == names
    assert chosen_names(names, "a/**") == ["a/train/x.csv", "a/y.csv"]
    assert chosen_names(names, "a/[xy].csv") == ["a/y.csv"]
