"""The lock of a run: one owner, released by its death on any file system."""

import errno
import fcntl
import json
import os
import socket
import stat
import subprocess
import sys

import psutil
import pytest

from tui_trainer.errors import FolderError
from tui_trainer.runs.lock import RunLock, folder_lock, read_lock_owner
from tui_trainer.units import utc_now

HOLD = """
import sys
from pathlib import Path
from tui_trainer.runs.lock import RunLock
RunLock(Path(sys.argv[1])).acquire()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run.lock"


def named(path, **changes):
    """Write a lock file that names the parent process, with changes."""
    parent = psutil.Process(os.getppid())
    content = {"host": socket.gethostname(), "pid": parent.pid, "process_started": parent.create_time()}
    path.write_text(json.dumps(content | {"at": utc_now()} | changes))


def test_a_second_process_is_refused_and_a_killed_one_leaves_the_run_free(path):
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        with pytest.raises(FolderError, match=f"in use by process {child.pid} on this host since 20"):
            RunLock(path).acquire()
        held_by = read_lock_owner(path)
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped by its parent
        assert read_lock_owner(path) is None
        with RunLock(path):
            assert read_lock_owner(path).pid == os.getpid()
    assert held_by.pid == child.pid


def test_an_old_lock_of_this_process_is_taken_over(path):
    mine = psutil.Process()
    named(path, pid=mine.pid, process_started=mine.create_time())
    with RunLock(path):
        assert read_lock_owner(path).pid == mine.pid


def test_the_lock_is_private_and_its_file_is_emptied_on_release(path):
    before = os.umask(0)
    try:
        with RunLock(path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
    finally:
        os.umask(before)
    assert path.read_bytes() == b""
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_lock_owner(path) is None
    with RunLock(path):
        pass


def test_a_run_is_not_started_twice_in_one_process(path):
    with RunLock(path):
        with pytest.raises(FolderError, match="in use by process"):
            RunLock(path).acquire()
        assert read_lock_owner(path) is not None


def test_a_living_owner_keeps_the_lock_where_flock_does_nothing(path):
    named(path)
    with pytest.raises(
        FolderError, match=f"in use by process {os.getppid()}.*`tui-trainer stop {path.parent.name}` ends it"
    ):
        RunLock(path).acquire()
    assert read_lock_owner(path).pid == os.getppid()


def test_the_lock_of_a_dead_process_a_reused_pid_or_nonsense_is_taken_over(path, subtests):
    started = psutil.Process(os.getppid()).create_time()
    for changes in (
        {"pid": 2**22 + 1}, {"pid": 0}, {"pid": 10**30}, {"pid": "x"}, {"process_started": {}},
        {"process_started": 1.0}, {"process_started": started - 60}, {"process_started": started + 60},
    ):  # fmt: skip
        with subtests.test(str(changes)):
            named(path, **changes)
            assert read_lock_owner(path) is None
            with RunLock(path):
                assert read_lock_owner(path).pid == os.getpid()
    for content in (b"", b"\x00\x00", b"{", b"[]", b"null", b"\xff"):
        with subtests.test(repr(content)):
            path.write_bytes(content)
            assert read_lock_owner(path) is None
            with RunLock(path):
                assert read_lock_owner(path).pid == os.getpid()


def test_an_owner_keeps_the_lock_when_the_clock_is_set(path, monkeypatch):
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        # What the system gives as the time of its start moves with the clock, and the start of each process with it.
        create_time = psutil.Process.create_time
        monkeypatch.setattr(psutil.Process, "create_time", lambda process: create_time(process) - 3600)
        held_by = read_lock_owner(path)
        with pytest.raises(FolderError, match=f"in use by process {child.pid} on this host"):
            RunLock(path).acquire()
        child.kill()
    assert held_by is not None and held_by.pid == child.pid


def test_a_file_system_without_locks_uses_the_name_of_the_owner(path, monkeypatch):
    def no_locks(fd, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with RunLock(path):
        assert read_lock_owner(path).pid == os.getpid()
    named(path)
    with pytest.raises(FolderError, match=f"in use by process {os.getppid()}"):
        RunLock(path).acquire()


def test_an_owner_on_another_host_keeps_the_lock(path):
    named(path, host="gpu-\x1b[7", pid=2**22 + 1)
    with pytest.raises(FolderError, match=r"remove the lock: `rm .*run\.lock`$") as refusal:
        RunLock(path).acquire()
    assert "\x1b" not in str(refusal.value)
    assert read_lock_owner(path) is not None
    path.unlink()
    with RunLock(path):
        assert read_lock_owner(path).is_on_this_host


def test_a_lock_held_by_helpers_of_a_killed_run_is_refused(path):
    named(path, pid=2**22 + 1)
    with path.open() as held_by_a_helper:
        fcntl.flock(held_by_a_helper, fcntl.LOCK_EX)
        with pytest.raises(FolderError, match="try again in a few seconds"):
            RunLock(path).acquire()


def test_a_lock_that_cannot_be_opened_is_refused_with_the_reason(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for path, reason in ((tmp_path / "link", "symbolic"), (tmp_path / "no" / "run.lock", "No such file")):
        with pytest.raises(FolderError, match=reason):
            RunLock(path).acquire()
        assert read_lock_owner(path) is None


def test_changes_in_one_folder_exclude_each_other(tmp_path):
    with folder_lock(tmp_path):
        fd = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(fd)
