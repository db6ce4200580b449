"""A saved config is the same config when it is loaded again."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path

from tui_trainer.config.fields import Setting
from tui_trainer.config.load import Request, all_settings, load, value_of
from tui_trainer.config.save import to_toml
from tui_trainer.config.sections import Config
from tui_trainer.config.toml_files import find_profile

NONE = (None, "none")
PATHS = ("output.runs_dir", "evaluation.gate_suite")  # "other" in data.path may be a data set of the hub


def other_value(setting: Setting):
    """Return a value that the setting allows and that is not its default."""
    special = {
        "schema_version": 1,
        "profile": "char-lm",
        "output.name": 'a "quoted" \\ n\u00e4me\n',
    }
    if setting.key in special:
        return special[setting.key]
    if bool in setting.kinds:
        return setting.default is not True
    if str in setting.kinds:
        return str(setting.choices[-1]) if setting.choices else "other"
    if float in setting.kinds and setting.default != "auto":
        return math.nextafter(setting.default, 0) if setting.default else 0.3
    return setting.default * 2 if isinstance(setting.default, int) and setting.default else 3


def assigned(key: str, value: object) -> str:
    import tomli_w

    return f"{key}={tomli_w.dumps({'x': value}).partition('=')[2].strip()}"


def reload(text: str, folder: Path) -> Config:
    path = folder / "saved.toml"
    path.write_text(text, encoding="utf-8")
    return load(Request(config_file=path), lambda requested: NONE).config


def test_each_setting_is_saved_and_loaded_again(tmp_path, subtests):
    for setting in all_settings().values():
        with subtests.test(setting.key):
            value = setting.choices[-1] if setting.choices and not setting.kinds else other_value(setting)
            loaded = load(Request(assignments=(assigned(setting.key, value),)), lambda requested: NONE)
            found = value_of(loaded.config, setting.key)
            assert found == (str(Path(value).absolute()) if setting.key in PATHS else value)
            assert setting.key == "schema_version" or value != setting.default
            saved = reload(to_toml(loaded), tmp_path)
            assert value_of(saved, setting.key) == found
            assert saved.model_copy(update={"profile": ""}) == loaded.config.model_copy(update={"profile": ""})


def test_only_the_users_values_and_the_recipe_are_saved(tmp_path):
    hardware = find_profile("cpu", "hardware")
    request = Request(profile="char-lm", assignments=("data.max_length=64", "training.seed=42"))
    loaded = load(request, lambda requested: (hardware, ""))
    text = to_toml(loaded)
    assert tomllib.loads(text) == {
        "schema_version": 1,
        "profile": "char-lm",
        "data": {"max_length": 64},
        "training": {"seed": 42},
    }
    path = tmp_path / "saved.toml"
    path.write_text(text)
    back = load(Request(config_file=path), lambda requested: (hardware, ""))
    assert back.config == loaded.config and to_toml(back) == text
    # The recipe that nobody named is saved too.
    loaded = load(Request(), lambda requested: NONE)
    saved = reload(to_toml(loaded), tmp_path)
    assert saved.profile == "quickstart"
    assert saved.model_copy(update={"profile": ""}) == loaded.config != Config()
    # Whole numbers are written without a fraction.
    assignments = ("evaluation.eval_steps=128.0", "training.num_train_epochs=3", "training.max_grad_norm=1e30")
    loaded = load(Request(assignments=(*assignments, "training.learning_rate=0.5")), lambda requested: NONE)
    lines = to_toml(loaded).splitlines()
    wanted = {"eval_steps = 128", "num_train_epochs = 3", "max_grad_norm = 1e+30", "learning_rate = 0.5"}
    assert wanted <= set(lines)
    assert reload(to_toml(loaded), tmp_path).evaluation == loaded.config.evaluation
