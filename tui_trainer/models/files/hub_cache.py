"""Where a model is on this machine: a folder, or a snapshot in the hub's cache. Nothing is fetched."""

import os
from collections.abc import Mapping
from pathlib import Path

from tui_trainer.files.hub_layout import cache_folder, commit_hint, is_hub_name, is_revision, repository_folder
from tui_trainer.files.local_paths import at_home, nearest_path
from tui_trainer.hardware.storage import is_there
from tui_trainer.models.config_json import bad_model
from tui_trainer.terminal.safe_text import one_line


def local_folder(name: str) -> Path | None:
    """The folder that the name is, or None where it can only be a name on the hub.

    Raises ConfigError for a file, and for what is neither a folder nor such a name.
    """
    if not name.strip() or "\0" in name:
        raise bad_model("no model is set", hint="give a folder with a model, or its name on the hub")
    path = at_home(name)
    if is_there(path) and path.is_dir():
        return path.absolute()
    if is_there(path):
        raise bad_model(f"{one_line(name, 120)} is a file, not a folder", hint="give the folder that holds config.json")
    if not is_hub_name(name):
        near = nearest_folder(name)
        hint = f"did you mean {near}?" if near else "give a folder that holds a config.json"
        raise bad_model(f"the folder {one_line(name, 120)} does not exist", hint=hint)
    return None


def nearest_folder(name: str) -> str:
    """The folder with a model that may have been meant, safe to show; empty where none is near."""
    near = nearest_path(name, folders_only=True)
    return one_line(near, 120) if near and (at_home(near) / "config.json").is_file() else ""


def cached_snapshot(name: str, revision: str, environment: Mapping[str, str] = os.environ) -> Path | None:
    """The folder with the files of this revision in the hub's cache, or None where it has no config.json. A commit may
    be given as revision.
    """
    if not is_revision(revision):
        raise bad_model(f"{one_line(revision, 80)!r} is not a valid revision", hint="use a branch, a tag or a commit")
    if not repository_folder("models", name, environment).is_dir():  # importing huggingface_hub takes a second or more
        return None
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(name, "config.json", cache_dir=cache_folder(environment), revision=revision)
    return Path(config).parent if isinstance(config, str) else None


def remedies(name: str) -> str:
    """What to do about a model that is not on this machine."""
    short = name.rpartition("/")[2]
    here = commit_hint("models", name, "model.revision")
    return f"{here}run `tui-trainer download {name}`, or copy the model into ./{short} and give that path"
