"""Find a model on this machine: in a folder, or as a snapshot in the hub's cache. Nothing is downloaded."""

import os
from collections.abc import Mapping
from pathlib import Path

from tui_trainer.files.hub_layout import cache_folder, commit_hint, is_hub_name, is_revision, repository_folder
from tui_trainer.files.local_paths import expand_home, nearest_path
from tui_trainer.hardware.storage import is_there
from tui_trainer.models.config_json import bad_model
from tui_trainer.terminal.safe_text import one_line


def local_folder(name: str) -> Path | None:
    """Return the folder that the name refers to, or None if it can only be a name on the hub.

    Raise ConfigError if it is a file, or neither a folder nor a valid name on the hub."""
    if not name.strip() or "\0" in name:
        raise bad_model("no model is set", hint="give the folder of a model, or the name of a model on the hub")
    path = expand_home(name)
    if is_there(path) and path.is_dir():
        return path.absolute()
    if is_there(path):
        raise bad_model(f"{one_line(name, 120)} is a file, not a folder", hint="give the folder that holds config.json")
    if not is_hub_name(name):
        nearest = nearest_folder(name)
        hint = f"did you mean {nearest}?" if nearest else "give a folder that holds a config.json"
        raise bad_model(f"the folder {one_line(name, 120)} does not exist", hint=hint)
    return None


def nearest_folder(name: str) -> str:
    """Return the folder with a model whose name is most similar, safe to show; "" if none is similar."""
    folder_path = nearest_path(name, folders_only=True)
    return one_line(folder_path, 120) if folder_path and (expand_home(folder_path) / "config.json").is_file() else ""


def cached_snapshot(name: str, revision: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder of a revision (branch, tag or commit) with a config.json in the hub's cache, or None."""
    if not is_revision(revision):
        raise bad_model(f"{one_line(revision, 80)!r} is not a valid revision", hint="use a branch, a tag or a commit")
    if not repository_folder("models", name, environment).is_dir():  # importing huggingface_hub takes a second or more
        return None
    from huggingface_hub import try_to_load_from_cache

    config_file = try_to_load_from_cache(name, "config.json", cache_dir=cache_folder(environment), revision=revision)
    return Path(config_file).parent if isinstance(config_file, str) else None


def missing_model_hint(name: str) -> str:
    """Return a hint for a model that is not on this machine."""
    folder_name = name.rpartition("/")[2]
    hint = commit_hint("models", name, "model.revision")
    return f"{hint}run `tui-trainer download {name}`, or copy the model into ./{folder_name} and give that path"
