"""The only user of pynvml. Every error of the driver becomes None ("not reported") or a sentence, never a crash.

Calls may hang when a driver is sick: ask from a thread of your own, or with `deadline.within`.
"""

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import psutil

from tui_trainer.hardware.facts import Driver, Gpu, GpuProcess
from tui_trainer.hardware.storage import is_there, within
from tui_trainer.hardware.visible_gpus import visible_indices, visible_names

# Signs of NVIDIA hardware that cost nothing to look for, so that pynvml (0.15 s) is imported only where it helps.

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
# PCI class 03: display controllers; the second byte tells VGA (00) from 3D (02), which data centre cards are.
_DISPLAY = "0x03"


def has_driver(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> bool:
    """True when something of an NVIDIA driver is here: the kernel's part, a device file, or the library."""
    if any(is_there(root / sign) for sign in ("proc/driver/nvidia", "dev/nvidiactl")):
        return True
    searched = [root / folder for folder in _LIBRARY_FOLDERS]
    searched += [Path(folder) for folder in environment.get("LD_LIBRARY_PATH", "").split(":") if folder]
    return any(is_there(folder / _LIBRARY) for folder in searched)


def nvidia_pci_devices(root: Path = Path("/")) -> int | None:
    """How many NVIDIA display controllers are on the PCI bus; None where there is no such list.

    Same as `lspci -d 10de::03xx | wc -l`.
    """
    devices = root / "sys/bus/pci/devices"
    try:
        return sum(_is_nvidia_display(device) for device in devices.iterdir())
    except OSError:
        return None


def _is_nvidia_display(device: Path) -> bool:
    try:
        vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
    except OSError:
        return False
    return vendor.strip() == _NVIDIA and kind.startswith(_DISPLAY)


NO_PERMISSION, DRIVER_NOT_LOADED, TIMEOUT, LIBRARY_NOT_FOUND = 4, 9, 10, 12
GPU_IS_LOST, RESET_REQUIRED, VERSION_MISMATCH = 15, 16, 18
# Without persistence mode the driver wakes each card first, a second or more a card.
DEADLINE_SECONDS = 15.0

_DRIVER_WORDS = {
    NO_PERMISSION: "this user has no permission to query the NVIDIA driver",
    DRIVER_NOT_LOADED: "the NVIDIA driver is installed but not loaded",
    TIMEOUT: "the NVIDIA driver did not respond in time",
    LIBRARY_NOT_FOUND: "the NVIDIA driver's library (libnvidia-ml.so.1) was not found",
    GPU_IS_LOST: "a GPU has fallen off the bus, and the NVIDIA driver does not respond",
    VERSION_MISMATCH: "the NVIDIA driver was updated but the old one is still loaded",
}
_CARD_WORDS = {
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
    """`memory_by_pid` is None where this user may not see the processes; in a container it has those inside of it."""

    index: int
    used_bytes: int | None
    memory_by_pid: dict[int, int | None] | None


class Nvml:
    """One session with the driver. `library` is the module pynvml or a fake with its functions."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self._lock = Lock()
        self._driver: Driver | None = None

    def driver(self) -> Driver:
        """Starts the session; `problem` says why there is none, and the next call tries again."""
        with self._lock:
            if self._driver is None or self._driver.problem:
                self._driver = self._start()
            return self._driver

    def gpus(self) -> tuple[Gpu, ...]:
        """All cards with everything the driver reports, and who is on them. Empty without a driver."""
        if self.driver().problem:
            return ()
        found = tuple(self._gpu(index) for index in range(self._count()))
        visible = visible_indices(found)
        return tuple(replace(gpu, visible=gpu.index in visible) for gpu in found)

    def live(self) -> tuple[Gpu, ...]:
        """The cards with what changes from second to second, without asking who is on them.

        A driver with a problem is not woken every second: it has no cards until `driver` or `gpus` found it well.
        """
        if (self._driver or self.driver()).problem:
            return ()
        return tuple(self._live(index) for index in range(self._count()))

    def users(self) -> tuple[CardUsers, ...]:
        """Who is on each card now. As `live`: a driver with a problem has none."""
        if (self._driver or self.driver()).problem:
            return ()
        found = []
        for index in range(self._count()):
            handle, problem = self._handle(index)
            if problem:
                continue
            used = self._ask("nvmlDeviceGetMemoryInfo", handle, get=lambda info: info.total - info.free)
            found.append(CardUsers(index=index, used_bytes=used, memory_by_pid=self._process_memory(handle)))
        return tuple(found)

    def in_use(self, uuid: str, pid: int) -> tuple[Gpu, int | None] | None:
        """The card or MIG instance of that `cuda_uuid` as `live` reports it, and the bytes on it of that process, None
        where the driver does not say. None where no such card answers.
        """
        if (self._driver or self.driver()).problem:
            return None
        for index in range(self._count()):
            handle, problem = self._handle(index)
            card_uuid = None if problem else self._ask("nvmlDeviceGetUUID", handle)
            if problem or (uuid != (card_uuid or "") and not uuid.startswith("MIG-")):
                continue
            gpu = replace(self._measured(index, handle), uuid=card_uuid)
            if gpu.cuda_uuid == uuid:
                return gpu, (self._process_memory(handle) or {}).get(pid)
        return None

    def ecc(self, index: int) -> dict[str, Any] | None:
        """Errors of the card's memory since it was made, and whether rows wait to be replaced; None where the card or
        its driver does not count them. Same as `nvidia-smi -q -d ECC,ROW_REMAPPER -i INDEX`."""
        handle, problem = self._handle(index)
        if problem or self.driver().problem:
            return None
        corrected, uncorrected = (
            self._ask("nvmlDeviceGetTotalEccErrors", handle, kind, _OVER_ITS_LIFE)
            for kind in (_CORRECTED, _UNCORRECTED)
        )
        if corrected is None and uncorrected is None:
            return None
        pending = self._ask("nvmlDeviceGetRemappedRows", handle, get=lambda rows: bool(rows[2]))
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
        cuda = self._ask("nvmlSystemGetCudaDriverVersion_v2")
        return Driver(
            version=self._ask("nvmlSystemGetDriverVersion"),
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        )

    def _count(self) -> int:
        return self._ask("nvmlDeviceGetCount") or 0

    def _ask(self, name: str, *arguments: Any, get: Callable[[Any], Any] = lambda answer: answer) -> Any:
        """What one call answers; None for every error, also of a library that lacks the call."""
        try:
            return get(getattr(self._library, name)(*arguments))
        except (self._library.NVMLError, AttributeError, TypeError, ValueError):
            return None

    def _handle(self, index: int) -> tuple[Any, str]:
        """A card's handle, or None and why there is none."""
        try:
            return self._library.nvmlDeviceGetHandleByIndex(index), ""
        except self._library.NVMLError as error:
            return None, _words(error, _CARD_WORDS)

    def _live(self, index: int) -> Gpu:
        handle, problem = self._handle(index)
        return Gpu(index=index, problem=problem) if problem else self._measured(index, handle)

    def _measured(self, index: int, handle: Any) -> Gpu:
        """A card, or of a divided one the instance that a process gets: its name and memory, the rest of the card."""
        is_divided = self._ask("nvmlDeviceGetMigMode", handle, get=lambda modes: bool(modes[0]))
        mig_uuid, instance = self._instance(handle) if is_divided else (None, handle)
        memory = name = None
        if instance is not None:
            memory = self._ask("nvmlDeviceGetMemoryInfo", instance, get=lambda info: (info.total, info.free))
            name = self._ask("nvmlDeviceGetName", instance)
        clock, most_clock = (
            self._ask(question, handle, _SM_CLOCK)
            for question in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo")
        )
        return Gpu(
            index=index,
            name=name or self._ask("nvmlDeviceGetName", handle),
            mig_enabled=is_divided,
            mig_uuid=mig_uuid,
            memory_bytes=memory[0] if memory else None,
            memory_free_bytes=memory[1] if memory else None,
            utilisation_share=self._ask("nvmlDeviceGetUtilizationRates", handle, get=lambda rates: rates.gpu / 100),
            temperature_celsius=self._ask("nvmlDeviceGetTemperature", handle, 0, get=float),
            power_watts=self._ask("nvmlDeviceGetPowerUsage", handle, get=_watts),
            power_limit_watts=self._ask("nvmlDeviceGetEnforcedPowerLimit", handle, get=_watts),
            clock_share=round(clock / most_clock, 3) if clock and most_clock else None,
            slowed_by=self._slowed_by(handle),
        )

    def _slowed_by(self, handle: Any) -> str | None:
        """The name of the call changed with NVML 12.2; older drivers know the older one only."""
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        reasons = next((bits for name in names if (bits := self._ask(name, handle)) is not None), None)
        if reasons is None:
            return None
        return next((word for word, mask in _SLOWED_BY.items() if reasons & mask), "")

    def _instance(self, card: Any) -> tuple[str | None, Any]:
        """(UUID, handle) of the instance that CUDA gives a process on a divided card: the first that the environment
        names, else the card's first. (None, None) where there is none, or this user may not see them.
        """
        count = self._ask("nvmlDeviceGetMaxMigDeviceCount", card) or 0
        handles = [self._ask("nvmlDeviceGetMigDeviceHandleByIndex", card, index) for index in range(count)]
        found = [(self._ask("nvmlDeviceGetUUID", handle), handle) for handle in handles if handle is not None]
        for name in visible_names() or ():
            for uuid, handle in found:
                if name.startswith("MIG-") and uuid and uuid.startswith(name):
                    return uuid, handle
        return found[0] if found else (None, None)

    def _gpu(self, index: int) -> Gpu:
        handle, problem = self._handle(index)
        if problem:
            return Gpu(index=index, problem=problem)
        memory = self._process_memory(handle)
        return replace(
            self._measured(index, handle),
            uuid=self._ask("nvmlDeviceGetUUID", handle),
            capability=self._ask("nvmlDeviceGetCudaComputeCapability", handle, get=tuple),
            processes=None if memory is None else tuple(_process(pid, size) for pid, size in memory.items()),
            problem=self._health(handle),
        )

    def _health(self, handle: Any) -> str:
        """A card that was lost or needs a reset still has a handle; the first question tells."""
        try:
            self._library.nvmlDeviceGetMemoryInfo(handle)
        except self._library.NVMLError as error:
            return _words(error, _CARD_WORDS) if _code(error) in (GPU_IS_LOST, RESET_REQUIRED) else ""
        return ""

    def _process_memory(self, handle: Any) -> dict[int, int | None] | None:
        """Bytes by process number; None where this user may not see the processes."""
        lists = [
            self._ask(name, handle, get=list)
            for name in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses")
        ]
        if lists == [None, None]:
            return None
        return {entry.pid: entry.usedGpuMemory for entries in lists if entries for entry in entries}


_of_this_program = Nvml()


@cache
def session() -> Nvml | None:
    """The session of this program; None when the machine has no sign of an NVIDIA driver. That there is none is
    remembered until `cache_clear`: one may be installed or loaded meanwhile."""
    return _of_this_program if has_driver() else None


def read_cards(nvml: Nvml | None, deadline_seconds: float = DEADLINE_SECONDS) -> tuple[Driver | None, tuple[Gpu, ...]]:
    """Driver and cards; a driver that hangs is one with a problem."""
    if nvml is None:
        return None, ()
    hung = Driver(problem=f"the NVIDIA driver did not respond within {deadline_seconds:g} s", error_code=TIMEOUT)
    return within(deadline_seconds, lambda: (nvml.driver(), nvml.gpus())) or (hung, ())


def with_memory_now(
    gpus: tuple[Gpu, ...], nvml: Nvml | None, deadline_seconds: float = DEADLINE_SECONDS
) -> tuple[Gpu, ...]:
    """The same cards with their memory, and how busy they are, as of now. As they were where the driver hangs."""
    if nvml is None or not gpus:
        return gpus
    now = {gpu.index: gpu for gpu in within(deadline_seconds, nvml.live) or ()}
    return tuple(_as_now(gpu, now.get(gpu.index)) for gpu in gpus)


def _as_now(gpu: Gpu, now: Gpu | None) -> Gpu:
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
    """Name and user where they may be read; never the command line, which may hold secrets of others."""
    name = user = None
    with suppress(psutil.Error, OSError, KeyError, ValueError):
        process = psutil.Process(pid)
        name = "this program" if pid == os.getpid() else process.name()
        user = process.username()
    return GpuProcess(pid=pid, name=name, user=user, memory_bytes=memory_bytes)


# What the kernel has noted of NVIDIA cards (Xid): a card that fell off the bus, memory that is worn out.
#
# Source: NVIDIA's "Xid Errors" guide; the kernel's Documentation/ABI/testing/dev-kmsg.

_MOST_REPORTS = 5
_RECORD_BYTES = 8192


def gpu_reports(log: Path = Path("/dev/kmsg")) -> list[str]:
    """The newest lines about cards since the machine was started; none where this user may not read them."""
    found: list[str] = []
    with suppress(OSError):
        descriptor = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
        try:
            while record := os.read(descriptor, _RECORD_BYTES):
                lines = record.decode(errors="replace").splitlines()
                found += [line.partition(";")[2] or line for line in lines if "NVRM: Xid" in line]
        except BlockingIOError:
            pass  # all of it was read
        finally:
            os.close(descriptor)
    return found[-_MOST_REPORTS:]
