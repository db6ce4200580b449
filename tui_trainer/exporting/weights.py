"""Which weights a run has to show, without torch: an answer before seconds of imports."""

import json
from pathlib import Path

from tui_trainer.errors import FolderError
from tui_trainer.runs.folder import RunFolder
from tui_trainer.safe_text import one_line
from tui_trainer.training.checkpoint_folder import newest_whole


def weights_of(run: RunFolder) -> Path:
    """The folder to load a model from: the final one, else the newest checkpoint. Raises FolderError without any."""
    if run.model.is_dir():
        if not any(run.model.glob("*.safetensors")):
            raise FolderError(f"there are no weights in its folder `{run.model.name}`", where=run.name)
        return run.model
    checkpoint = newest_whole(run.checkpoints, lambda damage: None)
    if checkpoint is None:
        hint = f"`tui-trainer resume {run.name}` trains it"
        raise FolderError("this run has no model yet, and no checkpoint", where=run.name, hint=hint)
    return checkpoint.path


def adapter_base(source: Path) -> str:
    """The model that the adapter in this folder is for, as peft wrote it down; empty where there is no adapter."""
    try:
        told = json.loads((source / "adapter_config.json").read_bytes()).get("base_model_name_or_path")
    except (OSError, ValueError, AttributeError):
        return ""
    return one_line(told, 300) if isinstance(told, str) else ""


def source_words(source: Path) -> str:
    """`model`, or `model, an adapter on /models/llama`. Raises FolderError for an adapter whose model is gone."""
    base = adapter_base(source)
    if base and Path(base).is_absolute() and not Path(base).is_dir():
        hint = f"put the model back there, or write its place into {source / 'adapter_config.json'}"
        raise FolderError(f"the adapter is for {base}, which is not there any more", where=source.name, hint=hint)
    return f"{source.name}, an adapter on {base}" if base else source.name
