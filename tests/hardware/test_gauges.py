"""The gauges of the machine, and the threads that read them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import product
from threading import Event

import psutil
import pytest

from tui_trainer.hardware.cgroup import CgroupLimits
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gauges import (
    CpuTimes,
    DiskRate,
    GaugeSampler,
    cpu_share,
    cpu_times,
    disk_bytes,
    read_gauges,
)
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.hardware.processor import CoreWaits, DiskReads

MACHINE, CARDS = "tui-trainer-gauges", "tui-trainer-cards"


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def thread_named(name: str) -> threading.Thread:
    return next(thread for thread in threading.enumerate() if thread.name == name)


def test_a_look_reads_this_machine_and_its_gpus(fake_nvml, tmp_path):
    sampler = GaugeSampler(tmp_path / "runs", nvml=Nvml(fake_nvml({}, {"free": 41 << 30})))
    sampler.read_gpus_now()
    gauges = sampler.read_now()
    assert 0 < gauges.memory_used_bytes < gauges.memory_bytes and 0 < gauges.disk_used_bytes < gauges.disk_bytes
    found = [(gpu.index, gpu.memory_used_bytes, gpu.power_watts) for gpu in gauges.gpus]
    assert found == [(0, 1 << 30, 80.5), (1, 100 << 30, 80.5)]
    limited = read_gauges(tmp_path, None, CgroupLimits(memory_bytes=1 << 20, memory_used_bytes=1 << 18))
    assert (limited.memory_used_bytes, limited.memory_bytes, limited.gpus) == (1 << 18, 1 << 20, ())


def test_a_gpu_that_reports_nothing_has_no_figures(fake_nvml, tmp_path):
    calls = ("MemoryInfo", "UtilizationRates", "Temperature", "PowerUsage")
    errors = dict.fromkeys([f"nvmlDeviceGet{name}" for name in calls], 3)
    sampler = GaugeSampler(tmp_path, nvml=Nvml(fake_nvml({}, errors=errors)))
    sampler.read_gpus_now()
    (gpu,) = sampler.read_now().gpus
    assert {gpu.memory_used_bytes, gpu.utilisation_share, gpu.temperature_celsius, gpu.power_watts} == {None}

    class Odd(fake_nvml):
        def _answer(self, name, arguments):
            if name == "nvmlDeviceGetCount":
                raise KeyError("odd")
            return super()._answer(name, arguments)

    sampler = GaugeSampler(tmp_path, nvml=Nvml(Odd({})))
    sampler.read_gpus_now()
    assert sampler.read_now().gpus == (), "whatever the driver raises"


def test_the_cpu_share_is_counted_between_two_looks_and_of_a_quota():
    assert cpu_share(None, CpuTimes(1, 2)) is None
    assert cpu_share(CpuTimes(1, 2), CpuTimes(1, 2)) is None
    assert cpu_share(CpuTimes(1, 2), CpuTimes(2, 6)) == 0.25
    assert cpu_share(CpuTimes(1, 2), CpuTimes(9, 4)) == 1.0
    assert cpu_times(CgroupLimits(cores=1.5, cpu_used_seconds=3.0), lambda: 10.0) == CpuTimes(3.0, 15.0)
    whole = cpu_times(CgroupLimits())
    assert 0 < whole.busy_seconds <= whole.room_seconds


def test_rates_are_of_each_core_and_of_each_disk_that_is_a_device(tmp_path, monkeypatch):
    for name, sectors in (("sda", (2, 4)), ("loop0", (8, 8))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "stat").write_text("1 0 {} 0 1 0 {} 0 0 0 0".format(*sectors))
    (tmp_path / "sda/device").mkdir()
    assert disk_bytes(tmp_path) == {"sda": (1024, 2048)}
    counts, clock = iter([{"sda": (0, 100)}, {"sda": (500, 300), "new": (7, 7)}]), [0.0]
    monkeypatch.setattr("tui_trainer.hardware.gauges.disk_bytes", lambda: next(counts))
    cores = iter([[CpuTimes(1, 2), CpuTimes(1, 1)], [CpuTimes(2, 6), CpuTimes(1, 5)]])
    monkeypatch.setattr("tui_trainer.hardware.gauges.core_times", lambda: next(cores))
    sampler = GaugeSampler(tmp_path, now=lambda: clock[0])
    assert (sampler.read_now().core_shares, sampler.latest.disk_rates) == ((), ())
    clock[0] = 5.0
    assert (sampler.read_now().core_shares, sampler.latest.disk_rates) == ((0.25, 0.0), (DiskRate("sda", 100.0, 40.0),))


def until(true: Callable[[], object], thread: threading.Thread) -> None:
    """Wait until it is so; fail if the thread that should make it so has ended."""
    while not true():
        assert thread.is_alive()
        thread.join(0.01)


def ends(*threads: threading.Thread) -> bool:
    for thread in threads:
        thread.join(1500)
    return not any(thread.is_alive() for thread in threads)


def test_the_sampler_looks_repeatedly_until_it_is_stopped(tmp_path):
    sampler = GaugeSampler(tmp_path, period_seconds=0.01)
    assert sampler.latest is None
    assert sampler.stale
    sampler.start()
    sampler.start()
    machine, cards = (thread_named(name) for name in (MACHINE, CARDS))
    until(lambda: sampler.latest and sampler.latest.cpu_share is not None, machine)
    assert not sampler.stale
    sampler.stop()
    assert ends(machine, cards)
    sampler.start()
    again = thread_named(MACHINE)
    assert again is not machine
    sampler.stop()
    assert ends(again)


def test_a_changed_period_causes_a_look_at_once(tmp_path):
    sampler = GaugeSampler(tmp_path, period_seconds=600.0)
    sampler.start()
    machine = thread_named(MACHINE)
    until(lambda: sampler.latest, machine)
    before = sampler.latest
    sampler.set_period(1.0)
    assert not sampler.stale
    until(lambda: sampler.latest is not before, machine)
    sampler.stop()
    assert ends(machine)


def test_a_reading_becomes_stale_and_a_gpu_that_no_longer_answers_loses_its_figures(fake_nvml, tmp_path):
    clock = [100.0]
    sampler = GaugeSampler(tmp_path, nvml=Nvml(fake_nvml({}, {})), now=lambda: clock[0])
    sampler.read_gpus_now()
    assert [gpu.power_watts for gpu in sampler.read_now().gpus] == [80.5, 80.5]
    clock[0] = 102.9
    assert not sampler.stale
    clock[0] = 103.1
    assert sampler.stale and sampler.latest is not None
    sampler.read_now()
    assert not sampler.stale
    assert sampler.latest.gpus == tuple(Gpu(index=n, name="NVIDIA H200", memory_bytes=141 << 30) for n in (0, 1))


LOST_GAUGES = {
    "psutil.virtual_memory": "memory_bytes",
    "psutil.disk_usage": "disk_bytes",
    "psutil.cpu_times": "cpu_share",
    "tui_trainer.hardware.gauges.read_limits": "cpu_share",
}


def test_a_counter_that_fails_costs_only_its_own_gauge_until_it_recovers(monkeypatch, tmp_path, subtests):
    failures = (PermissionError(13, "no"), RuntimeError("odd"), psutil.Error("no"), KeyError("x"))
    for (name, field), failure in product(LOST_GAUGES.items(), failures):
        with subtests.test(f"{name} {failure!r}"):
            sampler = GaugeSampler(tmp_path)

            def fail(*_, failure=failure, **__):
                raise failure

            with monkeypatch.context() as broken:
                broken.setattr(name, fail)
                gauges = sampler.read_now()
                missing = {one for one in ("memory_bytes", "disk_bytes") if getattr(gauges, one) is None}
                assert missing == {field} - {"cpu_share"} and (
                    field != "cpu_share" or sampler.read_now().cpu_share is None
                )
            # The share of the processor needs two looks in different ticks of the clock.
            while getattr(sampler.read_now(), field) is None:
                assert field == "cpu_share"


def test_a_driver_that_hangs_affects_no_other_gauge_and_adds_no_threads(fake_nvml, tmp_path):
    released = Event()
    sampler = GaugeSampler(tmp_path, period_seconds=0.01, nvml=Nvml(fake_nvml({}, hang=released)))
    for _ in range(5):
        sampler.start()
    assert [names().count(name) for name in (MACHINE, CARDS)] == [1, 1]
    machine, cards = thread_named(MACHINE), thread_named(CARDS)
    until(lambda: sampler.latest and sampler.latest.cpu_share is not None, machine)
    assert not sampler.stale
    assert sampler.latest.memory_bytes and sampler.latest.disk_bytes
    assert sampler.latest.gpus == ()
    released.set()
    until(lambda: sampler.latest.gpus, cards)
    assert sampler.latest.gpus[0].name == "NVIDIA H200"
    sampler.stop()
    assert ends(machine, cards)


# Waits for cores and for storage, from files as the kernel writes them.


def write(tasks, name, computed, waited):
    (tasks / name).mkdir(parents=True, exist_ok=True)
    (tasks / name / "schedstat").write_text(f"{computed} {waited} 12\n")


def test_the_core_wait_share_counts_threads_that_existed_at_the_look_before(tmp_path):
    waits = CoreWaits(tmp_path)
    write(tmp_path, "1", 10**9, 10**9)
    write(tmp_path, "2", 0, 0)
    assert waits.wait_share() is None
    write(tmp_path, "1", 2 * 10**9, 15 * 10**8)
    write(tmp_path, "2", 10**9, 5 * 10**8)
    write(tmp_path, "3", 7 * 10**9, 9 * 10**9)
    assert waits.wait_share() == round(1 / 3, 4)
    assert waits.wait_share() is None, "nothing was computed since"


@pytest.mark.full
def test_a_kernel_without_these_counters_gives_no_figures(tmp_path):
    assert CoreWaits(tmp_path / "none").wait_share() is None
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "schedstat").write_text("\n")
    waits, reads = CoreWaits(tmp_path), DiskReads(root=tmp_path)
    assert [waits.wait_share(), reads.bytes(), reads.stall_share()] * 2 == [None] * 6


def test_bytes_and_stalls_of_storage_count_from_the_look_before(tmp_path):
    (tmp_path / "self").mkdir()
    (tmp_path / "pressure").mkdir()
    clock = [100.0]
    reads = DiskReads(lambda: clock[0], tmp_path)

    def note(read, stalled):
        (tmp_path / "self/io").write_text(f"rchar: 5\nread_bytes: {read}\nwrite_bytes: 9\n")
        (tmp_path / "pressure/io").write_text(f"some avg10=1.00 avg60=0.00 avg300=0.00 total={stalled}\nfull avg10=0\n")

    note(1_000, 0)
    assert (reads.bytes(), reads.stall_share()) == (None, None)
    clock[0] = 104.0
    note(5_000, 1_000_000)
    assert (reads.bytes(), reads.stall_share()) == (4_000, 0.25)
