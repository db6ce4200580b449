"""Paths of a config, made independent of the folder that the program was started in."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.config.sections import Config


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from another folder, and its data has one name."""
    path = config.data.path
    if path and not path.startswith("sample:"):
        path = absolute(path)
    data = config.data.model_copy(update={"path": path})
    output = config.output.model_copy(update={"runs_dir": absolute(config.output.runs_dir)})
    return config.model_copy(update={"data": data, "output": output})


def absolute(path: str) -> str:
    """The path from the root; `~` is the home folder, and stays as it is where there is none."""
    try:
        return str(Path(path).expanduser().absolute())
    except RuntimeError:
        return str(Path(path).absolute())
