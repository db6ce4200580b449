"""What the checks look at, as it is gathered: memory of now, the load of others, folders that are closed."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tui_trainer.advice.gather import gather
from tui_trainer.config.load import LoadedConfig, Request
from tui_trainer.hardware import processor as load
from tui_trainer.hardware.cgroup import CgroupLimits
from tui_trainer.hardware.probe import probe
from tui_trainer.launching.open_run import load_config
from tui_trainer.launching.prepare import estimated_plan
from tui_trainer.planning import plan as planning
from tui_trainer.units import GIB, MIB


def asked() -> LoadedConfig:
    return load_config(Request())


@pytest.fixture
def limited(monkeypatch):
    """`limited(free_bytes)`: the container has that much left."""

    def limit(free_bytes: int) -> None:
        now = CgroupLimits(memory_bytes=4 * GIB, memory_used_bytes=4 * GIB - free_bytes)
        monkeypatch.setattr("tui_trainer.hardware.probe.read_limits", lambda: now)

    return limit


def test_facts_are_gathered_from_this_machine():
    context, now = gather(asked()), {"memory_available_bytes": 0, "load_of_others": None}
    assert replace(context.hardware, **now) == replace(probe(), **now)
    assert context.plan is not None
    assert context.all_tokens and context.disk_free_bytes and context.cache.writable is True


def test_free_memory_is_that_of_now_and_not_of_the_start(limited):
    at_start = probe()
    for free in (500 * MIB, 100 * MIB, 500 * MIB):
        limited(free)
        assert gather(asked(), hardware=at_start).hardware.memory_available_bytes == free


def test_the_plan_is_made_for_the_memory_of_now(limited):
    probe()
    sizes = []
    for free in (500 * MIB, 120 * MIB, 500 * MIB):
        limited(free)
        sizes.append(gather(asked()).plan.per_device_train_batch_size.value)
    assert sizes[1] < sizes[0] == sizes[2]


def test_a_run_too_is_planned_for_the_memory_of_now(monkeypatch, limited, tiny_run):
    probe()
    real, seen = planning.make, []

    def make(loaded, hardware, facts, **rest):
        seen.append(hardware.memory_available_bytes)
        return real(loaded, hardware, facts, **rest)

    monkeypatch.setattr(planning, "make", make)
    limited(400 * MIB)
    estimated_plan(asked())
    limited(300 * MIB)
    tiny_run("one", {"training.max_steps": 1})
    assert seen == [400 * MIB, 300 * MIB, 300 * MIB], "a run is estimated when it is opened, and planned exactly"


def test_a_cache_below_a_closed_folder_is_one_that_cannot_be_made(monkeypatch, tmp_path):
    closed, real = tmp_path / "closed", Path.stat
    closed.mkdir()

    def stat(path, **options):
        if closed in path.parents:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, **options)

    monkeypatch.setattr(Path, "stat", stat)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != closed)
    monkeypatch.setenv("TUI_TRAINER_HOME", str(closed / "home"))
    monkeypatch.setattr("tui_trainer.advice.gather.facts_of", lambda config, progress: None)
    monkeypatch.setattr("tui_trainer.advice.gather.plan_or_problems", lambda *_: (None, ()))
    monkeypatch.setattr("tui_trainer.advice.gather.newest_measured", lambda: None)
    context = gather(asked())
    assert context.cache.writable is False and context.cache.free_bytes > 0


def task(folder: Path, name: int, *, state: str = "S", cpu_seconds: float = 0, age_seconds: float = 1000) -> None:
    """As the kernel writes it, of a thread whose name is made to be misread."""
    ticks = load.os.sysconf("SC_CLK_TCK")
    started = (time.clock_gettime(time.CLOCK_BOOTTIME) - age_seconds) * ticks
    fields = [state, *"0" * 10, int(cpu_seconds * ticks), 0, *"0" * 6, int(started), 0]
    (folder / str(name)).mkdir(parents=True)
    (folder / str(name) / "stat").write_text(f"{name} (a) R (b) " + " ".join(map(str, fields)))


def test_the_own_load_is_what_runs_now_and_what_ran_all_along(tmp_path):
    def own(name: str, *threads: dict) -> float:
        for number, facts in enumerate(threads):
            task(tmp_path / name, -number - 1, **facts)
        return load.own_load(tmp_path / name)

    assert own("idle", {}, {}) == 0
    assert own("two run", {"state": "R"}, {"state": "R"}, {}) == pytest.approx(2, abs=0.01)
    assert own("waits for us", {"cpu_seconds": 900}) == pytest.approx(0.9, abs=0.01)
    assert own("a minute old", {"state": "R", "age_seconds": 60}) == pytest.approx(0.632, abs=0.02)
    assert own("new", {"state": "R", "age_seconds": -1}) == 0
    assert load.own_load(tmp_path / "no such system") == 0


def test_the_thread_that_asks_is_no_load(tmp_path):
    task(tmp_path, threading.get_native_id(), state="R")
    assert load.own_load(tmp_path) == 0


def test_the_own_threads_are_taken_off_the_load_of_the_machine(monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (3.5, 0, 0))
    monkeypatch.setattr(load, "own_load", lambda: 2.0)
    assert gather(asked()).load_average == 1.5
    monkeypatch.setattr(load, "own_load", lambda: 4.0)
    assert gather(asked()).load_average == 0
    monkeypatch.delattr("os.getloadavg")
    assert gather(asked()).load_average is None


def test_a_thread_that_computes_is_seen_in_what_the_kernel_tells(tmp_path):
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    def share_of(thread: threading.Thread) -> float:
        tasks = tmp_path / thread.name
        tasks.mkdir()
        (tasks / str(thread.native_id)).symlink_to(f"/proc/self/task/{thread.native_id}")
        return load.own_load(tasks)

    busy, idle = (threading.Thread(target=work, daemon=True, name=work.__name__) for work in (spin, stop.wait))
    started = time.process_time()
    busy.start()
    idle.start()
    while time.process_time() - started < 0.3:
        busy.join(0.01)
    shares = share_of(busy), share_of(idle)
    stop.set()
    busy.join()
    assert 0.001 < shares[0] < 0.5 and shares[1] < shares[0] / 10
