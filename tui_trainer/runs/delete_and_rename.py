"""Renaming and deleting runs that no process owns or reads. Deletion removes only files of runs and follows no links.

A folder is renamed before it is deleted, so that a half-deleted folder is recognised after a crash and not used.
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
from tui_trainer.runs.lock import RunLock, folder_lock, lock_hint, read_lock_owner, refuse_if_in_use
from tui_trainer.runs.slurm import active_job
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import format_bytes

_DELETING: Final = ".deleting-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Deleted:
    """Result of a deletion: the freed bytes, and the names of the remaining files, which no run created."""

    freed_bytes: int
    kept: tuple[str, ...] = ()

    def words(self, name: str) -> list[str]:
        """Return lines that report the deletion of the run `name`."""
        lines = [f"deleted {one_line(name)}: {format_bytes(self.freed_bytes)} freed"]
        if self.kept:
            lines.append(f"kept files that were not created by a run: {one_line(', '.join(self.kept), 300)}")
        return lines


def deletion_path(root: Path) -> Path:
    """Return the path that a run's folder has while it is being deleted."""
    return root if root.name.startswith(_DELETING) else root.with_name(_DELETING + root.name)


def original_path(root: Path) -> Path:
    """Return the path that a half-deleted run had before its deletion began; any other path unchanged."""
    return root.with_name(root.name.removeprefix(_DELETING))


def bytes_to_free(root: Path) -> int:
    """Return how many bytes `delete` would free. Raises FolderError if `delete` would raise it."""
    deletion_root = deletion_path(root)
    try:
        if root != deletion_root and os.path.lexists(root):
            _refuse_foreign_or_owned(RunFolder(root))
            refuse_if_queued(RunFolder(root))
            with folder_lock(root):
                refuse_if_in_use(RunFolder(root))
        return sum(folder_size(folder).freed_bytes for folder in {root, deletion_root})
    except OSError as error:
        raise _refused("deleted", root, error) from error


def delete(root: Path) -> Deleted:
    """Delete a run or a half-deleted run. If the folder no longer exists, only remove its line from the index.

    Raises FolderError if a process owns or reads the run, for a link, for a folder that is not a run, and for errors of
    the system. After such an error the run may be half deleted.
    """
    root = root.absolute()
    deletion_root, original_root = deletion_path(root), original_path(root)
    freed_bytes = 0
    foreign_names: tuple[str, ...] = ()
    try:
        if root != deletion_root and os.path.lexists(root):
            refuse_if_queued(RunFolder(root))
            with _locked_out(RunFolder(root)):
                freed_bytes += _remove(deletion_root)
                os.rename(root, deletion_root)  # noqa: PTH104 - beside os.path.lexists, in the same words
                sync_folder(root.parent)
        freed_bytes += _remove(deletion_root)
        if os.path.lexists(deletion_root):
            foreign_names = tuple(sorted(entry.name for entry in deletion_root.iterdir()))
            os.rename(deletion_root, original_root)  # noqa: PTH104
    except OSError as error:
        raise _refused("deleted", root, error) from error
    if foreign_names or not os.path.lexists(original_root):
        registry.remove_from_index(original_root)
    return Deleted(freed_bytes=freed_bytes, kept=foreign_names)


def rename(root: Path, name: str) -> Problem | None:
    """Rename a run on the disk and in the index. Returns a problem if only the index could not be written.

    Raises FolderError if the name is invalid or taken, if a process owns or reads the run, for a folder that is not a
    run, and for errors of the system.
    """
    if problem := check_name(name):
        raise FolderError(replace(problem, key=""))
    root = root.absolute()
    target = root.with_name(name)
    try:
        with _locked_out(RunFolder(root)):
            if RunFolder(root).base.is_dir():
                hint = "`tui-trainer export RUN --to merged` writes a merged model, which can be moved"
                message = "cannot be renamed, because the adapter stores the path of its base model, which is in `base`"
                raise FolderError(message, where=one_line(str(root)), hint=hint)
            if os.path.lexists(target):
                raise FolderError("this exists already", where=one_line(str(target)), hint="choose another name")
            os.rename(root, target)  # noqa: PTH104
            sync_folder(root.parent)
    except OSError as error:
        raise _refused("renamed", root, error) from error
    return registry.move_in_index(root, target)


def refuse_if_queued(folder: RunFolder) -> None:
    """Raise FolderError if a Slurm job of this run is queued, because the job would not find the run's folder."""
    if read_lock_owner(folder.lock) is None and (job := active_job(folder)):
        hint = f"`tui-trainer stop {shell_word(folder.name)}` removes the job from the queue"
        raise FolderError(f"job {job} of this run is in the queue", where=one_line(str(folder.root)), hint=hint)


@contextmanager
def _locked_out(folder: RunFolder) -> Iterator[None]:
    """Keep all other processes out of a run's folder. Raises FolderError if one already owns or reads the run."""
    _refuse_foreign_or_owned(folder)
    with RunLock(folder.lock), folder_lock(folder.root):
        refuse_if_in_use(folder)
        yield


def _refuse_foreign_or_owned(folder: RunFolder) -> None:
    is_run = (folder.root / MARKER).is_file() or (folder.config.is_file() and folder.journal.is_file())
    if folder.root.is_symlink() or not is_run:
        message = "this is a symbolic link" if folder.root.is_symlink() else "this is not the folder of a run"
        raise FolderError(message, where=one_line(str(folder.root)), hint="remove it by hand if it is not needed")
    # RunLock would let this process lock its own run a second time on a file system without locks.
    if holder := read_lock_owner(folder.lock):
        hint = lock_hint(holder, folder.lock, f"`tui-trainer stop {shell_word(folder.name)}` ends the run")
        raise FolderError(f"in use by {holder}", where=one_line(str(folder.root)), hint=hint)


def _remove(deletion_root: Path) -> int:
    """Remove the files of a run, then its folder unless foreign files are left. Returns the freed bytes."""
    if not os.path.lexists(deletion_root):
        return 0
    if deletion_root.is_symlink():
        raise FolderError("this is a symbolic link", where=one_line(str(deletion_root)), hint="remove it by hand")
    freed_bytes = folder_size(deletion_root).freed_bytes
    RunFolder(deletion_root).remove_ours()
    if not any(deletion_root.iterdir()):
        deletion_root.rmdir()
    return freed_bytes


def _refused(past_participle: str, root: Path, error: OSError) -> FolderError:
    return FolderError(f"cannot be {past_participle}: {system_reason(error)}", where=one_line(str(root)))
