"""Who uses the machine: what a look finds of real processes and of a made-up driver, and how one is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tui_trainer.hardware import processes as room
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.hardware.processes import ProcessReader, ProcessUse, descendants, end_process, lives
from tui_trainer.units import GIB

BUSY = "import time\nprint('up', flush=True)\nwhile True: pass"


@pytest.fixture
def child():
    process = subprocess.Popen([sys.executable, "-c", BUSY, "\x1b[2J"], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def found(look, pid: int) -> ProcessUse:
    return next(one for one in look.processes if one.pid == pid)


def test_a_busy_child_has_its_user_command_memory_and_cores(child):
    reader = ProcessReader()
    first = found(reader.look(), child.pid)
    assert first.cores is None and first.is_own and first.user and first.memory_bytes > 1 << 20
    assert first.command.startswith(sys.executable) and first.parent == os.getpid()
    before = child.pid
    while not (now := found(reader.look(), before)).cores:
        pass
    assert 0 < now.cores < 2 and now.key == first.key


def test_what_an_own_process_began_belongs_to_it():
    processes = {pid: ProcessUse(pid=pid, parent=parent) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1), (5, 3))}
    assert descendants(processes, 2) == {2, 3, 5} and descendants(processes, 4) == {4}


def test_who_is_on_a_card_and_what_a_container_hides(fake_nvml):
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB)
    outside = SimpleNamespace(pid=2**22 + 7, usedGpuMemory=None)
    library = fake_nvml({"processes": [mine]}, {"processes": [outside]}, {"free": 100 * GIB})
    reader = ProcessReader(Nvml(library))
    look = reader.look()
    assert look.has_cards and found(look, os.getpid()).card_bytes == {0: 3 * GIB}
    hidden = found(look, outside.pid)
    assert hidden.card_bytes == {1: None} and hidden.started_at is None and hidden.user is None
    library.errors = dict.fromkeys(("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"), 4)
    assert "GPU 0: the driver does not say whose processes are on it" in reader.look().notes


def test_memory_and_cores_that_nobody_listed_uses_are_said(fake_nvml, monkeypatch):
    users = room.CardUsers(index=2, used_bytes=41 * GIB, memory_by_pid={7: GIB})
    assert room._unseen_memory(users).startswith("GPU 2: 40.0 GiB are in use by processes that this container")
    assert room._unseen_memory(room.CardUsers(index=2, used_bytes=GIB // 2, memory_by_pid={})) == ""
    moments = iter((10.0, 12.0))
    reader = ProcessReader(now=lambda: next(moments))
    busy = iter((100.0, 108.0))
    monkeypatch.setattr(room.psutil, "cpu_times", lambda: SimpleNamespace(user=next(busy), system=0.0))
    monkeypatch.setattr(room.psutil, "process_iter", lambda: iter(()))
    assert reader.look().notes == ()
    assert reader.look().notes[0].startswith("4.0 cores are busy with what is not listed")


def test_a_process_is_ended_only_when_it_is_still_the_same(child):
    started = found(ProcessReader().look(), child.pid).started_at
    assert end_process(child.pid, started - 100) == "it has ended already" and lives(child.pid, started)
    assert not lives(child.pid, None)
    assert end_process(child.pid, started) == ""
    assert child.wait() == -15 and not lives(child.pid, started)
    assert end_process(child.pid, started, kill=True) == "it has ended already"
