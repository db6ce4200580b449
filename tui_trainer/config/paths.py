"""Paths of a config, made independent of the folder that the program was started in."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.config.sections import Config


def with_absolute_paths(config: Config) -> Config:
    """So that a run can be resumed from another folder."""
    path = config.data.path
    if not path.startswith("sample:"):
        path = str(Path(path).expanduser().absolute())
    runs_dir = str(Path(config.output.runs_dir).expanduser().absolute())
    data = config.data.model_copy(update={"path": path})
    output = config.output.model_copy(update={"runs_dir": runs_dir})
    return config.model_copy(update={"data": data, "output": output})
