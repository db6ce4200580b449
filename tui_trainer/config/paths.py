"""Conversion of a config's paths to absolute ones, so that they do not depend on the working directory."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import with_changes
from tui_trainer.config.mixture import join_paths, paths_in
from tui_trainer.config.sections import DATA_KEY, GATE_SUITE, GENERAL_SUITE, MODEL_KEY, Config
from tui_trainer.config.token_list import replace_token_file
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import ConfigError
from tui_trainer.files.hub_layout import HUB_PREFIX, SAMPLE_PREFIX, could_be_on_the_hub, url_scheme
from tui_trainer.files.local_paths import absolute_path, path_exists
from tui_trainer.terminal.safe_text import one_line

# Settings with the paths of files that a run reads.
_PATH_SETTINGS = (
    MODEL_KEY, DATA_KEY, GATE_SUITE, "data.replay", "data.eval_path", "task.chat_template", "task.reference",
    "model.add_tokens",
)  # fmt: skip


def data_of(config: Config) -> ResolvedData:
    """Return the data that the settings of a config describe, without looking for the files."""
    field_names = {"text_column", "name", "split", "eval_split", "revision", "streaming"}
    data = config.data
    fields = data.model_dump(include=field_names)
    return ResolvedData(paths=data.paths, replay_paths=data.replay_paths, eval_paths=data.eval_paths, **fields)


def with_absolute_paths(config: Config) -> Config:
    """Return the config with absolute paths, so that a run can be resumed from any folder.

    A file of added tokens is replaced by its content, because it may change before the run is resumed."""
    template, suite = config.task.chat_template, config.evaluation.gate_suite
    is_file = "/" in template or template.endswith(".jinja")
    absolute_values = {
        "task.chat_template": absolute(template) if is_file else template,
        DATA_KEY: _absolute_data(config.data.paths),
        "data.replay": _absolute_data(config.data.replay_paths),
        "data.eval_path": _absolute_data(config.data.eval_paths),
        MODEL_KEY: _absolute_model(config.model.model_name_or_path),
        "task.reference": _absolute_model(config.task.reference),
        GATE_SUITE: suite if suite in ("", GENERAL_SUITE) else absolute(suite),
        "output.runs_dir": absolute(config.output.runs_dir),
    }
    # A later check reports a file that cannot be read.
    with suppress(ConfigError):
        absolute_values["model.add_tokens"] = replace_token_file(config.model.add_tokens)
    return with_changes(config, absolute_values)


def resolve_relative_paths(values: Mapping[str, Any], file: Path, notes: list[str]) -> dict[str, Any]:
    """Return the values of a config file with its relative paths resolved.

    A path is relative to the working directory, as on the command line. If it does not exist there, it is relative to
    the folder of the config file. Adds a note for each path that was found in the folder of the config file."""
    folder, working_directory = absolute_path(str(file)).parent, absolute_path(".")
    resolved_values = dict(values)
    for key in _PATH_SETTINGS if folder != working_directory else ():
        value = values.get(key)
        texts: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) and text for text in texts):
            continue
        paths = [path for text in texts for path in (paths_in(text) if key.startswith("data.") else (text,))]
        folder_paths = [path for path in paths if not Path(path).is_absolute() and _is_in(folder, path)]
        folder_only_paths = [path for path in folder_paths if not _is_in(working_directory, path)]
        for path in folder_paths:
            verb = "read from" if path in folder_only_paths else "read from the working directory, but is also in"
            notes.append(f"{key}: {one_line(path, 80)} is {verb} the folder of {one_line(str(file), 120)}")
        if folder_only_paths:
            resolved_paths = [str(folder / path) if path in folder_only_paths else path for path in paths]
            resolved_values[key] = join_paths(resolved_paths)
    return resolved_values


def _is_in(folder: Path, path: str) -> bool:
    try:
        return path_exists(str(folder / path)) or ("*" in path and any(folder.glob(path)))
    except (OSError, ValueError, NotImplementedError):
        return False


def _absolute_data(paths: Sequence[str]) -> str:
    """Return `data.path` with absolute files and folders. Samples and data sets on the hub stay unchanged."""

    def is_local(path: str) -> bool:
        if not path or path.startswith((SAMPLE_PREFIX, HUB_PREFIX)) or url_scheme(path):
            return False
        return not could_be_on_the_hub(path) or path_exists(path)

    return join_paths([absolute(path) if is_local(path) else path for path in paths])


def _absolute_model(name: str) -> str:
    """Return the absolute path of an existing folder, or the name of a model on the hub unchanged."""
    try:
        return absolute(name) if name and Path(name).expanduser().is_dir() else name
    except (OSError, RuntimeError):
        return name


def absolute(path: str) -> str:
    """Return the absolute path. `~` is expanded if there is a home folder."""
    return str(absolute_path(path))
