"""Search for settings, their description for `explain`, and their groups on screens."""

from difflib import get_close_matches
from functools import cache

from tui_trainer.config.editing import display_text, value_text
from tui_trainer.config.fields import Setting
from tui_trainer.config.load import LoadedConfig, all_settings, did_you_mean, value_of
from tui_trainer.config.removed import SETTING_BY_FOREIGN_NAME, nearest_setting
from tui_trainer.errors import ConfigError


def find_settings(words: str) -> list[Setting]:
    """Return the settings that the user means by a key, a key without its table, or a table. Raises ConfigError."""
    matches = [
        setting
        for key, setting in all_settings().items()
        if not words or key == words or key.startswith(f"{words}.") or key.rsplit(".", 1)[-1] == words
    ]
    if not matches:
        similar_names = near_settings(words)
        hint = f"did you mean {similar_names[0]}?" if similar_names else did_you_mean(words)
        raise ConfigError(f"there is no setting {words!r}", hint=hint)
    return matches


def near_settings(words: str) -> list[str]:
    """Return a list with the table or setting that an unknown name most likely means; empty if none is similar."""
    settings = all_settings()
    table_names = {key.split(".")[0] for key in settings}
    is_setting = "." in words or words in SETTING_BY_FOREIGN_NAME
    similar_tables = [] if is_setting else get_close_matches(words, table_names, n=1)
    return similar_tables or list(filter(None, [nearest_setting(words, settings)]))


def describe(setting: Setting, loaded: LoadedConfig) -> list[str]:
    """Return the lines about a setting: its help, type, default and effects, and its value with its source."""
    lines = [setting.key, f"  {setting.help}", f"  type:    {setting.expected_words}"]
    lines += [f"           {line}" for line in setting.choice_help]
    lines.append(f"  default: {value_text(setting, setting.default)}")
    lines += [f"  memory:  {setting.memory}"] if setting.memory else []
    lines += [f"  speed:   {setting.speed}"] if setting.speed else []
    now_text = display_text(setting, value_of(loaded.config, setting.key))
    return [*lines, f"  now:     {now_text}  (from {loaded.where(setting.key)})"]


# One group for each TOML table, in the order in which a user decides. Other tables come last, under their own names.
TITLES = {
    "": "Start from",
    "task": "Task",
    "data": "Data",
    "model": "Model",
    "model.scratch": "Model from scratch",
    "model.rope_scaling": "RoPE scaling",
    "tuning": "Tuning",
    "quantization": "4-bit weights",
    "training": "Training",
    "dataloader": "Data loader",
    "evaluation": "Evaluation",
    "checkpoint": "Checkpoints",
    "logging": "Logging",
    "distributed": "Multiple processes",
    "targets": "Targets",
    "output": "Output",
}


@cache
def groups() -> tuple[tuple[str, str, tuple[Setting, ...]], ...]:
    """Return (table, title, settings) of every table, basic settings first. Leaves out settings with only one value."""
    settings_of_table: dict[str, list[Setting]] = {table: [] for table in TITLES}
    for setting in all_settings().values():
        if setting.kinds or len(setting.choices) > 1:
            settings_of_table.setdefault(setting.table, []).append(setting)
    return tuple(
        (table, TITLES.get(table, table), tuple(sorted(settings, key=lambda setting: setting.advanced)))
        for table, settings in settings_of_table.items()
        if settings
    )
