"""Names on the Hugging Face Hub, and the location of the Hub's cache on this disk.

This module does not import huggingface_hub, which takes about a second."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from tui_trainer.files.local_paths import absolute_path
from tui_trainer.terminal.safe_text import one_line

Repository = Literal["models", "datasets"]
# Prefixes in data.path for data that is not a file on this machine.
HUB_PREFIX, SAMPLE_PREFIX = "hub:", "sample:"

# Source: validate_repo_id in huggingface_hub/utils/_validators.py.
NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB_NAME = re.compile(rf"(?:{NAME_PART}/)?{NAME_PART}")
_LONGEST_NAME = 96
# Endings of data files (a test compares them with the formats that are read), weights and settings. Other words after a
# dot can belong to a name on the hub.
_FILE_ENDINGS = frozenset(
    ".txt .md .rst .py .jsonl .jsonlines .ndjson .json .csv .tsv .parquet .arrow .feather .gz "
    ".conll .conllu .conllx .bio .iob .iob2 .bioes "
    ".xlsx .xls .ods .docx .pdf .zip .tar .tgz .zst .bz2 .xz .7z "
    ".safetensors .bin .pt .gguf .yaml .yml .toml .sh".split()
)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")


def url_scheme(path: str) -> str:
    """Return the scheme of a URL, such as `https://`; empty for a path."""
    scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path)
    return scheme[0] if scheme else ""


def is_hub_name(name: str) -> bool:
    """Return whether a text is a valid name of a repository on the hub: `org/name`, or `name`."""
    is_valid = len(name) <= _LONGEST_NAME and _HUB_NAME.fullmatch(name) is not None
    return is_valid and "--" not in name and ".." not in name


def could_be_on_the_hub(path: str) -> bool:
    """Return whether a path in a config can be a name on the hub: it has the right form and no known file ending."""
    return is_hub_name(path) and PurePosixPath(path).suffix.lower() not in _FILE_ENDINGS


def published_name(name: str) -> str:
    """Return the name of a model or data set in a form that can be published, without the user's paths.

    A name on the hub stays unchanged. A path in the hub's cache becomes the name of the repository. Any other path
    becomes its last component."""
    if not name.startswith(("/", "~", ".")):
        return name
    path = PurePosixPath(name)
    cache_part = next((part for part in path.parts if part.startswith(("models--", "datasets--"))), "")
    return "/".join(cache_part.split("--")[1:]) or path.name


def is_revision(revision: str) -> bool:
    """Return whether a text can be the name of a branch, a tag or a commit."""
    return _REVISION.fullmatch(revision) is not None and ".." not in revision


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder that caches models and data sets from the Hugging Face Hub.

    Source: huggingface_hub's documentation, "Environment variables": HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME."""
    if cache := environment.get("HF_HUB_CACHE"):
        return absolute_path(cache)
    return huggingface_folder(environment) / "hub"


def huggingface_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which all Hugging Face libraries keep their downloads."""
    if home := environment.get("HF_HOME"):
        return absolute_path(home)
    return user_cache_folder(environment) / "huggingface"


def user_cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the user's cache folder, for files that programs can create again (XDG)."""
    return absolute_path(environment.get("XDG_CACHE_HOME") or "~/.cache")


def repository_folder(kind: Repository, name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the cache folder with all revisions of a model or a data set."""
    return cache_folder(environment) / f"{kind}--{name.replace('/', '--')}"


def commit_hint(kind: Repository, name: str, setting: str) -> str:
    """Return a hint that names a cached commit to use as `setting`; empty if the cache has the commit of `main`."""
    folder = repository_folder(kind, name)
    commits = sorted(path.name for path in (folder / "snapshots").glob("*") if path.is_dir())
    if not commits or (folder / "refs" / "main").exists():
        return ""
    return f"the cache has commit {one_line(commits[0], 40)}: set {setting} to this commit; or "


def cached_repositories(kind: Repository) -> Iterator[tuple[str, Path]]:
    """Yield the name and the folder of each model or data set in the hub's cache, sorted by name."""
    for folder in sorted(cache_folder().glob(f"{kind}--*")):
        name = "/".join(folder.name.split("--")[1:])
        if is_hub_name(name):
            yield name, folder


def network_reason(error: BaseException) -> str:
    """Return the first line of a network error's message, or the name of its class if it has none."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0], 160)


def network_errors() -> tuple[type[Exception], ...]:
    """Return the error classes that huggingface_hub raises if the hub cannot be reached or a connection breaks."""
    from huggingface_hub import errors

    # huggingface_hub's own error derives from those of its HTTP library, which has changed more than once.
    return cast("tuple[type[Exception], ...]", (OSError, *errors.HfHubHTTPError.__bases__))
