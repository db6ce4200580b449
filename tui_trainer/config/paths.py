"""Paths of a config, made independent of the folder that the program was started in."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.config.sections import Config


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from another folder, and its data has one name."""
    path = config.data.path
    if path and not path.startswith("sample:"):
        path = absolute(path)
    eval_path = absolute(config.data.eval_path) if config.data.eval_path else ""
    data = config.data.model_copy(update={"path": path, "eval_path": eval_path})
    model = config.model.model_copy(update={"model_name_or_path": _model(config.model.model_name_or_path)})
    task = config.task.model_copy(update={"chat_template": _template(config.task.chat_template)})
    output = config.output.model_copy(update={"runs_dir": absolute(config.output.runs_dir)})
    return config.model_copy(update={"task": task, "data": data, "model": model, "output": output})


def _model(name: str) -> str:
    """A folder by its whole path; the name of a model on the hub stays."""
    try:
        return absolute(name) if name and Path(name).expanduser().is_dir() else name
    except (OSError, RuntimeError):
        return name


def _template(name: str) -> str:
    """A .jinja file by its whole path; the name of a template stays."""
    return absolute(name) if "/" in name or name.endswith(".jinja") else name


def absolute(path: str) -> str:
    """The path from the root; `~` is the home folder, and stays as it is where there is none."""
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        return str(Path(path).absolute())
