"""The gauges, and the thread that reads them."""

from __future__ import annotations

import threading
from pathlib import Path
from threading import Event

from tui_trainer.hardware.cgroup import Limits
from tui_trainer.hardware.gauges import CpuTimes, GaugeSampler, cpu_share, cpu_times, read_gauges
from tui_trainer.hardware.nvml import Nvml


def sampling_threads() -> int:
    return sum(thread.name == "tui-trainer-gauges" for thread in threading.enumerate())


def test_a_look_reports_this_machine_and_its_cards(fake_nvml, tmp_path):
    gauges = read_gauges(tmp_path / "runs", Nvml(fake_nvml({}, {"free": 41 << 30})), 0.5, Limits())
    assert gauges.cpu_share == 0.5
    assert 0 < gauges.process_memory_bytes < gauges.memory_bytes
    assert 0 < gauges.memory_used_bytes < gauges.memory_bytes
    assert 0 < gauges.disk_used_bytes < gauges.disk_bytes
    assert [(gpu.index, gpu.memory_used_bytes, gpu.power_watts) for gpu in gauges.gpus] == [
        (0, 1 << 30, 80.5),
        (1, 100 << 30, 80.5),
    ]


def test_a_container_limit_is_the_memory_that_is_shown(tmp_path):
    gauges = read_gauges(tmp_path, None, None, Limits(memory_bytes=1 << 20, memory_used_bytes=1 << 18))
    assert (gauges.memory_used_bytes, gauges.memory_bytes) == (1 << 18, 1 << 20)
    assert gauges.gpus == ()


def test_cards_that_report_nothing_are_drawn_as_nothing(fake_nvml, tmp_path):
    errors = dict.fromkeys(
        (
            "nvmlDeviceGetMemoryInfo",
            "nvmlDeviceGetUtilizationRates",
            "nvmlDeviceGetTemperature",
            "nvmlDeviceGetPowerUsage",
        ),
        3,
    )
    (gauge,) = read_gauges(tmp_path, Nvml(fake_nvml({}, errors=errors)), None, Limits()).gpus
    assert (gauge.memory_used_bytes, gauge.utilisation_share, gauge.temperature_celsius, gauge.power_watts) == (
        None,
    ) * 4


def test_the_share_of_the_processor_is_between_two_looks():
    assert cpu_share(None, CpuTimes(1, 2)) is None
    assert cpu_share(CpuTimes(1, 2), CpuTimes(1, 2)) is None
    assert cpu_share(CpuTimes(1, 2), CpuTimes(2, 6)) == 0.25
    assert cpu_share(CpuTimes(1, 2), CpuTimes(9, 4)) == 1.0


def test_a_quota_counts_as_the_whole():
    times = cpu_times(Limits(cores=1.5, cpu_used_seconds=3.0), lambda: 10.0)
    assert times == CpuTimes(3.0, 15.0)
    everything = cpu_times(Limits())
    assert 0 < everything.busy_seconds <= everything.room_seconds


def test_the_sampler_looks_by_itself_and_stops(tmp_path):
    sampler = GaugeSampler(tmp_path, period_seconds=0.01)
    assert sampler.latest is None
    assert sampler.stale
    sampler.start()
    sampler.start()
    thread = sampler._thread
    assert sampling_threads() == 1
    while sampler.latest is None or sampler.latest.cpu_share is None:
        assert thread.is_alive()
        thread.join(0.01)
    assert not sampler.stale
    sampler.stop()
    thread.join(5)
    assert not thread.is_alive()
    sampler.start()
    assert sampler._thread is not thread
    sampler.stop()
    sampler._thread.join(5)


def test_a_reading_grows_old(tmp_path):
    clock = [100.0]
    sampler = GaugeSampler(tmp_path, now=lambda: clock[0])
    sampler.look()
    clock[0] = 102.9
    assert not sampler.stale
    clock[0] = 103.1
    assert sampler.stale
    assert sampler.latest is not None


def test_a_driver_that_hangs_stops_nobody_and_piles_up_no_threads(fake_nvml, tmp_path):
    released = Event()
    library = fake_nvml({}, hang=released)
    sampler = GaugeSampler(Path(tmp_path), period_seconds=0.01, nvml=Nvml(library))
    for _ in range(5):
        sampler.start()
        sampler.stop()
    assert sampling_threads() == 1
    assert sampler.stale
    assert sampler.latest is None
    sampler.start()
    released.set()
    thread = sampler._thread
    while sampler.latest is None:
        assert thread.is_alive()
        thread.join(0.01)
    assert sampler.latest.gpus[0].name == "NVIDIA H200"
    sampler.stop()
    thread.join(5)
    assert sampling_threads() == 0
