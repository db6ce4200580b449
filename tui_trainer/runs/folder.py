"""The run folder: where its files are, how it is made, and how a file in it is written.

Everything is private to its owner (folders 0700, files 0600, whatever the umask), no link is followed where something
is written, and only what is known to be ours is removed.
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
from tui_trainer.files.local_paths import as_bytes, from_the_root, is_utf8
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import MIB

MARKER: Final = ".tui-trainer"
_MARKER_TEXT: Final = b"A run of tui-trainer. This file allows `tui-trainer` to remove what it made here.\n"
# Deleting a run puts a word before its name, and names of files have up to 255 bytes.
_NAME_CHARACTERS, _NAME_BYTES = 64, 230
_NAME_RULE: Final = "use up to 64 letters, digits, dots, hyphens and underscores, the first a letter or a digit"
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
    """The paths of one run. `root` is absolute when made by `create` or `open`."""

    root: Path
    made_parents: tuple[Path, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        return self.root.name

    config, plan, journal = _Inside("config.toml"), _Inside("plan.json"), _Inside("journal.jsonl")
    summary, labels = _Inside("summary.json"), _Inside("run-labels.json")
    control, lock = _Inside("control.json"), _Inside("run.lock")
    script, job = _Inside("job.sh"), _Inside("job.json")
    """What Slurm runs, and the number that it gave it."""
    in_use = _Inside("in_use")
    """The locks of those that read the run, while they do."""
    logs, checkpoints = _Inside("logs"), _Inside("checkpoints")
    base = _Inside("base")
    """The model of its adapter, where the run merged another adapter into it first."""
    report, model, exports = _Inside("report.html"), _Inside("model"), _Inside("export")

    @classmethod
    def create(cls, runs_dir: Path, name: str) -> Self:
        """A new folder with `logs/` and `checkpoints/`. Raises FolderError with all that is in the way."""
        if problems := check_target(runs_dir, name):
            raise FolderError(problems)
        runs_dir = runs_dir.expanduser().resolve()
        made: list[Path] = []
        root, folder = runs_dir / name, None
        try:
            made += _make_parents(runs_dir)
            make_private_folder(root)
            folder = cls(root, tuple(made))
            write_atomically(root / MARKER, _MARKER_TEXT)
            for inner in (folder.logs, folder.checkpoints):
                make_private_folder(inner)
        except OSError as error:
            # Without `folder` the name was taken by another in the meantime: it is not ours.
            if folder is not None:
                shutil.rmtree(folder.root, ignore_errors=True)
            _remove_empty(made)
            raise FolderError(_refusal(root, error)) from error
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """The folder of a run that was made before, here or elsewhere. Raises FolderError when it is none."""
        root, hint = from_the_root(str(path)), "`tui-trainer runs` lists the runs"
        try:
            root = root.resolve(strict=True)
            if not is_utf8(str(root)):
                message = f"the path of this run is not UTF-8: {as_bytes(str(root))}"
                raise FolderError(message, hint="rename the folder")
            known = any((root / name).is_file() for name in _FILES)
        except (OSError, ValueError) as error:
            raise FolderError(replace(_refusal(root, error), hint=hint)) from error
        if not known:
            raise FolderError("this is not the folder of a run", where=_shown(root), hint=hint)
        return cls(root)

    def write_file(self, path: Path | str, data: bytes) -> None:
        """A private file of this folder, whole or not at all. Raises FolderError with the reason of the system."""
        target = self.root / path
        try:
            if not target.parent.resolve().is_relative_to(self.root.resolve()):
                raise FolderError("this is outside the run folder", where=_shown(target))
            write_atomically(target, data)
        except OSError as error:
            raise FolderError(_refusal(target, error)) from error

    def discard(self) -> bool:
        """Removes the files of a run, then its folder and the parents made for it, if they are empty then.

        Files that are not ours stay, and so does the folder; returns whether it is gone. Raises FolderError when the
        folder has no marker of ours or is a link.
        """
        marker = self.root / MARKER
        if self.root.is_symlink() or marker.is_symlink() or not marker.is_file():
            hint = "remove it by hand if it is not needed"
            raise FolderError("this folder was not created by tui-trainer", where=_shown(self.root), hint=hint)
        try:
            self.remove_ours()
        except OSError as error:
            raise FolderError(_refusal(self.root, error)) from error
        with suppress(OSError):
            for folder in (self.root, *reversed(self.made_parents)):
                folder.rmdir()
        return not self.root.exists()

    def remove_ours(self) -> None:
        """Removes what a run has made; the marker, which says that this is allowed, goes last. Raises OSError."""
        ours = [entry for entry in os.scandir(self.root) if _is_ours(entry.name)]
        for entry in sorted(ours, key=lambda entry: entry.name == MARKER):
            if entry.name in _FOLDERS and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                (self.root / entry.name).unlink()


def _is_ours(name: str) -> bool:
    return name in OUR_NAMES or _TEMPORARY.fullmatch(name) is not None


@dataclass(frozen=True, slots=True)
class FolderSize:
    """`bytes` of all files, each counted once; `freed_bytes` is what removing the run's own files gives back."""

    bytes: int
    freed_bytes: int


def folder_size(root: Path) -> FolderSize:
    """The size of a run's folder, by walking through it. Links are not followed; what cannot be read counts nothing.

    A file with another name outside the run's own files is not freed.
    """
    files: dict[tuple[int, int], os.stat_result] = {}
    own_names: Counter[tuple[int, int]] = Counter()
    for found, is_own in _files_in(root):
        files[found.st_dev, found.st_ino] = found
        own_names[found.st_dev, found.st_ino] += is_own
    freed = (found.st_size for key, found in files.items() if own_names[key] >= found.st_nlink)
    return FolderSize(sum(found.st_size for found in files.values()), sum(freed))


def _files_in(folder: str | Path, *, is_own: bool | None = None) -> Iterator[tuple[os.stat_result, bool]]:
    """Every file, and whether it is the run's own; in the folder itself that is told by the names."""
    with suppress(OSError):
        for entry in os.scandir(folder):
            own = _is_ours(entry.name) if is_own is None else is_own
            if entry.is_dir(follow_symlinks=False):
                yield from _files_in(entry.path, is_own=own)
                continue
            with suppress(FileNotFoundError):
                yield entry.stat(follow_symlinks=False), own


def check_name(name: str) -> Problem | None:
    """Return what is wrong with the name of a run, or None. Letters may be of any script."""
    # An identifier consists of letters, marks on them, digits and underscores.
    is_plain = name[:1].isalnum() and f"a{re.sub('[.-]', '', name)}".isidentifier()
    if is_plain and len(name) <= _NAME_CHARACTERS and len(name.encode()) <= _NAME_BYTES:
        return None
    return Problem(message=f"{one_line(name, 80)!r} cannot be the name of a run", key="output.name", hint=_NAME_RULE)


def check_target(runs_dir: Path, name: str) -> list[Problem]:
    """What would keep `RunFolder.create` from making the folder; leaves nothing behind.

    Writes, syncs and renames a small file: permissions alone do not show a read-only or a full disk.
    """
    if problem := check_name(name):
        return [problem]
    made: list[Path] = []
    try:
        runs_dir = runs_dir.expanduser().resolve()
        if not is_utf8(str(runs_dir)):
            message = f"leads to a path that is not UTF-8: {as_bytes(str(runs_dir))}"
            return [Problem(message=message, key="output.runs_dir", hint="choose another folder")]
        if os.path.lexists(runs_dir / name):
            hint = f"resume it with `tui-trainer resume {shell_word(name)}`, or choose another name"
            return [Problem(message="this run already exists", where=_shown(runs_dir / name), hint=hint)]
        made += _make_parents(runs_dir)
        probe = runs_dir / f".{secrets.token_hex(8)}.probe"
        try:
            write_atomically(probe, b"tui-trainer looks whether it can write here\n")
        finally:
            probe.unlink(missing_ok=True)
    except (OSError, ValueError, RuntimeError) as error:
        return [_refusal(runs_dir, error)]
    finally:
        _remove_empty(made)
    return []


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Writes a private file (0600) beside `path`, then renames it; `durable` also syncs file and folder.

    Raises OSError; then `path` is as it was and nothing else is left. A link at `path` is replaced, not followed.
    """
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(data)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(beside, path)  # noqa: PTH105 - beside os.open, in the same words
    except BaseException:
        with suppress(OSError):
            os.unlink(beside)  # noqa: PTH108
        raise
    if durable:
        sync_folder(path.parent)


def open_log(path: Path) -> IO[bytes]:
    """A private file, to append to and to read, as NFS locks only what is open for both. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with suppress(OSError):  # of an earlier version, which made it readable by others
        os.fchmod(fd, 0o600)
    return os.fdopen(fd, "a+b")


def make_private_folder(path: Path) -> None:
    """One new folder with mode 0700, whatever the umask. Raises OSError."""
    path.mkdir(mode=0o700)
    path.chmod(0o700)


def read_plain_file(path: Path, limit_bytes: int) -> bytes:
    """The first bytes of a plain file. Raises OSError, also for links and for what is no plain file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is not a regular file")
        return file.read(limit_bytes)


def read_fields(path: Path) -> dict[str, Any]:
    """The JSON object in a plain file of at most 1 MiB; empty where there is none, or it cannot be read."""
    with suppress(OSError, ValueError, RecursionError):
        if isinstance(found := json.loads(read_plain_file(path, MIB)), dict):
            return found
    return {}


def _make_parents(folder: Path) -> list[Path]:
    """Makes the folder and what is missing above it; returns what was made, outermost first."""
    missing = [folder] if not folder.exists() else []
    while missing and not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    made: list[Path] = []
    try:
        for path in reversed(missing):
            make_private_folder(path)
            made.append(path)
    except OSError:
        _remove_empty(made)
        raise
    return made


def _remove_empty(folders: list[Path]) -> None:
    with suppress(OSError):
        for folder in reversed(folders):
            folder.rmdir()


def files_below(folder: Path) -> list[str]:
    """The names of all files in a folder and in those inside it, from `folder` on, sorted. Links are not followed and
    do not count, so no name leads out of it."""
    found = (Path(place) / name for place, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in found if not path.is_symlink())


def make_durable(folder: Path) -> None:
    """Make what was written into a folder private, and sync it to the disk: the files, then the folders that name them.

    Raises OSError, also for a link.
    """
    for place, _, names in os.walk(folder, topdown=False, onerror=_raise):
        for name in names:
            make_file_durable(Path(place) / name)
        Path(place).chmod(0o700)
        sync_folder(Path(place))


def make_file_durable(path: Path) -> None:
    """The same of one file; the folder that names it is the caller's."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(fd, 0o600)
        os.fsync(fd)
    finally:
        os.close(fd)


def _raise(error: OSError) -> None:
    raise error


def put_in_place(beside: Path, target: Path) -> None:
    """Gives a whole folder its name; what had the name is moved aside, and removed when the new one is there."""
    old = target.with_name(f".removing-{target.name}")
    if replaces := target.exists():
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
    beside.rename(target)
    if replaces:
        shutil.rmtree(old)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _refusal(path: Path, error: Exception) -> Problem:
    hint = "choose a writable folder with output.runs_dir"
    return Problem(message=f"cannot be used: {system_reason(error)}", where=_shown(path), hint=hint)


def _shown(path: Path) -> str:
    return one_line(str(path))
