"""Locks that name their owner. They protect the training in a run folder, the writing of exports and predictions, and
runs that are being read from deletion.

A lock combines `flock` with the owner's pid and start time in its file. `flock` alone has no effect on some shared file
systems, and a pid alone may have been given to another process. The lock of a dead owner is taken over.
"""

import fcntl
import json
import os
import secrets
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Self

import psutil

from tui_trainer.errors import FolderError, system_reason
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.json_fields import make_reader, parsed
from tui_trainer.runs.slurm import Allocation, WatchedJob, has_ended
from tui_trainer.terminal.safe_text import one_line, shell_word
from tui_trainer.units import utc_now

_CONTENT_LIMIT_BYTES: Final = 4096
# psutil derives start times from the kernel's boot time, which changes by up to a second when NTP adjusts the clock.
_START_TOLERANCE_SECONDS: Final = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class LockOwner:
    """The process that holds a lock. It started at `process_started` (seconds since 1970) and took the lock at `at`."""

    host: str
    pid: int
    process_started: float
    at: str
    job: str = ""
    """`Allocation.identity` of the Slurm job that the process belongs to."""
    kernel_start: str = ""
    """Start time of the process in kernel ticks, which clock changes do not affect; empty if unknown."""
    command: str = ""
    """Command line that the process executes; empty for a run."""

    @property
    def is_on_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_running(self) -> bool:
        """Whether a process with this pid and start is alive on this host. A zombie is not."""
        try:
            process = psutil.Process(self.pid)
            if self.kernel_start:
                is_same_process = _kernel_start(self.pid) == self.kernel_start
            else:
                is_same_process = abs(process.create_time() - self.process_started) < _START_TOLERANCE_SECONDS
            return is_same_process and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False

    def __str__(self) -> str:
        host = "this host" if self.is_on_this_host else f"host {one_line(self.host, 80)}"
        command = f"`{one_line(self.command, 60)}`, " if self.command else ""
        return f"{command}process {self.pid} on {host} since {one_line(self.at, 40)}"


class FileLock:
    """A lock held from `acquire` to `release`, or within `with`. Releasing the lock deletes its file.

    A forked child cannot release the lock. If another process is refused, the message names the owner's `command` and
    the locked path `about`.
    """

    def __init__(self, path: Path, command: str, about: Path) -> None:
        self.path, self.command, self.about = path, command, about
        self._fd = -1
        self._pid = 0

    def acquire(self) -> None:
        """Take the lock. Raises FolderError if another process holds it, or if the lock file cannot be used."""
        fd = self._locked_fd()
        try:
            self._refuse_if_owned(_read_owner(fd))
            process, allocation = psutil.Process(), Allocation.of_this_process()
            this_process = LockOwner(
                host=socket.gethostname(),
                pid=process.pid,
                process_started=process.create_time(),
                at=utc_now(),
                job=allocation.identity if allocation else "",
                kernel_start=_kernel_start(process.pid),
                command=self.command,
            )
            content = json.dumps(asdict(this_process)).encode("ascii")
            os.ftruncate(fd, 0)
            os.pwrite(fd, content, 0)
            os.fsync(fd)
        except OSError as error:
            os.close(fd)
            raise FolderError(f"cannot be locked: {system_reason(error)}", where=str(self.path)) from error
        except FolderError:
            os.close(fd)
            raise
        self._fd, self._pid = fd, os.getpid()

    def refuse(self) -> None:
        """Raise FolderError if another process holds the lock, without taking it."""
        if holder := read_lock_owner(self.path):
            self._refuse_if_owned(holder)

    def release(self) -> None:
        """Release the lock if it is held."""
        if self._fd < 0:
            return
        if self._pid == os.getpid():
            with suppress(OSError):
                self._clear(self._fd)
        os.close(self._fd)
        self._fd = -1

    def _clear(self, fd: int) -> None:
        # The path may belong to another process by now, if somebody removed the file by hand.
        if _is_same_file(self.path, fd):
            self.path.unlink()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _locked_fd(self) -> int:
        """Open the lock file, lock it with flock, and return its descriptor. Retries if the file was replaced."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        while True:
            try:
                fd = os.open(self.path, flags, 0o600)
            except OSError as error:
                reason = f"cannot create a file in {one_line(str(self.path.parent))}: {system_reason(error)}"
                raise FolderError(reason, where=one_line(str(self.about))) from error
            if not _flock_now(fd):
                holder = _read_owner(fd)
                os.close(fd)
                raise self._held_error(holder)
            if _is_same_file(self.path, fd):
                with suppress(OSError):
                    os.fchmod(fd, 0o600)
                return fd
            os.close(fd)

    def _refuse_if_owned(self, holder: LockOwner | None) -> None:
        if holder is None:
            return
        if not holder.is_on_this_host:
            if not (holder.job and has_ended(holder.job)):
                raise self._held_error(holder)
        elif holder.pid != os.getpid() and holder.is_running:
            raise self._held_error(holder)

    def _held_error(self, holder: LockOwner | None) -> FolderError:
        where = one_line(str(self.about))
        if holder is not None and holder.is_on_this_host and not holder.is_running:
            message = f"in use by child processes of process {holder.pid}, which has ended"
            return FolderError(message, where=where, hint="try again in a few seconds")
        hint = lock_hint(holder, self.path, self._what_helps(holder))
        return FolderError(f"in use by {holder or 'another process'}", where=where, hint=hint)

    def _what_helps(self, holder: LockOwner | None) -> str:
        return f"wait until it ends, or end it with `kill {holder.pid}`" if holder else "wait until it ends"


class RunLock(FileLock):
    """The lock `run.lock`, held by a process that trains, renames or deletes the run. Releasing it empties the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "", path.parent)

    def _clear(self, fd: int) -> None:
        os.ftruncate(fd, 0)

    def _what_helps(self, holder: LockOwner | None) -> str:
        name = one_line(self.path.parent.name)
        return f"`tui-trainer attach {shell_word(name)}` shows the run, `tui-trainer stop {shell_word(name)}` ends it"


def lock_hint(holder: LockOwner | None, path: Path, what_helps: str) -> str:
    """Return a hint for a lock that is held: `what_helps` if its owner is on this host, else how to remove the lock."""
    if holder is None or holder.is_on_this_host:
        return what_helps
    return (
        "this host cannot check whether that process is running. If the process has ended, or if that host is a former "
        f"name of this machine or container, remove the lock: `rm {shlex.quote(one_line(str(path)))}`"
    )


@contextmanager
def keep_in_use(folder: RunFolder, command: str) -> Iterator[None]:
    """Keep a run from being renamed or deleted while `command` reads its files. Several processes may read a run.

    Raises FolderError if the run no longer exists. Has no effect if the folder is not writable.
    """
    lock = FileLock(folder.in_use / f"{os.getpid()}-{secrets.token_hex(4)}.lock", command, folder.root)
    try:
        with folder_lock(folder.root):
            folder.root.stat()  # raises if the folder was renamed during the wait for its lock
            with suppress(OSError, FolderError):
                folder.in_use.mkdir(mode=0o700, exist_ok=True)
                lock.acquire()
    except FileNotFoundError:
        where = one_line(str(folder.root))
        raise FolderError("this run has just been renamed or deleted", where=where) from None
    except OSError:  # for example a folder that may not be listed
        pass
    try:
        yield
    finally:
        with suppress(OSError), folder_lock(folder.root):
            lock.release()
            folder.in_use.rmdir()
        lock.release()


def refuse_if_in_use(folder: RunFolder) -> None:
    """Raise FolderError if a process reads the run's files. Call within `folder_lock`."""
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(folder.in_use.glob("*.lock")):
            # Acquiring and releasing also deletes the lock of a killed process.
            with FileLock(path, "", folder.root):
                pass


def read_lock_owner(path: Path) -> LockOwner | None:
    """Return the process that holds a lock, or None. A process on another host is assumed to be running."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        holder = _read_owner(fd)
    finally:
        os.close(fd)
    return holder if holder is not None and (not holder.is_on_this_host or holder.is_running) else None


def is_under_way(path: Path, job: WatchedJob) -> bool:
    """Return whether a run is active: a process holds the lock at `path`, or the Slurm job runs or is queued."""
    holder = read_lock_owner(path)
    if holder is None or (holder.job and not holder.is_on_this_host):
        return job.is_active()
    return True


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder for a short change, so that processes change it in turn. No effect on a disk without locks."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _kernel_start(pid: int) -> str:
    """Return the start of a process as the boot id and kernel ticks since then (`man 5 proc`); empty without /proc."""
    with suppress(OSError):
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The program's name is in parentheses and may itself contain spaces and parentheses.
        ticks = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        return f"{boot_id} {ticks}"
    return ""


def _flock_now(fd: int) -> bool:
    """Try to lock the file, and return whether no other process has locked it. True on a file system without locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True


def _is_same_file(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except OSError:
        return False


def _read_owner(fd: int) -> LockOwner | None:
    """Return the lock's owner according to the lock file; None if the file is empty or invalid."""
    try:
        holder: LockOwner = _OWNER(parsed(os.pread(fd, _CONTENT_LIMIT_BYTES, 0)))
    except (OSError, ValueError, RecursionError):
        return None
    return holder if 0 < holder.pid < 2**31 else None


_OWNER: Final = make_reader(LockOwner)
