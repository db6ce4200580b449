"""What a setting means, from its declaration."""

from difflib import get_close_matches
from functools import cache

from tui_trainer.config.editing import display_text
from tui_trainer.config.fields import Setting
from tui_trainer.config.load import LoadedConfig, all_settings, did_you_mean, value_of
from tui_trainer.config.removed import MEANT, nearest_setting
from tui_trainer.errors import ConfigError


def find_settings(words: str) -> list[Setting]:
    """The settings behind a key, a bare name or a table. Raises ConfigError with the nearest key."""
    known = all_settings()
    if not words:
        return list(known.values())
    found = [
        setting
        for key, setting in known.items()
        if key == words or key.startswith(f"{words}.") or key.rsplit(".", 1)[-1] == words
    ]
    if not found:
        near = near_settings(words)
        hint = f"did you mean {near[0]}?" if near else did_you_mean(words)
        raise ConfigError(f"there is no setting {words!r}", hint=hint)
    return found


def near_settings(words: str) -> list[str]:
    """The table or the setting that is meant by a name that is none; empty where none comes near."""
    known = all_settings()
    tables = {key.split(".")[0] for key in known}
    near = [] if "." in words or words in MEANT else get_close_matches(words, tables, n=1)
    return near or [one for one in [nearest_setting(words, known)] if one]


def describe(setting: Setting, loaded: LoadedConfig) -> list[str]:
    """One setting in full: help, what it takes, effects, and its value now with where it came from."""
    lines = [setting.key, f"  {setting.help}", f"  type:    {setting.expected}"]
    lines += [f"           {line}" for line in setting.choice_help]
    lines.append(f"  default: {display_text(setting, setting.default)}{' ' + setting.unit if setting.unit else ''}")
    lines += [f"  memory:  {setting.memory}"] if setting.memory else []
    lines += [f"  speed:   {setting.speed}"] if setting.speed else []
    now = display_text(setting, value_of(loaded.config, setting.key))
    return [*lines, f"  now:     {now}  (from {loaded.where(setting.key)})"]


# The order in which settings are looked at: one group for each TOML table, basic settings before advanced ones.

# In the order of the questions that a person asks. A table without a line here comes last, under its own name.
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
    """(table, title, settings) of every table. A setting with one possible value is not among them."""
    by_table: dict[str, list[Setting]] = {table: [] for table in TITLES}
    for setting in all_settings().values():
        if setting.kinds or len(setting.choices) > 1:
            by_table.setdefault(setting.table, []).append(setting)
    return tuple(
        (table, TITLES.get(table, table), tuple(sorted(settings, key=lambda setting: setting.advanced)))
        for table, settings in by_table.items()
        if settings
    )
