"""The order in which settings are looked at: one group for each TOML table, basic settings before advanced ones."""

from functools import cache

from tui_trainer.config.fields import Setting
from tui_trainer.config.load import all_settings

# In the order of the questions that a person asks. A table without a line here comes last, under its own name.
TITLES = {
    "": "Start from",
    "task": "Task",
    "data": "Data",
    "model": "Model",
    "model.scratch": "Model from scratch",
    "tuning": "Tuning",
    "quantization": "Weights in 4 bits",
    "training": "Training",
    "dataloader": "Batches",
    "evaluation": "Evaluation",
    "checkpoint": "Checkpoints",
    "logging": "Logging",
    "distributed": "Several processes",
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
