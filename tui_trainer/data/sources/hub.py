"""A data set of the Hugging Face Hub: how it is written in data.path, and where it is on this machine.

`hub:owner/name[@revision][/what of it]`, or `owner/name` and `name` where no file or folder is called so. The last
part is a folder, a file or a glob of the repository; the form is that of huggingface_hub's `hf://` paths. Nothing is
fetched, but for data sets that are read from there (data.streaming): nothing but what is made of their rows is kept on
this disk. Their commit is asked for once in a process, and its files are read by ranges. What a file holds is told by
the hub's own hash, so that prepared data is found again.
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
    ABOUT,
    LATER_WORK,
    README,
    NamedSplits,
    configured_splits,
    has_configurations,
    is_about_the_data,
)
from tui_trainer.errors import DataError
from tui_trainer.files.hub_layout import (
    HUB_PREFIX,
    NAME_PART,
    cache_folder,
    cached_repositories,
    commit_hint,
    is_hub_name,
    is_revision,
    network_errors,
    network_reason,
    repository_folder,
)
from tui_trainer.terminal.safe_text import one_line

MAIN = "main"
FORM = "hub:owner/name, optionally followed by @revision and /folder or /file"
GLOB_SIGNS = frozenset("*?[")
# Two kinds of revision hold a `/`; in all others it is written %2F. Source: HfFileSystem.resolve_path of
# huggingface_hub, SPECIAL_REFS_REVISION_REGEX.
_REVISION = r"refs/convert/\w+|refs/pr/\d+|[^/@]+"
_FORM = re.compile(rf"({NAME_PART}/{NAME_PART}|{NAME_PART}(?![^@]))(?:@({_REVISION}))?(?:/(.*))?")
_NO_ROWS = frozenset({"text", "unknown", "unsupported"})
_MOST_SHOWN = 6


@dataclass(frozen=True, slots=True)
class HubPath:
    """A data set, or a part of one: `inside` is a folder, a file or a glob, empty for all of it."""

    name: str
    revision: str = MAIN
    inside: str = ""

    def __str__(self) -> str:
        revision = self.revision if self.revision.startswith("refs/") else self.revision.replace("/", "%2F")
        at = "" if self.revision == MAIN else f"@{revision}"
        return f"{HUB_PREFIX}{self.name}{at}{'/' * bool(self.inside)}{self.inside}"


def parse_hub_path(path: str, revision: str = "") -> HubPath:
    """`path` with or without `hub:` before it; `revision` is of what names none itself.

    Raises DataError for what cannot be the name of a data set, and for two revisions.
    """
    found = _FORM.fullmatch(path.removeprefix(HUB_PREFIX).strip())
    if not found or not is_hub_name(found[1]):
        raise DataError(f"'{one_line(path, 120)}' is not a valid name of a dataset on the Hub", hint=f"expected {FORM}")
    at = (found[2] or "").replace("%2F", "/")
    if at and revision and revision not in (MAIN, at):
        what = f"two revisions are set for {found[1]}"
        raise DataError(what, hint=f"remove @{one_line(at, 80)} or {one_line(revision, 80)}")
    at = at or revision or MAIN
    if not is_revision(at):
        raise DataError(f"'{one_line(at, 80)}' is not a valid revision", hint="give a branch, a tag or a commit")
    steps = [step for step in (found[3] or "").split("/") if step not in ("", ".")]
    if ".." in steps:
        raise DataError(f"'{one_line(path, 120)}' points outside its dataset", hint=f"expected {FORM}")
    return HubPath(found[1], at, "/".join(steps))


def snapshot(wanted: HubPath) -> tuple[Path, list[str] | None] | None:
    """The folder in the hub's cache, and the names of all files of the commit where whoever fetched it kept them."""
    if not repository_folder("datasets", wanted.name).is_dir():
        return None
    from huggingface_hub import errors, get_cached_repo_tree, snapshot_download

    where: dict[str, Any] = {"repo_type": "dataset", "revision": wanted.revision, "cache_dir": str(cache_folder())}
    try:
        folder = Path(snapshot_download(wanted.name, **where, local_files_only=True, allow_patterns=README))
    except errors.IncompleteSnapshotError as error:
        folder = Path(error.snapshot_path)
    except errors.LocalEntryNotFoundError:
        return None
    try:
        return folder, [file.path for file in get_cached_repo_tree(wanted.name, **where)]
    except errors.CachedRepoTreeNotFoundError:
        return folder, None


def names_in_the_cache() -> list[str]:
    """Data sets that were fetched to this machine before."""
    return sorted(name for name, _ in cached_repositories("datasets"))


def names_wanted(wanted: HubPath, here: Sequence[str], listed: Sequence[str] | None) -> list[str]:
    """The data that is wanted, of the files that are `here`. Raises DataError where it is not, or not all, of them."""
    names = chosen_names(here if listed is None else listed, wanted.inside)
    if missing := len({*names} - {*here}):
        what = f"{missing:,} of the {len(names):,} files of {one_line(str(wanted), 120)} are not on this machine"
        raise DataError(what, hint=remedies(wanted))
    if not names and wanted.inside and listed is None:
        what = f"{one_line(str(wanted), 120)} is not on this machine, but other files of the dataset are"
        raise DataError(what, hint=remedies(wanted))
    if not names:
        raise no_such_part(wanted, listed or here)
    return names


def chosen_names(names: Sequence[str], inside: str) -> list[str]:
    """The data of what `inside` names: all, a folder, a glob, or one file, which may be of any form. Sorted."""
    if inside in names:
        return [inside]
    if GLOB_SIGNS & {*inside}:
        return data_names(name for name in names if _matches(name.split("/"), inside.split("/")))
    return data_names(name for name in names if not inside or name.startswith(f"{inside}/"))


def data_names(names: Iterable[str]) -> list[str]:
    """The files of rows among all files of a repository; where there are none, the .txt files. Sorted."""
    shown = [name for name in names if not any(step.startswith(".") for step in name.split("/"))]
    files = [(name, name.rpartition("/")[2]) for name in shown if form_of(PurePosixPath(name)) not in _NO_ROWS]
    rows = [name for name, last in files if last not in ABOUT and not LATER_WORK.fullmatch(last)]
    texts = (name for name in shown if name.lower().removesuffix(".gz").endswith(".txt"))
    return sorted(rows or [name for name in texts if not is_about_the_data(name)])


def no_such_part(wanted: HubPath, names: Iterable[str]) -> DataError:
    """For a folder or file that the data set does not have; `names` are those that it has."""
    found = chosen_names([*names], "")
    shown = "; ".join(one_line(name, 80) for name in found[:_MOST_SHOWN])
    what = f"{wanted.name} has no data in '{one_line(wanted.inside, 120)}'"
    return DataError(what, hint=f"files found: {shown}" if shown else "the dataset has no file of a supported format")


def remedies(wanted: HubPath) -> str:
    short = wanted.name.rpartition("/")[2]
    command = f"tui-trainer download --data {shlex.quote(one_line(str(wanted), 160))}"
    here = commit_hint("datasets", wanted.name, "data.revision")
    return f"{here}run `{command}`, or copy its files into ./{short} and give that path"


def _matches(steps: list[str], pattern: list[str]) -> bool:
    """As `glob.glob` takes a pattern: `*` stays in its folder, `**` is any number of folders."""
    if not steps or not pattern:
        return not steps and not pattern
    if pattern[0] == "**":
        return _matches(steps, pattern[1:] or ["*"]) or _matches(steps[1:], pattern)
    return fnmatchcase(steps[0], pattern[0]) and _matches(steps[1:], pattern[1:])


@cache
def remote_files(wanted: HubPath) -> tuple[dict[str, SourceFile], str]:
    """All files of the commit by their names, and what its README.md says.

    Raises DataError where the hub has no such data set, and where it cannot be reached.
    """
    from huggingface_hub import HfApi, HfFileSystem, errors

    try:
        info = HfApi(library_name="tui-trainer").dataset_info(
            wanted.name, revision=wanted.revision, files_metadata=True
        )
        place = f"hf://datasets/{wanted.name}@{info.sha}"
        files = {
            file.rfilename: SourceFile(
                path=Path(place, file.rfilename),
                label=one_line(f"{wanted.name}/{file.rfilename}"),
                size_bytes=file.size or 0,
                remote=f"{place}/{file.rfilename}",
                digest=(file.lfs.sha256 if file.lfs else file.blob_id) or f"{info.sha}",
            )
            for file in info.siblings or ()
        }
        readme = HfFileSystem().read_text(files[README].remote, encoding="utf-8") if README in files else ""
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        what = f"the Hub has no dataset {wanted.name} at {one_line(wanted.revision, 80)} that this account can access"
        raise DataError(what, hint="check the spelling; a private or gated dataset needs `hf auth login`") from None
    except network_errors() as error:
        hint = "data.streaming reads from the Hub; download the dataset while online, and set data.streaming to false"
        raise DataError(f"the dataset {wanted.name} cannot be streamed: {network_reason(error)}", hint=hint) from None
    return files, readme


def remote_splits(wanted: HubPath, name: str) -> tuple[dict[str, SourceFile], NamedSplits | None]:
    """The data that is wanted, by its names; and its splits where the README.md declares them for a configuration."""
    files, readme = remote_files(HubPath(wanted.name, wanted.revision))
    if not wanted.inside:
        # Which file is of which split is a matter of names alone, and `datasets` looks for them in a folder.
        with TemporaryDirectory() as place:
            folder = Path(place)
            (folder / README).write_text(readme, encoding="utf-8")
            if has_configurations(folder):
                for file in chosen_names([*files], ""):
                    (folder / file).parent.mkdir(parents=True, exist_ok=True)
                    (folder / file).touch()
                splits, declared = configured_splits(folder, name, one_line(str(wanted), 120))
                return {file: replace(found, **declared) for file, found in files.items()}, splits
    names = chosen_names([*files], wanted.inside)
    if not names:
        raise no_such_part(wanted, files)
    return {file: files[file] for file in names}, None
