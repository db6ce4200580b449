"""Readings of the machine in the journal of a run, which never waits for them."""

from __future__ import annotations

import os
import threading
from types import SimpleNamespace

import psutil
import pytest

from tests.runs.journals import read_all
from tui_trainer.errors import EXIT_DONE
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.launching.gauge_writer import GaugeWriter
from tui_trainer.launching.open_run import open_new, reopen_run
from tui_trainer.launching.run_lifecycle import execute_run
from tui_trainer.runs import controls
from tui_trainer.runs.events import GaugesRead, PhaseChanged, RunFinished, StepDone
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.state import apply_events

GIB = 1 << 30
THREAD = "tui-trainer-run-gauges"


def on_card(uuid, *more):
    return SimpleNamespace(device="cuda", gpu_uuid=uuid, gpu_uuids=(uuid, *more) if more else ())


def threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD]


@pytest.fixture
def journal(tmp_path):
    with JournalWriter(tmp_path / "journal.jsonl") as writer:
        writer.append(PhaseChanged(phase="training"))
        yield writer


def readings(journal) -> list[GaugesRead]:
    return [event for event in read_all(journal.path) if isinstance(event, GaugesRead)]


def test_a_reading_has_this_process_and_the_gpu_of_the_plan(fake_nvml, journal):
    processes = [SimpleNamespace(pid=1, usedGpuMemory=9 * GIB), SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 * GIB)]
    library = fake_nvml({}, {"free": 100 * GIB, "use": 93, "processes": processes, "clock": 990, "reasons": 0x40})
    clock, cpu = [100.0], [7.0]
    writer = GaugeWriter(journal, nvml=Nvml(library), now=lambda: clock[0], cpu_seconds=lambda: cpu[0])
    writer.write()
    assert library.calls == [], "before a plan names a card, the driver is not asked"
    writer.watch_card_of(on_card("GPU-1000"))
    (first,) = readings(journal)
    clock[0], cpu[0] = 110.0, 7.0 + 10 * first.usable_cores / 4
    writer.write()
    _, second = readings(journal)
    assert (first.process_cpu_share, first.gpus) == (None, [])
    assert first.process_memory_bytes > 10_000_000
    assert second.process_cpu_share == pytest.approx(0.25, abs=0.01)
    (card,) = second.gpus
    assert (card.index, card.utilization_share, card.power_watts, card.temperature_celsius) == (1, 0.93, 80.5, 41.0)
    assert (card.memory_used_bytes, card.memory_bytes, card.process_memory_bytes) == (41 * GIB, 141 * GIB, 5 * GIB)
    assert (card.clock_share, card.slowed_by) == (0.5, "heat")
    assert first.machine_cpu_share is None and second.memory_available_bytes > 0


@pytest.mark.full
def test_readings_of_several_processes_count_all_of_them_and_every_gpu(fake_nvml, journal):
    library = fake_nvml({}, {"use": 93})
    # This process counts twice, as if another one took as much.
    writer = GaugeWriter(journal, nvml=Nvml(library), other_pids=[os.getpid()])
    writer.watch_card_of(on_card("GPU-0000", "GPU-1000"))
    writer.write()
    own = psutil.Process().memory_info().rss
    (reading,) = readings(journal)
    assert [card.index for card in reading.gpus] == [0, 1] and reading.gpus[1].utilization_share == 0.93
    assert reading.process_memory_bytes == pytest.approx(2 * own, rel=0.1)


def test_a_run_on_the_cpu_never_calls_the_driver(fake_nvml, journal):
    library = fake_nvml({})
    writer = GaugeWriter(journal, nvml=Nvml(library))
    writer.watch_card_of(SimpleNamespace(device="cpu", gpu_uuid=""))
    writer.write()
    assert library.calls == [] and readings(journal)[0].gpus == []


def test_an_error_of_the_driver_costs_its_figure_and_a_lost_gpu_its_row(fake_nvml, journal):
    library = fake_nvml({})
    writer = GaugeWriter(journal, nvml=Nvml(library))
    writer.watch_card_of(on_card("GPU-0000"))
    writer.write()
    calls, swept = sorted(set(library.calls)), 0
    for call in calls:
        library.errors = {call: 15}
        writer.write()
        swept += 1
    assert swept >= 10
    found = readings(journal)
    assert len(found) == swept + 1 and all(reading.process_memory_bytes for reading in found)
    without = {call for call, reading in zip(calls, found[1:], strict=True) if not reading.gpus}
    assert without == {"nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"}
    assert found[0].gpus[0].process_memory_bytes is None
    by_call = dict(zip(calls, found[1:], strict=True))
    assert by_call["nvmlDeviceGetUtilizationRates"].gpus[0].utilization_share is None
    memory = by_call["nvmlDeviceGetMemoryInfo"].gpus[0]
    assert (memory.memory_used_bytes, memory.memory_bytes, memory.power_watts) == (None, None, 80.5)


def test_a_failed_reading_is_skipped_and_the_next_is_written(fake_nvml, journal, monkeypatch):
    writer = GaugeWriter(journal)
    for failure in (PermissionError(13, "no"), RuntimeError("odd"), KeyError("x"), ValueError("y")):
        with monkeypatch.context() as broken:

            def fails(failure=failure):
                raise failure

            broken.setattr(psutil, "Process", fails)
            writer.write()
    assert readings(journal) == []
    writer.write()
    assert len(readings(journal)) == 1


def test_the_thread_writes_repeatedly_and_ends_whatever_its_period(journal):
    writer = GaugeWriter(journal, period_seconds=0.001)
    writer.start()
    (thread,) = threads()
    while len(readings(journal)) < 3:
        assert thread.is_alive()
    writer.stop()
    thread.join(1500)
    assert not thread.is_alive()
    slow = GaugeWriter(journal, period_seconds=1e6)
    slow.start()
    (thread,) = threads()
    assert thread.daemon
    slow.stop()
    thread.join(1500)
    assert not thread.is_alive()


@pytest.mark.full
def test_a_driver_that_hangs_delays_no_end_and_writes_nothing_after_it(fake_nvml, tmp_path):
    released = threading.Event()
    library = fake_nvml({}, hang=released)
    journal = JournalWriter(tmp_path / "journal.jsonl")
    journal.append(PhaseChanged(phase="training"))
    writer = GaugeWriter(journal, period_seconds=0.001, nvml=Nvml(library))
    writer.watch_card_of(on_card("GPU-0000"))
    writer.start()
    (thread,) = threads()
    while not library.calls:
        assert thread.is_alive()
    writer.stop()
    journal.close()
    assert thread.is_alive(), "the driver still holds it"
    released.set()
    thread.join(1500)
    assert not thread.is_alive()
    assert readings(journal) == [] and journal.failure_reason is None


@pytest.mark.full
def test_a_run_has_readings_in_order_and_the_same_losses_as_without(tiny_config, monkeypatch):
    from tui_trainer.training.session import Session

    opened = open_new(tiny_config("plain"))
    plain = opened.folder
    assert execute_run(opened, gauges_every_seconds=1e6).exit_code == EXIT_DONE
    assert not [event for event in read_all(plain.journal) if isinstance(event, GaugesRead)], "the first after a period"

    run, take = open_new(tiny_config("read")), Session.take_step

    def take_once_read(self, step):
        take(self, step)
        before = self.job.folder.journal.stat().st_size
        while self.job.folder.journal.stat().st_size == before:
            assert threads()
        if step == 6:
            controls.request(self.job.folder.control, "stop")

    monkeypatch.setattr(Session, "take_step", take_once_read)
    execute_run(run, gauges_every_seconds=0.001)
    assert execute_run(reopen_run(run.folder), gauges_every_seconds=0.001).exit_code == EXIT_DONE
    events = read_all(run.folder.journal)
    assert isinstance(events[-1], RunFinished)
    read = [event for event in events if isinstance(event, GaugesRead)]
    assert len(read) >= 10 and {event.step for event in read} >= {0, 1, 6, 10}
    assert [event.step for event in read] == sorted(event.step for event in read)
    assert all(event.process_memory_bytes and event.gpus == [] for event in read)
    assert any(event.process_cpu_share for event in read)
    state = apply_events(events)
    assert list(state.steps) == list(range(1, 11)) and state.gauge_summary.readings == len(read)
    figures = [
        [(event.step, event.loss_sum, event.grad_norm) for event in found if isinstance(event, StepDone)]
        for found in (read_all(plain.journal), events)
    ]
    assert figures[0] == figures[1] and len(figures[0]) == 10
