"""Data sets of the Hugging Face Hub: their notation in data.path, and where they are on this machine.

`hub:owner/name[@revision][/part]`, or `owner/name` and `name` if no file or folder has that name. The part is a folder,
a file or a glob in the repository, as in huggingface_hub's `hf://` paths. Nothing is downloaded. Only with
data.streaming are files read from the Hub, by ranges, and only what is made of their rows is stored here. Their commit
is requested once per process. The Hub's own hash identifies a file's content, so that prepared data is found again.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from tui_trainer.data.sources.source_file import SourceFile, form_of
from tui_trainer.data.sources.splits import (
    DESCRIPTION_FILES,
    MAP_CACHE_FILE,
    README,
    NamedSplits,
    configured_splits,
    has_configurations,
    is_readme_or_licence,
)
from tui_trainer.errors import DataError
from tui_trainer.files import hub_layout
from tui_trainer.terminal.safe_text import one_line

MAIN = "main"
HUB_PATH_FORMAT = "hub:owner/name, optionally followed by @revision and /folder or /file"
GLOB_SIGNS = frozenset("*?[")
# Two kinds of revision contain a `/`; in all others it is written %2F. Source: HfFileSystem.resolve_path of
# huggingface_hub, SPECIAL_REFS_REVISION_REGEX.
_REVISION = r"refs/convert/\w+|refs/pr/\d+|[^/@]+"
_NAME = hub_layout.NAME_PART
_HUB_PATH = re.compile(rf"({_NAME}/{_NAME}|{_NAME}(?![^@]))(?:@({_REVISION}))?(?:/(.*))?")
_FORMS_WITHOUT_ROWS = frozenset({"text", "unknown", "unsupported"})
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class HubPath:
    """A data set of the Hub, or the part `subpath` of it: a folder, a file or a glob; empty for the whole data set."""

    name: str
    revision: str = MAIN
    subpath: str = ""

    def __str__(self) -> str:
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        suffix = "" if self.revision == MAIN else f"@{revision}"
        return f"{hub_layout.HUB_PREFIX}{self.name}{suffix}{'/' * bool(self.subpath)}{self.subpath}"


def parse_hub_path(path: str, revision: str = "") -> HubPath:
    """Parse a path with or without `hub:`. `revision` applies if the path has none.

    Raises DataError for an invalid name of a data set, and for two different revisions."""
    match = _HUB_PATH.fullmatch(path.removeprefix(hub_layout.HUB_PREFIX).strip())
    if not match or not hub_layout.is_hub_name(match[1]):
        problem = f"'{one_line(path, 120)}' is not a valid name of a dataset on the Hub"
        raise DataError(problem, hint=f"expected {HUB_PATH_FORMAT}")
    chosen_revision = (match[2] or "").replace("%2F", "/")
    if chosen_revision and revision and revision not in (MAIN, chosen_revision):
        problem = f"two revisions are set for {match[1]}"
        raise DataError(problem, hint=f"remove @{one_line(chosen_revision, 80)} or {one_line(revision, 80)}")
    chosen_revision = chosen_revision or revision or MAIN
    if not hub_layout.is_revision(chosen_revision):
        problem = f"'{one_line(chosen_revision, 80)}' is not a valid revision"
        raise DataError(problem, hint="give a branch, a tag or a commit")
    steps = [step for step in (match[3] or "").split("/") if step not in ("", ".")]
    if ".." in steps:
        raise DataError(f"'{one_line(path, 120)}' points outside its dataset", hint=f"expected {HUB_PATH_FORMAT}")
    return HubPath(match[1], chosen_revision, "/".join(steps))


def snapshot(path: HubPath) -> tuple[Path, list[str] | None] | None:
    """Return the folder in the Hub's cache and the commit's files (None if unknown), or None if nothing is cached."""
    if not hub_layout.repository_folder("datasets", path.name).is_dir():
        return None
    from huggingface_hub import errors, get_cached_repo_tree, snapshot_download

    cache_folder = str(hub_layout.cache_folder())
    location: dict[str, Any] = {"repo_type": "dataset", "revision": path.revision, "cache_dir": cache_folder}
    try:
        folder = Path(snapshot_download(path.name, **location, local_files_only=True, allow_patterns=README))
    except errors.IncompleteSnapshotError as error:
        folder = Path(error.snapshot_path)
    except errors.LocalEntryNotFoundError:
        return None
    try:
        return folder, [file.path for file in get_cached_repo_tree(path.name, **location)]
    except errors.CachedRepoTreeNotFoundError:
        return folder, None


def cached_data_sets() -> list[str]:
    """Return the names of the data sets of the Hub that are on this machine."""
    return sorted(name for name, _ in hub_layout.cached_repositories("datasets"))


def selected_names(path: HubPath, local_names: Sequence[str], commit_names: Sequence[str] | None) -> list[str]:
    """Return the names of the data files that a path selects. Raises DataError if any is not on this machine."""
    names = chosen_names(local_names if commit_names is None else commit_names, path.subpath)
    if missing_count := len({*names} - {*local_names}):
        problem = f"{missing_count:,} of the {len(names):,} files of {one_line(str(path), 120)} are not on this machine"
        raise DataError(problem, hint=missing_data_hint(path))
    if not names and path.subpath and commit_names is None:
        problem = f"{one_line(str(path), 120)} is not on this machine, but other files of the dataset are"
        raise DataError(problem, hint=missing_data_hint(path))
    if not names:
        raise missing_part(path, commit_names or local_names)
    return names


def chosen_names(names: Sequence[str], subpath: str) -> list[str]:
    """Return the data files that `subpath` selects, sorted: all, a folder's, a glob's, or one file of any form."""
    if subpath in names:
        return [subpath]
    if GLOB_SIGNS & {*subpath}:
        return data_names(name for name in names if _matches_glob(name.split("/"), subpath.split("/")))
    return data_names(name for name in names if not subpath or name.startswith(f"{subpath}/"))


def data_names(names: Iterable[str]) -> list[str]:
    """Return the files that hold rows among all files of a repository, sorted; if there are none, the .txt files."""
    visible = [name for name in names if not any(step.startswith(".") for step in name.split("/"))]
    paths = [PurePosixPath(name) for name in visible if form_of(PurePosixPath(name)) not in _FORMS_WITHOUT_ROWS]
    paths = [path for path in paths if path.name not in DESCRIPTION_FILES and not MAP_CACHE_FILE.fullmatch(path.name)]
    names_of_rows = [str(path) for path in paths]
    text_names = (name for name in visible if name.lower().removesuffix(".gz").endswith(".txt"))
    return sorted(names_of_rows or [name for name in text_names if not is_readme_or_licence(name)])


def missing_part(path: HubPath, names: Iterable[str]) -> DataError:
    """Return the error for a folder or file that the data set does not have. `names` are the files that it has."""
    names_of_data = chosen_names([*names], "")
    shown_names = "; ".join(one_line(name, 80) for name in names_of_data[:_MOST_SHOWN])
    cause = f"{path.name} has no data in '{one_line(path.subpath, 120)}'"
    shown_files = f"files found: {shown_names}" if shown_names else ""
    return DataError(cause, hint=shown_files or "the dataset has no file of a supported format")


def missing_data_hint(path: HubPath) -> str:
    folder = path.name.rpartition("/")[2]
    command = f"tui-trainer download --data {shlex.quote(one_line(str(path), 160))}"
    local_commits = hub_layout.commit_hint("datasets", path.name, "data.revision")
    return f"{local_commits}run `{command}`, or copy the files of the dataset into ./{folder} and give that path"


def _matches_glob(steps: list[str], pattern: list[str]) -> bool:
    """Return whether a path matches a glob, both split at "/": `*` matches within a name, `**` any folders."""
    if not steps or not pattern:
        return not steps and not pattern
    if pattern[0] == "**":
        return _matches_glob(steps, pattern[1:] or ["*"]) or _matches_glob(steps[1:], pattern)
    return fnmatchcase(steps[0], pattern[0]) and _matches_glob(steps[1:], pattern[1:])


@cache
def remote_files(path: HubPath) -> tuple[dict[str, SourceFile], str]:
    """Return all files of the commit by name, and the content of its README.md.

    Raises DataError if the Hub has no such data set, or cannot be reached."""
    from huggingface_hub import HfApi, HfFileSystem, errors

    try:
        info = HfApi(library_name="tui-trainer").dataset_info(path.name, revision=path.revision, files_metadata=True)
        address = f"hf://datasets/{path.name}@{info.sha}"
        files = {
            file.rfilename: SourceFile(
                path=Path(address, file.rfilename),
                label=one_line(f"{path.name}/{file.rfilename}"),
                size_bytes=file.size or 0,
                remote=f"{address}/{file.rfilename}",
                digest=(file.lfs.sha256 if file.lfs else file.blob_id) or f"{info.sha}",
            )
            for file in info.siblings or ()
        }
        readme = HfFileSystem().read_text(files[README].remote, encoding="utf-8") if README in files else ""
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        problem = f"the Hub has no dataset {path.name} at {one_line(path.revision, 80)} that this account can access"
        raise DataError(problem, hint="check the spelling; a private or gated dataset needs `hf auth login`") from None
    except hub_layout.network_errors() as error:
        hint = "data.streaming reads from the Hub; download the dataset while online, and set data.streaming to false"
        reason = hub_layout.network_reason(error)
        raise DataError(f"the dataset {path.name} cannot be streamed: {reason}", hint=hint) from None
    return files, readme


def remote_splits(path: HubPath, name: str) -> tuple[dict[str, SourceFile], NamedSplits | None]:
    """Return the selected files by name, and their splits if the README.md declares configurations, else None."""
    files, readme = remote_files(HubPath(path.name, path.revision))
    if not path.subpath:
        # `datasets` assigns files to splits by name alone, but searches them in a folder, so empty files suffice.
        with TemporaryDirectory() as temporary_path:
            folder = Path(temporary_path)
            (folder / README).write_text(readme, encoding="utf-8")
            if has_configurations(folder):
                for file_name in chosen_names([*files], ""):
                    (folder / file_name).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file_name).touch()
                splits, declared = configured_splits(folder, name, one_line(str(path), 120))
                return {file_name: replace(source_file, **declared) for file_name, source_file in files.items()}, splits
    names = chosen_names([*files], path.subpath)
    if not names:
        raise missing_part(path, files)
    return {file_name: files[file_name] for file_name in names}, None
