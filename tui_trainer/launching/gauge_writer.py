"""Gauges of a run: a thread writes the run's use of the machine to the journal every few seconds.

The thread calls the system and the driver, never torch, and draws no random numbers, so it does not affect training.
Training does not wait for the thread: a driver that hangs stops the gauges but not the run."""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event, Thread
from time import monotonic, process_time

import psutil

from tui_trainer.hardware import nvml as nvml_room
from tui_trainer.hardware.cgroup import read_limits
from tui_trainer.hardware.facts import Gpu
from tui_trainer.hardware.gauges import UNREADABLE, CpuTimes, cpu_share, cpu_times
from tui_trainer.hardware.nvml import Nvml
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.hardware.processor import CoreWaits, DiskReads
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.events import GaugesRead, GpuReading
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.runs.state import GAUGES_EVERY_SECONDS


class GaugeWriter:
    """Thread that writes a `GaugesRead` event every `period_seconds`, the first one after one period."""

    def __init__(
        self,
        journal: JournalWriter,
        *,
        period_seconds: float = GAUGES_EVERY_SECONDS,
        nvml: Nvml | None = None,
        now: Callable[[], float] = monotonic,
        cpu_seconds: Callable[[], float] = process_time,
        other_pids: Sequence[int] = (),
    ) -> None:
        """Prepare the thread. The readings add the use of the processes `other_pids`, which train with this one."""
        self._journal, self._period_seconds, self._nvml = journal, period_seconds, nvml
        self._now, self._cpu_seconds = now, cpu_seconds
        self._other_processes: list[psutil.Process] = []
        for pid in other_pids:
            with suppress(psutil.Error):
                self._other_processes.append(psutil.Process(pid))
        self._gpu_uuids: tuple[str, ...] = ()
        self._previous_cpu_times: dict[str, CpuTimes] = {}
        self._core_waits, self._disk_reads = CoreWaits(), DiskReads(now)
        self._end = Event()

    def start(self) -> None:
        """Start the thread. If the system refuses a new thread, the run has no gauges."""
        with suppress(*UNREADABLE):
            Thread(target=self._work, name="tui-trainer-run-gauges", daemon=True).start()

    def stop(self) -> None:
        """Stop at once, without waiting for a reading in progress. A closed journal ignores that reading."""
        self._end.set()

    def watch_card_of(self, plan: Plan) -> None:
        """Read also the GPUs on which the plan trains, if any."""
        self._gpu_uuids = (plan.gpu_uuids or (plan.gpu_uuid,)) if plan.device == "cuda" else ()

    def write(self) -> None:
        """Take a reading and write it to the journal. A reading that fails is skipped."""
        with suppress(*UNREADABLE):
            self._journal.append_from_thread(self._read())

    def _work(self) -> None:
        with suppress(*UNREADABLE):
            # A share is computed from the differences between two readings.
            self._read()
        while not self._end.wait(self._period_seconds):
            self.write()

    def _read(self) -> GaugesRead:
        cpu_limits = read_limits()
        # Usable cores by affinity, or by the quota of the container if that is smaller.
        usable_cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        usable_cores = min(usable_cores, cpu_limits.cores or usable_cores)
        cpu_seconds = self._cpu_seconds() + sum(sum(process.cpu_times()[:2]) for process in self._other_processes)
        nvml = (self._nvml or nvml_room.session()) if self._gpu_uuids else None
        gpu_usages = [nvml.gpu_in_use(uuid, os.getpid()) for uuid in self._gpu_uuids] if nvml else []
        processes = (psutil.Process(), *self._other_processes)
        return GaugesRead(
            process_memory_bytes=sum(process.memory_info().rss for process in processes),
            process_cpu_share=self._cpu_share("process", CpuTimes(cpu_seconds, self._now() * usable_cores)),
            usable_cores=round(usable_cores, 2),
            machine_cpu_share=self._cpu_share("machine", cpu_times(cpu_limits, self._now)),
            core_wait_share=self._core_waits.wait_share(),
            disk_read_bytes=self._disk_reads.bytes(),
            io_stall_share=self._disk_reads.stall_share(),
            memory_available_bytes=memory_available_now(),
            gpus=[_reading(*gpu_usage) for gpu_usage in gpu_usages if gpu_usage is not None],
        )

    def _cpu_share(self, scope: str, now: CpuTimes) -> float | None:
        """Return the share of the CPU time used since the previous reading; None at the first reading."""
        share, self._previous_cpu_times[scope] = cpu_share(self._previous_cpu_times.get(scope), now), now
        return None if share is None else round(share, 4)


def _reading(gpu: Gpu, process_memory_bytes: int | None) -> GpuReading:
    total_bytes, free_bytes = gpu.memory_bytes, gpu.memory_free_bytes
    return GpuReading(
        index=gpu.index,
        utilization_share=gpu.utilisation_share,
        memory_used_bytes=None if total_bytes is None or free_bytes is None else total_bytes - free_bytes,
        memory_bytes=total_bytes,
        process_memory_bytes=process_memory_bytes,
        power_watts=None if gpu.power_watts is None else round(gpu.power_watts, 1),
        temperature_celsius=gpu.temperature_celsius,
        clock_share=gpu.clock_share,
        slowed_by=gpu.slowed_by,
    )
