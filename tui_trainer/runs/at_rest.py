"""Renaming and deleting a run that no process owns or reads. Only what a run has made is removed, and no link is
followed.

A folder is renamed before it is deleted: what a crash leaves behind is recognised as half deleted, and nobody starts
in it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tui_trainer.errors import FolderError, Problem, system_reason
from tui_trainer.runs import registry
from tui_trainer.runs.folder import MARKER, RunFolder, check_name, folder_size, sync_folder
from tui_trainer.runs.lock import RunLock, folder_lock, lock_hint, owner, refuse_in_use
from tui_trainer.runs.slurm import active_job
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import format_bytes

_DELETING: Final = ".deleting-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """The bytes that were freed, and the names in the folder that stay: no run made them."""

    freed_bytes: int
    kept: tuple[str, ...] = ()

    def words(self, name: str) -> list[str]:
        """Of the run `name`, safe to show."""
        kept = (
            [f"kept files that were not created by a run: {one_line(', '.join(self.kept), 300)}"] if self.kept else []
        )
        return [f"deleted {one_line(name)}: {format_bytes(self.freed_bytes)} freed", *kept]


def remains_of(root: Path) -> Path:
    """Where the run of this folder lies while it is deleted."""
    return root if root.name.startswith(_DELETING) else root.with_name(_DELETING + root.name)


def named_root(root: Path) -> Path:
    """The folder that a run has, or had before it was half deleted."""
    return root.with_name(root.name.removeprefix(_DELETING))


def bytes_to_free(root: Path) -> int:
    """What `delete` would free. Raises FolderError where it would refuse."""
    remains = remains_of(root)
    try:
        if root != remains and os.path.lexists(root):
            _refuse_foreign_or_owned(RunFolder(root))
            refuse_queued(RunFolder(root))
            with folder_lock(root):
                refuse_in_use(RunFolder(root))
        return sum(folder_size(place).freed_bytes for place in {root, remains})
    except OSError as error:
        raise _refused("deleted", root, error) from error


def delete(root: Path) -> Deleted:
    """Deletes a run or the rest of one that was half deleted; of one that is gone, its line in the index.

    Raises FolderError for a run that some process owns or reads, for a link, for a folder that is no run's, and when
    the system refuses; a run that was renamed by then is half deleted.
    """
    root = root.absolute()
    remains, named = remains_of(root), named_root(root)
    freed_bytes = 0
    kept: tuple[str, ...] = ()
    try:
        if root != remains and os.path.lexists(root):
            refuse_queued(RunFolder(root))
            with _at_rest(RunFolder(root)):
                freed_bytes += _remove(remains)
                os.rename(root, remains)  # noqa: PTH104 - beside os.path.lexists, in the same words
                sync_folder(root.parent)
        freed_bytes += _remove(remains)
        if os.path.lexists(remains):
            kept = tuple(sorted(entry.name for entry in remains.iterdir()))
            os.rename(remains, named)  # noqa: PTH104
    except OSError as error:
        raise _refused("deleted", root, error) from error
    if kept or not os.path.lexists(named):
        registry.forget(named)
    return Deleted(freed_bytes=freed_bytes, kept=kept)


def rename(root: Path, name: str) -> Problem | None:
    """Gives a run another name, on the disk and in the index. The problem that the index cannot be written undoes
    nothing.

    Raises FolderError for a name that no run can have or another one has, for a run that some process owns or
    reads, for a folder that is no run's, and when the system refuses.
    """
    if problem := check_name(name):
        raise FolderError(replace(problem, key=""))
    root = root.absolute()
    target = root.with_name(name)
    try:
        with _at_rest(RunFolder(root)):
            if RunFolder(root).base.is_dir():
                hint = "`tui-trainer export RUN --to merged` writes a merged model, which can be moved"
                message = "cannot be renamed: the adapter refers by this path to the base model in the subfolder `base`"
                raise FolderError(message, where=one_line(str(root)), hint=hint)
            if os.path.lexists(target):
                raise FolderError("this exists already", where=one_line(str(target)), hint="choose another name")
            os.rename(root, target)  # noqa: PTH104
            sync_folder(root.parent)
    except OSError as error:
        raise _refused("renamed", root, error) from error
    return registry.move(root, target)


def refuse_queued(folder: RunFolder) -> None:
    """Raises FolderError for a run whose job waits: it would not find its folder. Slurm may take its time to answer."""
    if owner(folder.lock) is None and (job := active_job(folder)):
        hint = f"`tui-trainer stop {shell_word(folder.name)}` removes it from the queue"
        raise FolderError(f"job {job} of this run is in the queue", where=one_line(str(folder.root)), hint=hint)


@contextmanager
def _at_rest(folder: RunFolder) -> Iterator[None]:
    """Keeps every other process out of the folder of a run that none owns or reads."""
    _refuse_foreign_or_owned(folder)
    with RunLock(folder.lock), folder_lock(folder.root):
        refuse_in_use(folder)
        yield


def _refuse_foreign_or_owned(folder: RunFolder) -> None:
    made_here = (folder.root / MARKER).is_file() or (folder.config.is_file() and folder.journal.is_file())
    if folder.root.is_symlink() or not made_here:
        what = "this is a link" if folder.root.is_symlink() else "this is not the folder of a run"
        raise FolderError(what, where=one_line(str(folder.root)), hint="remove it by hand if it is not needed")
    # The lock itself lets a process take its own run again, where the file system knows no locks.
    if holder := owner(folder.lock):
        hint = lock_hint(holder, folder.lock, f"`tui-trainer stop {shell_word(folder.name)}` ends it")
        raise FolderError(f"in use by {holder}", where=one_line(str(folder.root)), hint=hint)


def _remove(remains: Path) -> int:
    """Removes what a run has made, and the folder unless something else is in it. Returns the bytes that are freed."""
    if not os.path.lexists(remains):
        return 0
    if remains.is_symlink():
        raise FolderError("this is a link", where=one_line(str(remains)), hint="remove it by hand")
    freed_bytes = folder_size(remains).freed_bytes
    RunFolder(remains).remove_ours()
    if not any(remains.iterdir()):
        remains.rmdir()
    return freed_bytes


def _refused(what: str, root: Path, error: OSError) -> FolderError:
    return FolderError(f"cannot be {what}: {system_reason(error)}", where=one_line(str(root)))
