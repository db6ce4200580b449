"""Who uses the machine: real processes and those of a fake driver, and how a process is ended."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tui_trainer.hardware.nvml import Nvml
from tui_trainer.hardware.processes import ProcessReader, ProcessUse, descendants, end_process, is_running
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
    while not (now := found(reader.look(), child.pid)).cores:
        assert child.poll() is None
    assert now.key == first.key


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the peak of the starter counts")
def test_the_peak_memory_of_a_process_does_not_count_the_process_that_started_it():
    child = "from tui_trainer.hardware.processes import own_peak_bytes; print(own_peak_bytes())"
    starter = (
        "import subprocess, sys; ballast = b'x' * 2**29; "
        f"sys.exit(subprocess.run([sys.executable, '-c', {child!r}]).returncode)"
    )
    peak_bytes = int(subprocess.run([sys.executable, "-c", starter], check=True, capture_output=True).stdout)
    assert 2**20 < peak_bytes < 2**29


def test_descendants_of_a_process_are_found():
    processes = {pid: ProcessUse(pid=pid, parent=parent) for pid, parent in ((1, 0), (2, 1), (3, 2), (4, 1), (5, 3))}
    assert descendants(processes, 2) == {2, 3, 5} and descendants(processes, 4) == {4}


def test_processes_on_a_gpu_are_listed_also_those_that_a_container_hides(fake_nvml):
    mine = SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 * GIB)
    outside = SimpleNamespace(pid=2**22 + 7, usedGpuMemory=None)
    library = fake_nvml({"processes": [mine]}, {"processes": [outside]}, {"free": 100 * GIB})
    reader = ProcessReader(Nvml(library))
    look = reader.look()
    assert look.has_cards and found(look, os.getpid()).card_bytes == {0: 3 * GIB}
    hidden = found(look, outside.pid)
    assert hidden.card_bytes == {1: None} and hidden.started_at is None and hidden.user is None
    library.errors = dict.fromkeys(("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"), 4)
    assert "GPU 0: the driver does not report its processes" in reader.look().notes


def test_memory_and_cores_in_use_by_unlisted_processes_are_reported(fake_nvml, monkeypatch):
    mine = SimpleNamespace(pid=7, usedGpuMemory=GIB)
    library = fake_nvml({}, {"free": 100 * GIB, "processes": [mine]}, {"free": 141 * GIB - GIB // 2})
    moments, busy = iter((10.0, 12.0)), iter((100.0, 108.0))
    monkeypatch.setattr("psutil.cpu_times", lambda: SimpleNamespace(user=next(busy), system=0.0))
    monkeypatch.setattr("psutil.process_iter", lambda: iter(()))
    reader = ProcessReader(Nvml(library), now=lambda: next(moments))
    memory = "are used by processes that this container does not show"
    first, second = reader.look().notes, reader.look().notes
    assert f"GPU 1: 40.0 GiB {memory}" in first and not any(note.startswith("GPU 2") for note in first)
    assert second[0].startswith("4.0 cores are used by processes that are not listed") and second[1:] == first


def test_a_process_is_ended_only_if_it_is_still_the_same(child):
    started = found(ProcessReader().look(), child.pid).started_at
    assert end_process(child.pid, started - 100) == "the process has already ended" and is_running(child.pid, started)
    assert not is_running(child.pid, None)
    assert end_process(child.pid, started) == ""
    assert child.wait() == -15 and not is_running(child.pid, started)
    assert end_process(child.pid, started, kill=True) == "the process has already ended"
