"""Paths of a config, made independent of the folder that the program was started in."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tui_trainer.config.changes import with_changes
from tui_trainer.config.mixture import joined, paths_in
from tui_trainer.config.sections import DATA_KEY, MODEL_KEY, Config
from tui_trainer.config.token_list import with_file_read
from tui_trainer.data.sources.resolved import ResolvedData
from tui_trainer.errors import ConfigError
from tui_trainer.files.hub_layout import HUB_PREFIX, SAMPLE_PREFIX, address_of, could_be_on_the_hub
from tui_trainer.files.local_paths import from_the_root, is_here
from tui_trainer.terminal.safe_text import one_line

# Settings that name what is read.
_READ = (MODEL_KEY, DATA_KEY, "data.eval_path", "task.chat_template", "model.add_tokens")


def data_of(config: Config) -> ResolvedData:
    """Return the data that a config names. It is not looked up yet."""
    names = {"text_column", "name", "split", "eval_split", "revision", "streaming"}
    data = config.data
    return ResolvedData(paths=data.paths, eval_paths=data.eval_paths, **data.model_dump(include=names))


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from another folder, and its data has one name. A list of tokens is read: its file
    may change."""
    template = config.task.chat_template
    # The name of a template stays.
    is_file = "/" in template or template.endswith(".jinja")
    paths = {
        "task.chat_template": absolute(template) if is_file else template,
        DATA_KEY: _data(config.data.paths),
        "data.eval_path": _data(config.data.eval_paths),
        MODEL_KEY: _model(config.model.model_name_or_path),
        "output.runs_dir": absolute(config.output.runs_dir),
    }
    # One that cannot be read is reported with everything else that is wrong.
    with suppress(ConfigError):
        paths["model.add_tokens"] = with_file_read(config.model.add_tokens)
    return with_changes(config, paths)


def with_paths_beside(values: Mapping[str, Any], file: Path, notes: list[str]) -> dict[str, Any]:
    """Return the values of a config file. A relative path counts from the working directory, as on the command line,
    and from the folder of the file where nothing is there. `notes` gets a sentence on each of which that could be
    mistaken."""
    folder, here = from_the_root(str(file)).parent, from_the_root(".")
    changed = dict(values)
    for key in _READ if folder != here else ():
        value = values.get(key)
        texts: list[Any] = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) and text for text in texts):
            continue
        paths = [path for text in texts for path in (paths_in(text) if key.startswith("data.") else (text,))]
        beside = [path for path in paths if not Path(path).is_absolute() and _is_in(folder, path)]
        only_beside = [path for path in beside if not _is_in(here, path)]
        for path in beside:
            which = "read from" if path in only_beside else "read from the working directory, but is also in"
            notes.append(f"{key}: {one_line(path, 80)} is {which} the folder of {one_line(str(file), 120)}")
        if only_beside:
            changed[key] = joined([str(folder / path) if path in only_beside else path for path in paths])
    return changed


def _is_in(folder: Path, path: str) -> bool:
    try:
        return is_here(str(folder / path)) or ("*" in path and any(folder.glob(path)))
    except (OSError, ValueError, NotImplementedError):
        return False


def _data(paths: Sequence[str]) -> str:
    """Files and folders by their whole paths; samples and data sets of the hub have no place."""

    def has_no_place(path: str) -> bool:
        if path.startswith((SAMPLE_PREFIX, HUB_PREFIX)) or address_of(path):
            return True
        return could_be_on_the_hub(path) and not is_here(path)

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
