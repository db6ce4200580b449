"""Layers of values: which one wins, where a value comes from, and the message about a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tui_trainer.config.load import LoadedConfig, Origin, Request, all_settings, did_you_mean, load, value_of
from tui_trainer.config.paths import with_absolute_paths
from tui_trainer.config.removed import SETTING_BY_FOREIGN_NAME
from tui_trainer.config.sections import Config
from tui_trainer.config.toml_files import Profile
from tui_trainer.errors import ConfigError

STEPS = "training.max_steps"
RECIPE = "[training]\nmax_steps = 1\neffective_batch_size = 1\nlearning_rate = 1.0\nweight_decay = 1.0\n"
HARDWARE = {"training": {"max_steps": 2, "effective_batch_size": 2, "learning_rate": 2.0}}
FILE = "profile = 'recipe.toml'\n[training]\nmax_steps = 3\neffective_batch_size = 3\n"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "my.toml").write_text(FILE)
    return tmp_path


def hardware_profile(values=HARDWARE) -> Profile:
    return Profile(name="card", kind="hardware", path=Path("card.toml"), title="", summary="", source="", values=values)


def loaded(*assignments: str, file: str = "my.toml", hardware: Profile | None = None, **more) -> LoadedConfig:
    request = Request(config_file=Path(file) if file else None, assignments=assignments, **more)
    return load(request, lambda requested: (hardware, requested))


def problems(*assignments: str, **more) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(*assignments, **more)
    return [str(problem) for problem in caught.value.problems]


def test_each_layer_overrides_those_below_it_and_is_named():
    found = loaded("training.max_steps=4", hardware=hardware_profile())
    keys = [STEPS, *(f"training.{name}" for name in ("effective_batch_size", "learning_rate", "weight_decay", "seed"))]
    assert [value_of(found.config, key) for key in keys] == [4, 3, 2.0, 1.0, 42]
    assert [found.where(key) for key in keys] == [
        "--set", "my.toml", "hardware profile card", "recipe recipe", "default",
    ]  # fmt: skip
    assert [found.origin(key) for key in keys] == [origin for origin in reversed(Origin) if origin is not Origin.EDITED]
    assert [found.origin(key).by_user for key in keys] == [True, True, False, False, False]


def test_the_last_assignment_wins_and_beats_a_shortcut():
    assert loaded(f"{STEPS}=4", f"{STEPS}=5").config.training.max_steps == 5
    assert loaded("data.path=/b.txt", shortcuts={"data.path": "/a.txt"}).config.data.path == "/b.txt"
    assert loaded(shortcuts={"data.path": "/a.txt"}).config.data.path == "/a.txt"


def test_a_value_names_the_option_that_set_it():
    model = "model.model_name_or_path"
    shortcuts = {model: "./llama", "data.path": "a.txt", "task.type": "causal_lm"}
    request = Request(profile="finetune", assignments=("data.seed=3",), shortcuts=shortcuts)
    found = load(request, lambda requested: (None, ""))
    keys = (model, "data.path", "task.type", "data.seed", "profile")
    assert [found.where(key) for key in keys] == ["--model", "--data", "--task", "--set", "--profile"]
    assert all(found.origin(key) is Origin.COMMAND_LINE for key in keys)
    assert str(found.problem(model, "is damaged")).startswith("--model: model.model_name_or_path: is damaged")
    with pytest.raises(ConfigError, match=r"^--profile: profile: no recipe is named 'quikstart'; did you mean"):
        load(Request(profile="quikstart"), lambda requested: (None, ""))
    with pytest.raises(ConfigError, match=r"^--set: training\.max_steps: true is not valid; it must be a whole number"):
        load(Request(assignments=("training.max_steps=true",)), lambda requested: (None, ""))


def test_paths_are_made_absolute(place):
    config = loaded("data.path=d/*.txt", "output.runs_dir=out").config
    assert config.data.path == f"{place}/d/*.txt"
    assert config.output.runs_dir == f"{place}/out"
    assert loaded("data.path=sample:python-reference").config.data.path == "sample:python-reference"
    assert loaded("output.runs_dir=~nosuchuser/x").config.output.runs_dir.endswith("~nosuchuser/x")


def test_quickstart_is_the_recipe_unless_a_file_is_given(place):
    (place / "bare.toml").write_text("")
    assert loaded(file="").recipe.name == "quickstart"
    bare = loaded(file="bare.toml")
    assert bare.recipe is None and bare.config == with_absolute_paths(Config())
    assert {bare.where(key) for key in all_settings()} == {"default"}
    # A recipe on the command line replaces that of the file.
    (place / "other.toml").write_text("[training]\nweight_decay = 5.0\n")
    found = loaded(profile="other.toml")
    assert found.recipe is not None and found.recipe.name == "other"
    assert (found.config.training.weight_decay, found.config.training.learning_rate) == (5.0, "auto")


def test_the_requested_hardware_profile_comes_from_the_strongest_layer(place):
    assert loaded().hardware_reason == "auto"
    (place / "recipe.toml").write_text("hardware_profile = 'r'\n" + RECIPE)
    assert loaded().hardware_reason == "r"
    (place / "my.toml").write_text("hardware_profile = 'm'\n" + FILE)
    assert loaded().hardware_reason == "m"
    assert loaded("hardware_profile=s").hardware_reason == "s"


ASSIGNMENTS = [
    ("output.name=123", "123"),
    ("output.name=true", "true"),
    ("output.name='with quotes'", "with quotes"),
    ("data.path=/a=b.txt", "/a=b.txt"),
    (" training.max_steps = 7 ", 7),
    ("training.max_steps=1_000", 1000),
    ("training.learning_rate=1e-4", 1e-4),
    ("training.learning_rate=1", 1.0),
    ("training.per_device_train_batch_size=auto", "auto"),
    ("training.per_device_train_batch_size=8", 8),
]


def test_an_assignment_is_read_as_toml_and_text_needs_no_quotes(subtests):
    for assignment, value in ASSIGNMENTS:
        with subtests.test(assignment=assignment):
            found = value_of(loaded(assignment).config, assignment.partition("=")[0].strip())
            assert found == value and type(found) is type(value)


MISSPELT = [
    ("training.max_step", "training.max_steps"),
    ("max_steps", "training.max_steps"),
    ("model.max_length", "data.max_length"),
    ("learning_rat", "training.learning_rate"),
    ("training.lr_scheduler", "training.lr_scheduler_type"),
    ("training.lr", "training.learning_rate"),
    ("training.fp16", "training.mixed_precision"),
    ("training.context_length", "data.max_length"),
    ("data.seq_len", "data.max_length"),
    ("training.epochs", "training.num_train_epochs"),
    ("trainig.seed", "training.seed"),
    ("training.lerning_rate", "training.learning_rate"),
    ("Batch-Size", "training.effective_batch_size"),
]


def test_a_misspelt_key_is_corrected(subtests):
    for key, meant in MISSPELT:
        with subtests.test(key=key):
            assert did_you_mean(key) == f"did you mean {meant}?"
            assert problems(f"{key}=1") == [f"--set: {key}: unknown setting; did you mean {meant}?"]
    # A key without a near one gets the way to the list.
    assert "`tui-trainer explain`" in did_you_mean("zzzzzz")
    # Names of other tools mean a setting and are none themselves.
    bare = {key.rpartition(".")[2] for key in all_settings()}
    assert set(SETTING_BY_FOREIGN_NAME.values()) <= set(all_settings())
    assert len(SETTING_BY_FOREIGN_NAME) > 80 and not bare & set(SETTING_BY_FOREIGN_NAME)


def test_a_mistake_names_its_layer_and_file(place):
    (place / "my.toml").write_text(FILE + "warmup_steps = -1\n")
    (place / "recipe.toml").write_text(RECIPE + "adam_beta1 = 2.0\n")
    hardware = hardware_profile({"training": {"seed": -1}})
    messages = problems("data.seed=-1", hardware=hardware)
    places = ["recipe recipe: training.adam_beta1", "hardware profile card: training.seed"]
    places += ["my.toml: training.warmup_steps", "--set: data.seed"]
    assert len(messages) == len(places)
    assert all(any(line.startswith(start) for line in messages) for start in places)
    (place / "my.toml").write_text(FILE)
    # An unknown key names its file.
    (place / "recipe.toml").write_text(RECIPE + "batch = 1\n")
    assert [line.partition(";")[0] for line in problems()] == ["recipe.toml: training.batch: unknown setting"]
    # Tables of profiles are not settings of config files.
    (place / "my.toml").write_text("[match]\ndevice = 'cpu'\n")
    assert [line.partition(";")[0] for line in problems()] == ["my.toml: match: unknown setting"]


def test_relative_path_of_a_file_is_looked_for_beside_the_file_and_which_was_used_is_said(place):
    (place / "elsewhere/models/llama").mkdir(parents=True)
    for name in ("elsewhere/a.txt", "elsewhere/b.txt", "b.txt"):
        (place / name).write_text("text")
    (place / "elsewhere/my.toml").write_text(
        "[data]\npath = ['a.txt', 'b.txt', 'org/name']\n[model]\nmodel_name_or_path = 'models/llama'\n"
    )
    found = loaded(file="elsewhere/my.toml")
    assert found.config.model.model_name_or_path == str(place / "elsewhere/models/llama")
    assert found.config.data.paths == (str(place / "elsewhere/a.txt"), str(place / "b.txt"), "org/name")
    beside = "the folder of elsewhere/my.toml"
    assert found.notes == (
        f"model.model_name_or_path: models/llama is read from {beside}",
        f"data.path: a.txt is read from {beside}",
        f"data.path: b.txt is read from the working directory, but is also in {beside}",
    )
    assert loaded("data.path=a.txt", file="elsewhere/my.toml").config.data.path == str(place / "a.txt")
