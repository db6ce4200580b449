"""Names on the Hugging Face Hub, and where its cache is on this disk, without the second that huggingface_hub takes to
import.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Literal, cast

from tui_trainer.files.local_paths import from_the_root
from tui_trainer.terminal.safe_text import one_line

Repository = Literal["models", "datasets"]
# How data.path names what is no file of this machine.
HUB_PREFIX, SAMPLE_PREFIX = "hub:", "sample:"

# Source: validate_repo_id in huggingface_hub/utils/_validators.py.
NAME_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?"
_HUB_NAME = re.compile(rf"(?:{NAME_PART}/)?{NAME_PART}")
_LONGEST_NAME = 96
# Those of files of data (a test compares them with the forms that are read), of weights and of settings: a name on the
# hub may have a dot in it.
_FILE_ENDINGS = frozenset(
    ".txt .md .rst .py .jsonl .jsonlines .ndjson .json .csv .tsv .parquet .arrow .feather .gz "
    ".conll .conllu .conllx .bio .iob .iob2 .bioes "
    ".xlsx .xls .ods .docx .pdf .zip .tar .tgz .zst .bz2 .xz .7z "
    ".safetensors .bin .pt .gguf .yaml .yml .toml .sh".split()
)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/-]{0,199}")


def address_of(path: str) -> str:
    """Return how an address of the net begins, such as https://; empty for a path."""
    found = re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path)
    return found[0] if found else ""


def is_hub_name(name: str) -> bool:
    """Whether the hub could have something of this name: `org/name`, or `name`."""
    fits = len(name) <= _LONGEST_NAME and _HUB_NAME.fullmatch(name) is not None
    return fits and "--" not in name and ".." not in name


def could_be_on_the_hub(path: str) -> bool:
    """Whether a path in a config may be such a name: it has no known ending of a file."""
    return is_hub_name(path) and PurePosixPath(path).suffix.lower() not in _FILE_ENDINGS


def published_name(name: str) -> str:
    """A name on the hub as it is; of a folder or file of this machine its last part, or the repository in whose cache
    it lies."""
    if not name.startswith(("/", "~", ".")):
        return name
    path = PurePosixPath(name)
    cached = next((part for part in path.parts if part.startswith(("models--", "datasets--"))), "")
    return "/".join(cached.split("--")[1:]) or path.name


def is_revision(revision: str) -> bool:
    """Whether it could be a branch, a tag or a commit."""
    return _REVISION.fullmatch(revision) is not None and ".." not in revision


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where models and data sets from the Hugging Face Hub are kept.

    Source: huggingface_hub's documentation, "Environment variables": HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME.
    """
    if cache := environment.get("HF_HUB_CACHE"):
        return from_the_root(cache)
    return huggingface_folder(environment) / "hub"


def huggingface_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where all libraries of Hugging Face keep what they fetched."""
    if home := environment.get("HF_HOME"):
        return from_the_root(home)
    return user_cache_folder(environment) / "huggingface"


def user_cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where programs of this user keep what can be made again (XDG)."""
    return from_the_root(environment.get("XDG_CACHE_HOME") or "~/.cache")


def repository_folder(kind: Repository, name: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the cache keeps all revisions of a model or a data set."""
    return cache_folder(environment) / f"{kind}--{name.replace('/', '--')}"


def commit_hint(kind: Repository, name: str, setting: str) -> str:
    """Return how to read a commit of a repository in the cache; empty where the cache says which commit is main."""
    folder = repository_folder(kind, name)
    here = sorted(path.name for path in (folder / "snapshots").glob("*") if path.is_dir())
    if not here or (folder / "refs" / "main").exists():
        return ""
    return f"the cache has commit {one_line(here[0], 40)}: set {setting} to this commit; or "


def cached_repositories(kind: Repository) -> Iterator[tuple[str, Path]]:
    """(name, folder) of each model or data set that was fetched to this machine before, by name."""
    for folder in sorted(cache_folder().glob(f"{kind}--*")):
        name = "/".join(folder.name.split("--")[1:])
        if is_hub_name(name):
            yield name, folder


def network_reason(error: BaseException) -> str:
    """The first line of what such an error says, else its kind."""
    return one_line((str(error).strip().splitlines() or [type(error).__name__])[0], 160)


def network_errors() -> tuple[type[Exception], ...]:
    """What huggingface_hub lets through where the hub is not reached, or a connection breaks; it is imported for it."""
    from huggingface_hub import errors

    # The bases of its own error are those of the HTTP library under it, which has changed more than once.
    return cast("tuple[type[Exception], ...]", (OSError, *errors.HfHubHTTPError.__bases__))
