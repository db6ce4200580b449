"""Typed text becomes a value or an error message, and one key steps to the next value."""

from __future__ import annotations

from typing import Literal

from tui_trainer.config.editing import (
    bump,
    choices,
    completions,
    display_text,
    edit_text,
    number_text,
    parse,
    unit_text,
)
from tui_trainer.config.explain import TITLES, groups
from tui_trainer.config.fields import SettingsSection, option, settings_of
from tui_trainer.config.load import all_settings, all_tables
from tui_trainer.errors import Problem


class Things(SettingsSection):
    flag: bool = option(False, "A.")
    share: float = option(0.1, "B.", low=0, high=0.3, step="+0.05")
    colour: Literal["red", "green"] = option("red", "C.")


THINGS = settings_of(Things)
ALL = all_settings()


TYPED = [
    ("training.learning_rate", "2e-4", 2e-4),
    ("training.learning_rate", " .5 ", 0.5),
    ("training.max_steps", "1_000", 1000),
    ("training.max_steps", "1,000", 1000),
    ("training.max_steps", "8k", 8000),
    ("data.max_length", "8Ki", 8192),
    ("data.max_chars", "1.5M", 1_500_000),
    ("training.warmup_steps", "7%", 0.07),
    ("training.warmup_steps", "20", 20.0),
    ("training.seed", str(2**63 - 1), 2**63 - 1),
    ("training.per_device_train_batch_size", "AUTO", "auto"),
    ("training.per_device_train_batch_size", '"auto"', "auto"),
    ("training.lr_scheduler_type", "Linear", "linear"),
    ("output.name", "none", ""),
    ("output.name", "", ""),
    ("output.name", '"none"', "none"),
    ("output.name", '""', ""),
    ("output.name", r'"a\tb"', "a\tb"),
    ("hardware_profile", "none", "none"),
    ("data.path", "my texts/*.txt", "my texts/*.txt"),
]


def test_values_are_parsed_as_people_write_them(subtests):
    for key, text, value in TYPED:
        with subtests.test(key=key, text=text):
            found = parse(ALL[key], text)
            assert found == value and type(found) is type(value)
    # True and false have several names.
    for yes, no in (("true", "false"), ("Yes", "no"), ("on", "OFF")):
        assert parse(THINGS["flag"], yes) is True and parse(THINGS["flag"], no) is False


REFUSED = [
    ("training.max_steps", "2.5", "is not a whole number"),
    ("training.max_steps", "", "no value was entered"),
    ("training.max_steps", "1__0", "is not valid"),
    ("training.max_steps", "-1", "below the minimum of 0"),
    ("training.learning_rate", "11", "above the maximum of 10"),
    ("training.learning_rate", "0", "must be above 0"),
    ("training.learning_rate", "nan", "is not valid"),
    ("training.learning_rate", "1e999", "is not valid"),
    ("training.adam_beta1", "1", "must be below 1"),
    ("training.lr_scheduler_type", "cosin", "is not valid"),
    ("data.text_column", "", "must not be empty"),
    ("training.learning_rate", "\x1b[2J", "is not valid"),
]


def test_a_text_that_does_not_fit_is_refused_with_what_would(subtests):
    for key, text, words in REFUSED:
        with subtests.test(key=key, text=text):
            found = parse(ALL[key], text)
            assert isinstance(found, Problem) and found.key == key
            assert words in found.message and "\x1b" not in found.message and found.hint.startswith("enter ")


def test_the_text_in_an_editor_parses_to_the_same_value(subtests):
    for setting in ALL.values():
        with subtests.test(setting.key):
            values = [setting.default, *setting.choices]
            values += ["none", "empty", '"x"', " a ", "auto"] if str in setting.kinds else []
            for value in values:
                text = edit_text(setting, value)
                assert text or value == ""
                if value != "" or setting.default == "":
                    assert parse(setting, text) == value, text


def test_empty_values_lists_and_control_characters_are_displayed():
    setting = ALL["output.name"]
    assert (display_text(setting, ""), edit_text(setting, "")) == ("empty", "")
    assert display_text(setting, "a\x1b\nb") == "a\u241b\u23ceb"
    # A list of a file is edited as one text.
    assert edit_text(ALL["data.path"], ["a.txt", "b,c.txt"]) == r"a.txt, b\,c.txt"
    assert display_text(ALL["data.weights"], [2, 0.5]) == edit_text(ALL["data.weights"], [2, 0.5]) == "2, 0.5"
    assert display_text(ALL["tuning.target_modules"], ["q_proj", "v_proj"]) == "q_proj, v_proj"


NUMBERS = [
    (2.5e-4, "2.5e-4"),
    (1e-3, "1e-3"),
    (0.05, "0.05"),
    (3.0, "3"),
    (9999, "9999"),
    (10_000, "10_000"),
    (1_000_000, "1_000_000"),
]


def test_numbers_are_written_short_without_losing_a_digit(subtests):
    for value, text in NUMBERS:
        with subtests.test(value=value):
            assert number_text(value) == text
    # No digit is lost.
    for value in (0.1 + 0.2, 1 / 3e6, 5e-324, 1e22, 1.7e308, 123456.789):
        assert float(number_text(value)) == value
    # A share of the steps has another unit than a number of steps.
    setting = ALL["training.warmup_steps"]
    assert [unit_text(setting, value) for value in (0.05, 20.0, 0.0)] == ["of all steps", "steps", ""]
    assert unit_text(ALL["training.per_device_train_batch_size"], "auto") == ""


STEPS = [
    ("training.effective_batch_size", 32, [64, 128], [16, 8, 4, 2, 1, "auto"]),
    ("training.per_device_train_batch_size", 2, [4], [1, "auto", "auto"]),
    ("training.per_device_train_batch_size", "auto", [1, 2], ["auto"]),
    ("training.learning_rate", 1e-3, [2e-3, 5e-3, 0.01], [5e-4, 2e-4, 1e-4, 5e-5]),
    ("training.learning_rate", 3e-3, [5e-3], [2e-3]),
    ("training.learning_rate", 5.0, [10.0, 10.0], [2.0]),
    ("training.adam_beta2", 0.99, [0.995, 0.998, 0.999], [0.98, 0.95, 0.9, 0.8, 0.5, 0.0, 0.0]),
    ("training.adam_epsilon", 1e-8, [1e-7], [1e-9]),
    ("training.num_train_epochs", 2.5, [3.0, 4.0], [2.0, 1.0, "auto"]),
    ("training.weight_decay", 0.002, [5e-3], [1e-3, 0.0, 0.0]),
    ("training.max_steps", 0, [100, 200, 500], [0]),
    ("data.eval_fraction", 0.1, [0.15, 0.2], [0.05, 0.0, 0.0]),
    ("model.scratch.num_hidden_layers", 2, [3], [1, 1]),
    ("training.seed", 2**63 - 1, [2**63 - 1], [2**63 - 2]),
    ("training.lr_scheduler_type", "inverse_sqrt", ["warmup_stable_decay", "cosine"], ["polynomial"]),
    ("data.path", "x", ["x"], ["x"]),
]


def test_one_key_steps_to_the_next_value_and_stops_at_the_bounds(subtests):
    for key, start, up, down in STEPS:
        with subtests.test(key=key, start=start):
            for direction, expected in ((1, up), (-1, down)):
                value, found = start, []
                for _ in expected:
                    value = bump(ALL[key], value, direction)
                    found.append(value)
                assert found == expected and all(type(a) is type(b) for a, b in zip(found, expected, strict=True))
    # Booleans toggle and shares stop at their bound.
    assert [bump(THINGS["flag"], value, 1) for value in (True, False)] == [False, True]
    assert bump(THINGS["share"], 0.29, 1) == 0.3 and bump(THINGS["share"], 0.3, 1) == 0.3
    assert choices(THINGS["flag"]) == (False, True) and choices(THINGS["colour"]) == ("red", "green")
    assert choices(THINGS["share"]) == ()


def test_every_value_reached_with_the_keys_fits_its_setting(subtests):
    for setting in ALL.values():
        with subtests.test(setting.key):
            for direction in (1, -1):
                value = setting.default
                for _ in range(60):
                    value = bump(setting, value, direction)
                    assert value == "" or parse(setting, edit_text(setting, value)) == value


def test_paths_are_completed(tmp_path):
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    (tmp_path / ".hidden").touch()
    (tmp_path / "t\x1b.txt").touch()
    (tmp_path / "two.txt").touch()
    path, folder = ALL["data.path"], ALL["output.runs_dir"]
    assert completions(path, "t") == ["texts/", "two.txt"]
    assert completions(folder, "") == ["texts/"]
    assert completions(path, "texts/") == ["texts/a.txt"]
    assert completions(path, f"{tmp_path}/.h") == [f"{tmp_path}/.hidden"]
    assert completions(path, "nowhere/") == [] == completions(path, "~nosuchuser/x") == completions(path, "a\0/")
    assert completions(path, "sample", names=["sample:python-reference"]) == ["sample:python-reference"]
    # Profiles are completed.
    assert completions(ALL["profile"], "qui") == ["quickstart"]
    assert completions(ALL["hardware_profile"], "")[:2] == ["auto", "none"]
    assert completions(ALL["hardware_profile"], "c") == ["colab", "cpu"]
    assert completions(ALL["training.per_device_train_batch_size"], "a") == ["auto"]


def test_the_last_of_several_paths_is_completed(tmp_path):
    for name in ("one.txt", "two.txt", "a,b.txt"):
        (tmp_path / name).touch()
    path = ALL["data.path"]
    assert completions(path, "one.txt, t") == ["one.txt, two.txt"]
    assert completions(path, "one.txt,t") == ["one.txt,two.txt"]
    assert completions(path, "a") == [r"a\,b.txt"] == completions(path, r"a\,")
    assert completions(path, "one.txt, ") == [r"one.txt, a\,b.txt", "one.txt, one.txt", "one.txt, two.txt"]
    assert completions(path, "one.txt, sam", names=["sample:python-reference"]) == ["one.txt, sample:python-reference"]


def test_every_table_has_a_title_and_every_setting_a_group():
    assert set(TITLES) == {"", *all_tables()}
    grouped = [setting.key for _, _, settings in groups() for setting in settings]
    assert sorted(grouped) == sorted(set(ALL) - {"schema_version"})
    for _, _, settings in groups():
        flags = [setting.advanced for setting in settings]
        assert flags == sorted(flags) and not flags[0]
