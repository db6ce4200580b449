"""Queries to the NVIDIA driver; the only module that uses pynvml. Errors become None ("not reported") or a sentence.

Calls may hang if the driver is damaged. Call from a thread of your own, or with `storage.within`."""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess
from tui_trainer.hardware.storage import call_with_deadline, is_there
from tui_trainer.hardware.visible_gpus import visible_indices, visible_names

# Files that show that there is a driver. pynvml, whose import takes 0.15 s, is imported only if there is one.

_LIBRARY = "libnvidia-ml.so.1"
_LIBRARY_FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/lib/wsl/lib",  # Windows Subsystem for Linux
    "usr/local/nvidia/lib64",  # Google's Kubernetes
    "run/opengl-driver/lib",  # NixOS
)
_NVIDIA = "0x10de"
# PCI class 03: display controllers, both VGA (second byte 00) and 3D (02), which data-centre GPUs have.
_DISPLAY = "0x03"


def has_driver(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether a part of an NVIDIA driver exists: its kernel module, a device file, or the library."""
    if any(is_there(root / sign_path) for sign_path in ("proc/driver/nvidia", "dev/nvidiactl")):
        return True
    library_folders = [root / folder for folder in _LIBRARY_FOLDERS]
    library_folders += [Path(folder) for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any(is_there(folder / _LIBRARY) for folder in library_folders)


def nvidia_pci_devices(root: Path = Path("/")) -> int | None:
    """Return the number of NVIDIA display controllers on the PCI bus; None if the bus cannot be listed.

    Equivalent: `lspci -d 10de::03xx | wc -l`."""
    devices_folder = root / "sys/bus/pci/devices"
    try:
        return sum(_is_nvidia_display(device) for device in devices_folder.iterdir())
    except OSError:
        return None


def _is_nvidia_display(device: Path) -> bool:
    try:
        vendor, device_class = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and device_class.startswith(_DISPLAY)


NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND = 4, 9, 10, 12
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 15, 16, 18
# Without persistence mode the driver first wakes each GPU, which takes a second or more.
DEADLINE_SECONDS = 15.0

_DRIVER_WORDS = {
    NO_PERMISSION: "this user has no permission to query the NVIDIA driver",
    DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
    TIMEOUT: "the NVIDIA driver did not respond in time",
    LIBRARY_NOT_FOUND: "the NVIDIA driver's library (libnvidia-ml.so.1) was not found",
    GPU_IS_LOST: "a GPU has fallen off the bus, and the NVIDIA driver does not respond",
    VERSION_MISMATCH: "the NVIDIA driver was updated but the old one is still loaded",
}
_GPU_WORDS = {
    NO_PERMISSION: "cannot be used by this user",
    TIMEOUT: "does not respond in time",
    GPU_IS_LOST: "has fallen off the bus (GPU is lost)",
    RESET_REQUIRED: "needs a reset",
}
# nvml.h: NVML_CLOCK_SM; software and hardware thermal slowdown; power cap, hardware slowdown by a power brake.
_SM_CLOCK = 1
# nvml.h: NVML_MEMORY_ERROR_TYPE_(UN)CORRECTED, NVML_AGGREGATE_ECC.
_CORRECTED, _UNCORRECTED, _OVER_ITS_LIFE = 0, 1, 1
_SLOWED_BY = {"heat": 0x20 | 0x40, "power": 0x04 | 0x80}


@dataclass(frozen=True, kw_only=True, slots=True)
class CardUsers:
    """Memory in use on one GPU. `memory_by_pid` is None if hidden. A container sees only its own processes."""

    index: int
    used_bytes: int | None
    memory_by_pid: dict[int, int | None] | None


class Nvml:
    """One session with the driver. `library` is the module pynvml, or a fake with its functions."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._lock = Lock()
        self._driver: Driver | None = None

    def driver(self) -> Driver:
        """Return the driver, and start the session if there is none. If that fails, `problem` has the reason."""
        with self._lock:
            if self._driver is None or self._driver.problem:
                self._driver = self._start()
            return self._driver

    def gpus(self) -> tuple[Gpu, ...]:
        """Return all GPUs with all that the driver reports, including their processes. Empty without a driver."""
        if self.driver().problem:
            return ()
        gpus = tuple(self._gpu(index) for index in range(self._count()))
        visible = visible_indices(gpus)
        return tuple(replace(gpu, visible=gpu.index in visible) for gpu in gpus)

    def live(self) -> tuple[Gpu, ...]:
        """Return the GPUs with the values that change every second, without their processes.

        A driver with a problem is not queried every second: there are no GPUs until `driver` or `gpus` succeeds."""
        if (self._driver or self.driver()).problem:
            return ()
        handles = enumerate(self._handle(index) for index in range(self._count()))
        return tuple(Gpu(index=i, problem=why) if why else self._measured(i, handle) for i, (handle, why) in handles)

    def users(self) -> tuple[CardUsers, ...]:
        """Return the memory in use on each GPU. Empty if the driver has a problem, as for `live`."""
        if (self._driver or self.driver()).problem:
            return ()
        card_users = []
        for index in range(self._count()):
            handle, problem = self._handle(index)
            if problem:
                continue
            used_bytes = self._query("nvmlDeviceGetMemoryInfo", handle, get=lambda info: info.total - info.free)
            card_users.append(CardUsers(index=index, used_bytes=used_bytes, memory_by_pid=self._process_memory(handle)))
        return tuple(card_users)

    def gpu_in_use(self, uuid: str, pid: int) -> tuple[Gpu, int | None] | None:
        """Return the GPU or MIG instance with this `cuda_uuid`, as `live` does, and the bytes of a process on it (None
        if not reported). Return None if no such GPU responds."""
        if (self._driver or self.driver()).problem:
            return None
        for index in range(self._count()):
            handle, problem = self._handle(index)
            card_uuid = None if problem else self._query("nvmlDeviceGetUUID", handle)
            if problem or (uuid != (card_uuid or "") and not uuid.startswith("MIG-")):
                continue
            gpu = replace(self._measured(index, handle), uuid=card_uuid)
            if gpu.cuda_uuid == uuid:
                return gpu, (self._process_memory(handle) or {}).get(pid)
        return None

    def ecc(self, index: int) -> dict[str, Any] | None:
        """Return the memory errors over the life of a GPU, and whether rows wait for replacement; None if not reported.

        Equivalent: `nvidia-smi -q -d ECC,ROW_REMAPPER -i INDEX`."""
        handle, problem = self._handle(index)
        if problem or self.driver().problem:
            return None
        query = partial(self._query, "nvmlDeviceGetTotalEccErrors", handle)
        corrected, uncorrected = query(_CORRECTED, _OVER_ITS_LIFE), query(_UNCORRECTED, _OVER_ITS_LIFE)
        if corrected is None and uncorrected is None:
            return None
        pending = self._query("nvmlDeviceGetRemappedRows", handle, get=lambda rows: bool(rows[2]))
        return {"corrected": corrected, "uncorrected": uncorrected, "remapping_pending": pending}

    def _start(self) -> Driver:
        try:
            if self._library is None:
                import pynvml  # type: ignore[import-untyped]

                self._library = pynvml
            self._library.nvmlInit()
        except ImportError:
            return Driver(problem="the package nvidia-ml-py is not installed")
        except self._library.NVMLError as error:
            return Driver(problem=_words(error, _DRIVER_WORDS), error_code=_code(error))
        cuda_number = self._query("nvmlSystemGetCudaDriverVersion_v2")
        return Driver(
            version=self._query("nvmlSystemGetDriverVersion"),
            cuda=(cuda_number // 1000, cuda_number % 1000 // 10) if cuda_number else None,
        )

    def _count(self) -> int:
        return self._query("nvmlDeviceGetCount") or 0

    def _query(self, name: str, *arguments: Any, get: Callable[[Any], Any] = lambda value: value) -> Any:
        """Return the result of one call; None for any error, also if the library does not have the call."""
        try:
            return get(getattr(self._library, name)(*arguments))
        except (self._library.NVMLError, AttributeError, TypeError, ValueError):
            return None

    def _handle(self, index: int) -> tuple[Any, str]:
        """Return the handle of a GPU and an empty text, or None and the problem."""
        try:
            return self._library.nvmlDeviceGetHandleByIndex(index), ""
        except self._library.NVMLError as error:
            return None, _words(error, _GPU_WORDS)

    def _measured(self, index: int, handle: Any) -> Gpu:
        """Return the values of a GPU. If it is partitioned, name and memory are those of a process's instance."""
        is_partitioned = self._query("nvmlDeviceGetMigMode", handle, get=lambda modes: bool(modes[0]))
        mig_uuid, instance = self._instance(handle) if is_partitioned else (None, handle)
        memory_sizes = name = None
        if instance is not None:
            memory_sizes = self._query("nvmlDeviceGetMemoryInfo", instance, get=lambda info: (info.total, info.free))
            name = self._query("nvmlDeviceGetName", instance)
        clock = self._query("nvmlDeviceGetClockInfo", handle, _SM_CLOCK)
        max_clock = self._query("nvmlDeviceGetMaxClockInfo", handle, _SM_CLOCK)
        return Gpu(
            index=index,
            name=name or self._query("nvmlDeviceGetName", handle),
            mig_enabled=is_partitioned,
            mig_uuid=mig_uuid,
            memory_bytes=memory_sizes[0] if memory_sizes else None,
            memory_free_bytes=memory_sizes[1] if memory_sizes else None,
            utilisation_share=self._query("nvmlDeviceGetUtilizationRates", handle, get=lambda rates: rates.gpu / 100),
            temperature_celsius=self._query("nvmlDeviceGetTemperature", handle, 0, get=float),
            power_watts=self._query("nvmlDeviceGetPowerUsage", handle, get=_watts),
            power_limit_watts=self._query("nvmlDeviceGetEnforcedPowerLimit", handle, get=_watts),
            clock_share=round(clock / max_clock, 3) if clock and max_clock else None,
            slowed_by=self._slowed_by(handle),
        )

    def _slowed_by(self, handle: Any) -> str | None:
        """Return `heat` or `power`, whichever slows the clock; "" if neither, None if unknown.

        The function of NVML has another name since version 12.2."""
        call_names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        reasons = next((bits for call_name in call_names if (bits := self._query(call_name, handle)) is not None), None)
        if reasons is None:
            return None
        return next((cause for cause, mask in _SLOWED_BY.items() if reasons & mask), "")

    def _instance(self, gpu: Any) -> tuple[str | None, Any]:
        """Return (UUID, handle) of the MIG instance that CUDA gives a process: the first that the environment names,
        else the first of the GPU. (None, None) if there is none or this user may not see it."""
        instance_count = self._query("nvmlDeviceGetMaxMigDeviceCount", gpu) or 0
        handles = [self._query("nvmlDeviceGetMigDeviceHandleByIndex", gpu, index) for index in range(instance_count)]
        instances = [(self._query("nvmlDeviceGetUUID", handle), handle) for handle in handles if handle is not None]
        for visible_name in visible_names() or ():
            for uuid, handle in instances:
                if visible_name.startswith("MIG-") and uuid and uuid.startswith(visible_name):
                    return uuid, handle
        return instances[0] if instances else (None, None)

    def _gpu(self, index: int) -> Gpu:
        handle, problem = self._handle(index)
        if problem:
            return Gpu(index=index, problem=problem)
        by_pid = self._process_memory(handle)
        return replace(
            self._measured(index, handle),
            uuid=self._query("nvmlDeviceGetUUID", handle),
            capability=self._query("nvmlDeviceGetCudaComputeCapability", handle, get=tuple),
            processes=None if by_pid is None else tuple(_process(pid, used) for pid, used in by_pid.items()),
            problem=self._health(handle),
        )

    def _health(self, handle: Any) -> str:
        """Return why a GPU cannot be used, else "". A lost GPU still has a handle, but the first query fails."""
        try:
            self._library.nvmlDeviceGetMemoryInfo(handle)
        except self._library.NVMLError as error:
            return _words(error, _GPU_WORDS) if _code(error) in (GPU_IS_LOST, RESET_REQUIRED) else ""
        return ""

    def _process_memory(self, handle: Any) -> dict[int, int | None] | None:
        """Return bytes by process number; None if this user may not see the processes."""
        process_lists = [
            self._query(call_name, handle, get=list)
            for call_name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        ]
        if process_lists == [None, None]:
            return None
        return {entry.pid: entry.usedGpuMemory for entries in process_lists if entries for entry in entries}


_program_session = Nvml()


@cache
def session() -> Nvml | None:
    """Return the session of this program; None if there is no sign of an NVIDIA driver.

    The answer is kept until `cache_clear`, although a driver may be installed or loaded later."""
    return _program_session if has_driver() else None


def read_cards(nvml: Nvml | None, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Driver | None, tuple[Gpu, ...]]:
    """Return the driver and the GPUs. A driver that hangs has a `problem`."""
    if nvml is None:
        return None, ()
    hung_driver = Driver(problem=f"the NVIDIA driver did not respond within {deadline_seconds:g} s", error_code=TIMEOUT)
    return call_with_deadline(deadline_seconds, lambda: (nvml.driver(), nvml.gpus())) or (hung_driver, ())


def with_memory_now(
    gpus: tuple[Gpu, ...], nvml: Nvml | None, deadline_seconds: float = DEADLINE_SECONDS
) -> tuple[Gpu, ...]:
    """Return the GPUs with their current memory and utilisation, or unchanged if the driver hangs."""
    if nvml is None or not gpus:
        return gpus
    live_gpus = {gpu.index: gpu for gpu in call_with_deadline(deadline_seconds, nvml.live) or ()}
    return tuple(_updated(gpu, live_gpus.get(gpu.index)) for gpu in gpus)


def _updated(gpu: Gpu, now: Gpu | None) -> Gpu:
    if now is None or (now.name != gpu.name and not now.problem):
        return gpu
    return replace(
        gpu,
        memory_bytes=now.memory_bytes,
        memory_free_bytes=now.memory_free_bytes,
        utilisation_share=now.utilisation_share,
        problem=now.problem or gpu.problem,
    )


def _code(error: Exception) -> int | None:
    value = getattr(error, "value", None)
    return value if isinstance(value, int) else None


def _words(error: Exception, words: dict[int, str]) -> str:
    return words.get(_code(error) or 0) or f"NVML error {_code(error)}: {error}"


def _watts(milliwatts: int) -> float:
    return milliwatts / 1000


def _process(pid: int, memory_bytes: int | None) -> GpuProcess:
    """Return a process with its name and user if known. Command lines may contain secrets and are not read."""
    process_name = user_name = None
    with suppress(psutil.Error, OSError, KeyError, ValueError):
        process = psutil.Process(pid)
        process_name = "this program" if pid == os.getpid() else process.name()
        user_name = process.username()
    return GpuProcess(pid=pid, name=process_name, user=user_name, memory_bytes=memory_bytes)


# Errors of NVIDIA GPUs in the kernel's log (Xid), such as a GPU that fell off the bus or worn-out memory.
# Source: NVIDIA's "Xid Errors" guide; the kernel's Documentation/ABI/testing/dev-kmsg.

_MOST_REPORTS = 5
_RECORD_BYTES = 8192


def gpu_reports(log: Path = Path("/dev/kmsg")) -> list[str]:
    """Return the newest log lines about GPUs since boot; none if this user may not read the log."""
    reports: list[str] = []
    with suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := os.read(descriptor, _RECORD_BYTES):
                lines = record.decode(errors="replace").splitlines()
                reports += [line.partition(";")[2] or line for line in lines if "NVRM: Xid" in line]
        except BlockingIOError:
            pass  # the end of the log
        finally:
            os.close(descriptor)
    return reports[-_MOST_REPORTS:]
