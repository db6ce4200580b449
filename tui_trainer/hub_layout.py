"""How the cache of the Hugging Face Hub lies on this disk, and which names it can hold. Nothing is fetched or asked.

`models--ORG--NAME/refs/REVISION`, `datasets--ORG--NAME` for data sets, holds a commit, and `snapshots/COMMIT/` the
files. Source: huggingface_hub's documentation, "Understand caching". Its own functions would cost a second of import.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from tui_trainer.local_paths import from_the_root

Repository = Literal["models", "datasets"]

# Source: validate_repo_id in huggingface_hub/utils/_validators.py.
NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB_NAME = re.compile(rf"(?:{NAME_PART}/)?{NAME_PART}")
_LONGEST_NAME = 96
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")


def is_hub_name(name: str) -> bool:
    """Whether the hub could have something of this name: `org/name`, or `name`."""
    fits = len(name) <= _LONGEST_NAME and _HUB_NAME.fullmatch(name) is not None
    return fits and "--" not in name and ".." not in name


def is_revision(revision: str) -> bool:
    """Whether it could be a branch, a tag or a commit."""
    return _REVISION.fullmatch(revision) is not None and ".." not in revision


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where models and data sets from the Hugging Face Hub are kept.

    Source: huggingface_hub's documentation, "Environment variables": HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME.
    """
    if cache := environment.get("HF_HUB_CACHE"):
        return from_the_root(cache)
    if home := environment.get("HF_HOME"):
        return from_the_root(home) / "hub"
    return user_cache_folder(environment) / "huggingface" / "hub"


def user_cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where programs of this user keep what can be made again (XDG)."""
    return from_the_root(environment.get("XDG_CACHE_HOME") or "~/.cache")


def repository_folder(kind: Repository, name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the cache keeps all revisions of a model or a data set."""
    return cache_folder(environment) / f"{kind}--{name.replace('/', '--')}"


def snapshot_folder(repository: Path, revision: str) -> Path | None:
    """The folder with the files of this revision, or None. A commit may be given as revision."""
    for commit in (_commit_of(repository / "refs" / revision), revision):
        folder = repository / "snapshots" / commit
        if commit and "/" not in commit and os.path.isdir(folder):  # noqa: PTH112  # Path raises in a closed folder
            return folder
    return None


def _commit_of(reference: Path) -> str:
    try:
        return reference.read_text(encoding="ascii")[:100].strip()
    except (OSError, ValueError):
        return ""
