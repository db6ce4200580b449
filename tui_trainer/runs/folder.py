"""The run folder: the paths of its files, its creation and its removal, and functions that write files safely.

Folders have the mode 0700 and files 0600, whatever the umask. Writing follows no links. Only files that this program
created are removed.
"""

import json
import os
import re
import secrets
import shutil
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Final, Self

from tui_trainer.errors import FolderError, Problem, system_reason
from tui_trainer.files.local_paths import absolute_path, is_utf8, printable_path
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import MIB

MARKER: Final = ".tui-trainer"
_MARKER_TEXT: Final = b"A run of tui-trainer. This file allows `tui-trainer` to remove what it made here.\n"
# Deletion puts a prefix before the name, and a file name has up to 255 bytes.
_NAME_CHARACTERS, _NAME_BYTES = 64, 230
_NAME_RULE: Final = "use up to 64 letters, digits, dots, hyphens and underscores, beginning with a letter or a digit"
_FILES: Final = (
    MARKER,
    *"config.toml plan.json journal.jsonl summary.json control.json run.lock job.sh job.json".split(),
    *"report.md report.html run-labels.json".split(),
)
_FOLDERS: Final = ("logs", "checkpoints", "model", "export", "tracking", "in_use", "base")
OUR_NAMES: Final = frozenset(_FILES + _FOLDERS)
_TEMPORARY: Final = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")


class _Inside:
    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", _: object) -> Path:
        return folder.root / self._name


@dataclass(frozen=True)
class RunFolder:
    """The paths of the files in one run's folder. `create` and `open` make `root` absolute."""

    root: Path
    made_parents: tuple[Path, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return self.root.name

    config, plan, journal = _Inside("config.toml"), _Inside("plan.json"), _Inside("journal.jsonl")
    summary, labels = _Inside("summary.json"), _Inside("run-labels.json")
    control, lock = _Inside("control.json"), _Inside("run.lock")
    script, job = _Inside("job.sh"), _Inside("job.json")
    """The script that Slurm executes, and the file with the id of the Slurm job."""
    in_use = _Inside("in_use")
    """Folder with the locks of processes that are reading the run."""
    logs, checkpoints = _Inside("logs"), _Inside("checkpoints")
    base = _Inside("base")
    """Base model of the run's adapter, if the run first merged another adapter into its base model."""
    report, model, exports = _Inside("report.html"), _Inside("model"), _Inside("export")

    @classmethod
    def create(cls, runs_dir: Path, name: str) -> Self:
        """Create a run folder with `logs/` and `checkpoints/`. Raises FolderError with all problems that prevent it."""
        if problems := check_target(runs_dir, name):
            raise FolderError(problems)
        runs_dir = runs_dir.expanduser().resolve()
        created_parents: list[Path] = []
        root, folder = runs_dir / name, None
        try:
            created_parents += _make_parents(runs_dir)
            make_private_folder(root)
            folder = cls(root, tuple(created_parents))
            write_atomically(root / MARKER, _MARKER_TEXT)
            for subfolder in (folder.logs, folder.checkpoints):
                make_private_folder(subfolder)
        except OSError as error:
            # If `folder` is None, another process may have created `root` since the check.
            if folder is not None:
                shutil.rmtree(folder.root, ignore_errors=True)
            _remove_empty(created_parents)
            raise FolderError(_refusal(root, error)) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the folder of an existing run, possibly from another machine. Raises FolderError for other folders."""
        root, hint = absolute_path(str(path)), "`tui-trainer runs` lists the runs"
        try:
            root = root.resolve(strict=True)
            if not is_utf8(str(root)):
                message = f"the path of this run is not UTF-8: {printable_path(str(root))}"
                raise FolderError(message, hint="rename the folder")
            is_run = any((root / name).is_file() for name in _FILES)
        except (OSError, ValueError) as error:
            raise FolderError(replace(_refusal(root, error), hint=hint)) from error
        if not is_run:
            raise FolderError("this is not the folder of a run", where=_path_text(root), hint=hint)
        return cls(root)

    def write_file(self, path: Path | str, data: bytes) -> None:
        """Write a private file of this folder atomically. Raises FolderError with the system's reason."""
        target = self.root / path
        try:
            if not target.parent.resolve().is_relative_to(self.root.resolve()):
                raise FolderError("this is outside the run folder", where=_path_text(target))
            write_atomically(target, data)
        except OSError as error:
            raise FolderError(_refusal(target, error)) from error

    def discard(self) -> bool:
        """Remove the run's files, then its folder and the parent folders created for it, as far as they are empty.

        A folder with foreign files is kept. Returns whether the run's folder was removed. Raises FolderError if it has
        no marker of this program or is a link.
        """
        marker = self.root / MARKER
        is_link = self.root.is_symlink() or marker.is_symlink()
        if is_link or not marker.is_file():
            reason = (
                "this is a link, and only folders are removed"
                if is_link
                else "this folder was not created by tui-trainer"
            )
            raise FolderError(reason, where=_path_text(self.root), hint="remove it by hand if it is not needed")
        try:
            self.remove_ours()
        except OSError as error:
            raise FolderError(_refusal(self.root, error)) from error
        with suppress(OSError):
            for folder in (self.root, *reversed(self.made_parents)):
                folder.rmdir()
        return not self.root.exists()

    def remove_ours(self) -> None:
        """Remove the files of a run, last of all the marker, which permits the removal. Raises OSError."""
        our_entries = [entry for entry in os.scandir(self.root) if _is_ours(entry.name)]
        for entry in sorted(our_entries, key=lambda entry: entry.name == MARKER):
            if entry.name in _FOLDERS and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                (self.root / entry.name).unlink()


def _is_ours(name: str) -> bool:
    return name in OUR_NAMES or _TEMPORARY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class FolderSize:
    """Size of a run's folder: the bytes of all files, and the bytes that removing the run's own files would free."""

    bytes: int
    freed_bytes: int


def folder_size(root: Path) -> FolderSize:
    """Measure a run's folder by walking through it. Follows no links, and ignores files that cannot be read.

    Hard links to one file count once. Removal does not free a file that has a hard link outside the run's own files.
    """
    statuses: dict[tuple[int, int], os.stat_result] = {}
    link_counts: Counter[tuple[int, int]] = Counter()
    for status, is_ours in _files_in(root):
        statuses[status.st_dev, status.st_ino] = status
        link_counts[status.st_dev, status.st_ino] += is_ours
    freed_sizes = (status.st_size for inode, status in statuses.items() if link_counts[inode] >= status.st_nlink)
    return FolderSize(sum(status.st_size for status in statuses.values()), sum(freed_sizes))


def _files_in(folder: str | Path, is_ours: bool | None = None) -> Iterator[tuple[os.stat_result, bool]]:
    """Yield the status of each file, and whether a run created the file: `is_ours`, or else by its name in `folder`."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            is_our_entry = _is_ours(entry.name) if is_ours is None else is_ours
            if entry.is_dir(follow_symlinks=False):
                yield from _files_in(entry.path, is_our_entry)
                continue
            with suppress(FileNotFoundError):
                yield entry.stat(follow_symlinks=False), is_our_entry


def check_name(name: str) -> Problem | None:
    """Return what is wrong with the name of a run; None for a valid name. Letters may be of any script."""
    # An identifier consists of letters, marks on them, digits and underscores.
    has_valid_characters = name[:1].isalnum() and f"a{re.sub('[.-]', '', name)}".isidentifier()
    if has_valid_characters and len(name) <= _NAME_CHARACTERS and len(name.encode()) <= _NAME_BYTES:
        return None
    return Problem(message=f"{one_line(name, 80)!r} cannot be the name of a run", key="output.name", hint=_NAME_RULE)


def check_target(runs_dir: Path, name: str) -> list[Problem]:
    """Return the problems that would prevent `RunFolder.create`.

    Writes, renames and removes a small file, because permissions do not reveal a read-only or full disk.
    """
    if problem := check_name(name):
        return [problem]
    created_parents: list[Path] = []
    try:
        runs_dir = runs_dir.expanduser().resolve()
        if not is_utf8(str(runs_dir)):
            message = f"leads to a path that is not UTF-8: {printable_path(str(runs_dir))}"
            return [Problem(message=message, key="output.runs_dir", hint="choose another folder")]
        if os.path.lexists(runs_dir / name):
            hint = f"resume it with `tui-trainer resume {shell_word(name)}`, or choose another name"
            return [Problem(message="this run already exists", where=_path_text(runs_dir / name), hint=hint)]
        created_parents += _make_parents(runs_dir)
        probe = runs_dir / f".{secrets.token_hex(8)}.probe"
        try:
            write_atomically(probe, b"tui-trainer looks whether it can write here\n")
        finally:
            probe.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        return [_refusal(runs_dir, error)]
    finally:
        _remove_empty(created_parents)
    return []


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Write a private file (0600) atomically, through a temporary file. `durable` also syncs the file and its folder.

    Replaces a link at `path` instead of following it. Raises OSError, and then leaves `path` unchanged.
    """
    temporary_path = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(temporary_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary_path, path)  # noqa: PTH105 - beside os.open, in the same words
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary_path)  # noqa: PTH108
        raise
    if durable:
        sync_folder(path.parent)


def open_log(path: Path) -> IO[bytes]:
    """Open a private file for appending. It is also readable, because NFS locks only such files. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # earlier versions created logs that others can read
        os.fchmod(fd, 0o600)
    return os.fdopen(fd, "a+b")


def make_private_folder(path: Path) -> None:
    """Create one folder with the mode 0700, whatever the umask. Raises OSError."""
    path.mkdir(mode=0o700)
    path.chmod(0o700)


def read_plain_file(path: Path, limit_bytes: int) -> bytes:
    """Read up to `limit_bytes` of a regular file. Raises OSError, also for a link, a folder or a device."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(limit_bytes)


def read_fields(path: Path) -> dict[str, Any]:
    """Read the JSON object in a regular file of at most 1 MiB. Returns an empty dict if that fails."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(content := json.loads(read_plain_file(path, MIB)), dict):
            return content
    return {}


def _make_parents(folder: Path) -> list[Path]:
    """Create the folder and its missing parents. Returns the created folders, outermost first."""
    missing_folders = [folder] if not folder.exists() else []
    while missing_folders and not missing_folders[-1].parent.exists():
        missing_folders.append(missing_folders[-1].parent)
    created_folders: list[Path] = []
    try:
        for path in reversed(missing_folders):
            make_private_folder(path)
            created_folders.append(path)
    except OSError:
        _remove_empty(created_folders)
        raise
    return created_folders


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for folder in reversed(folders):
            folder.rmdir()


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, relative to it and sorted. Links are skipped."""
    paths = (Path(parent) / name for parent, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths if not path.is_symlink())


def make_durable(folder: Path) -> None:
    """Make all files of a folder private and sync them to the disk. Raises OSError, also for a link."""
    for parent, _, names in os.walk(folder, topdown=False, onerror=_raise):
        for name in names:
            make_file_durable(Path(parent) / name)
        Path(parent).chmod(0o700)
        sync_folder(Path(parent))


def make_file_durable(path: Path) -> None:
    """Make a file private and sync it, but not its folder. Raises OSError, also for a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o600)
        os.fsync(fd)
    finally:
        os.close(fd)


def _raise(error: OSError) -> None:
    raise error


def put_in_place(new_folder: Path, target: Path) -> None:
    """Rename a complete folder to `target`. An existing `target` is moved aside first, and removed afterwards."""
    old_folder = target.with_name(f".removing-{target.name}")
    if target_existed := target.exists():
        shutil.rmtree(old_folder, ignore_errors=True)
        target.rename(old_folder)
    new_folder.rename(target)
    if target_existed:
        shutil.rmtree(old_folder)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refusal(path: Path, error: Exception) -> Problem:
    hint = "choose a writable folder with output.runs_dir"
    return Problem(message=f"cannot be used: {system_reason(error)}", where=_path_text(path), hint=hint)


def _path_text(path: Path) -> str:
    return one_line(str(path))
