"""Which weights a run has to show, without torch: an answer before seconds of imports."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.errors import FolderError
from tui_trainer.runs.folder import RunFolder
from tui_trainer.training.checkpoint_folder import newest_whole


def weights_of(run: RunFolder) -> Path:
    """The folder to load a model from: the final one, else the newest checkpoint. Raises FolderError without any."""
    if run.model.is_dir():
        return run.model
    checkpoint = newest_whole(run.checkpoints, lambda damage: None)
    if checkpoint is None:
        hint = f"`tui-trainer resume {run.name}` trains it"
        raise FolderError("this run has no model yet, and no checkpoint", where=run.name, hint=hint)
    return checkpoint.path
