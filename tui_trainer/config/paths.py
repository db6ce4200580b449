"""Paths of a config, made independent of the folder that the program was started in."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tui_trainer.config.changes import with_changes
from tui_trainer.config.mixture import joined
from tui_trainer.config.sections import Config
from tui_trainer.config.token_list import with_file_read
from tui_trainer.errors import ConfigError
from tui_trainer.files.hub_layout import HUB_PREFIX, SAMPLE_PREFIX, could_be_on_the_hub
from tui_trainer.files.local_paths import from_the_root, is_here


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from another folder, and its data has one name. A list of tokens is read: its file
    may change."""
    template = config.task.chat_template
    # The name of a template stays.
    is_file = "/" in template or template.endswith(".jinja")
    paths = {
        "task.chat_template": absolute(template) if is_file else template,
        "data.path": _data(config.data.paths),
        "data.eval_path": _data(config.data.eval_paths),
        "model.model_name_or_path": _model(config.model.model_name_or_path),
        "output.runs_dir": absolute(config.output.runs_dir),
    }
    # One that cannot be read is reported with everything else that is wrong.
    with suppress(ConfigError):
        paths["model.add_tokens"] = with_file_read(config.model.add_tokens)
    return with_changes(config, paths)


def _data(paths: Sequence[str]) -> str:
    """Files and folders by their whole paths; samples and data sets of the hub have no place."""

    def has_no_place(path: str) -> bool:
        return path.startswith((SAMPLE_PREFIX, HUB_PREFIX)) or (could_be_on_the_hub(path) and not is_here(path))

    return joined([path if not path or has_no_place(path) else absolute(path) for path in paths])


def _model(name: str) -> str:
    """A folder by its whole path; the name of a model on the hub stays."""
    try:
        return absolute(name) if name and Path(name).expanduser().is_dir() else name
    except (OSError, RuntimeError):
        return name


def absolute(path: str) -> str:
    """The path from the root; `~` is the home folder, and stays as it is where there is none."""
    return str(from_the_root(path))
