"""Several paths in one setting, with a weight for each."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui_trainer.config.load import Request, load
from tui_trainer.config.mixture import join_paths, last_path, parse_weights, paths_in
from tui_trainer.config.paths import with_absolute_paths
from tui_trainer.config.save import to_toml
from tui_trainer.config.sections import Config, DataSection
from tui_trainer.errors import ConfigError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """Work in a folder with a comma in its name."""
    place = tmp_path / "x, y"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    return place


def loaded(text: str, *assignments: str):
    Path("my.toml").write_text(text)
    return load(Request(config_file=Path("my.toml"), assignments=assignments), lambda requested: (None, "none"))


def weights(text: str, path: str = "a, b") -> tuple[float, ...]:
    return parse_weights(paths_in(path), text)


PATHS = [
    ("", ("",)),
    ("a.txt", ("a.txt",)),
    (" a.txt ", (" a.txt ",)),
    ("a.txt,b.txt", ("a.txt", "b.txt")),
    ("a.txt, texts/*.md , sample:python-reference,", ("a.txt", "texts/*.md", "sample:python-reference")),
    (r"a\,b.txt, c.txt", ("a,b.txt", "c.txt")),
]


def test_paths_are_separated_by_commas(subtests, here):
    for text, paths in PATHS:
        with subtests.test(text=text):
            assert paths_in(text) == paths
    # A file whose name has a comma is one path.
    (here / "a,b.txt").touch()
    assert paths_in("a,b.txt") == ("a,b.txt",)
    assert paths_in("a,c.txt") == ("a", "c.txt")
    # Joined paths can be split again.
    for paths in [("a",), ("a", "b"), ("x,y/a", "b"), ("x, y/*.txt",)]:
        with subtests.test(paths=paths):
            assert paths_in(join_paths(paths)) == paths
    # The path being typed is the last one.
    assert last_path("a.txt, b") == ("a.txt, ", "b")
    assert last_path("b") == ("", "b") and last_path("a,") == ("a,", "")


def test_each_path_is_made_absolute(here):
    eval_path = "sample:python-errors, *.txt"
    data = DataSection(path="a.txt, sample:python-reference,/b.txt", replay="c.txt", eval_path=eval_path)
    found = with_absolute_paths(Config(data=data)).data
    assert paths_in(found.path) == (str(here / "a.txt"), "sample:python-reference", "/b.txt")
    assert found.replay_paths == (str(here / "c.txt"),)
    assert paths_in(found.eval_path) == ("sample:python-errors", str(here / "*.txt"))
    assert with_absolute_paths(Config(data=found)).data == found


def test_lists_in_a_file_are_read_and_saved_as_text(here):
    read = loaded('[data]\npath = ["a.txt", "b,c.txt"]\nweights = [2, 0.5]\n')
    assert paths_in(read.config.data.path) == (str(here / "a.txt"), str(here / "b,c.txt"))
    assert parse_weights(read.config.data.paths, read.config.data.weights) == (2.0, 0.5)
    again = loaded(to_toml(read))
    assert again.config.data == read.config.data


WEIGHTS = [("data.weights=2,0.5", "2,0.5"), ("data.weights=[2, 0.5]", "2, 0.5"), ("data.weights=3", "3")]


def test_weights_are_read_as_people_write_them(subtests):
    for assignment, found in WEIGHTS:
        with subtests.test(assignment=assignment):
            assert loaded("", assignment).config.data.weights == found
    # Weights belong to the paths in their order.
    assert weights("2, 0.5") == (2.0, 0.5)
    assert weights("0.5", path="a") == (0.5,)
    assert weights("") == weights("1, 1.0") == (), "every row once is no weight"


# `tests/test_bad_input.py` has the common mistakes.
WRONG_WEIGHTS = [
    ("2", "has 1 number, but data.path has 2 sources"), ("1,2,3", "has 3 numbers, but data.path has 2 sources"),
    ("nan, 1", "'nan' must be above 0"), ("inf, 1", "at most 1,000"),
]  # fmt: skip


def test_wrong_weights_are_reported(subtests):
    for text, words in WRONG_WEIGHTS:
        with subtests.test(text=text):
            with pytest.raises(ConfigError) as wrong:
                weights(text)
            [problem] = wrong.value.problems
            assert problem.key == "data.weights" and words in problem.message and problem.hint
