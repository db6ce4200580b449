"""Facts that a plan is made from. None means "not reported" and never zero. Sizes are in bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tui_trainer.hardware.gpu_models import Abilities, Card, abilities, find_card
from tui_trainer.hardware.libraries import BytecodeObstacle
from tui_trainer.units import GIB

# The driver reserves the rest of a GPU's memory.
_USABLE_SHARE = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    pid: int
    name: str | None = None
    user: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One GPU, as the driver described it when it was read."""

    index: int
    name: str | None = None
    uuid: str | None = None
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilisation_share: float | None = None
    """Share of the last sample period in which a kernel ran, 0 to 1."""
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    clock_share: float | None = None
    """Clock of the cores as a share of their highest clock, 0 to 1."""
    slowed_by: str | None = None
    """`heat` or `power` if it limits the clock, otherwise empty."""
    processes: tuple[GpuProcess, ...] | None = None
    visible: bool = True
    """False if CUDA_VISIBLE_DEVICES hides the GPU from this process."""
    mig_enabled: bool | None = None
    """Whether the GPU is partitioned (MIG). A process gets one instance, which `name` and memory then describe."""
    mig_uuid: str | None = None
    """UUID of the MIG instance of a process: the one in CUDA_VISIBLE_DEVICES, or else the first."""
    problem: str = ""
    """Why the GPU does not respond, for example `has fallen off the bus`; empty if it does."""

    @property
    def cuda_uuid(self) -> str:
        """Permanent name of the device that CUDA uses: the MIG instance or else the GPU. Empty if unknown."""
        return self.mig_uuid or self.uuid or ""

    @property
    def memory_used_bytes(self) -> int | None:
        total_bytes, free_bytes = self.memory_bytes, self.memory_free_bytes
        return None if total_bytes is None or free_bytes is None else total_bytes - free_bytes

    @property
    def card(self) -> Card | None:
        return find_card(self.name, self.memory_bytes)

    @property
    def abilities(self) -> Abilities | None:
        """Native types and kernels; None if the compute capability is not reported."""
        return abilities(self.capability, self.card)


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The NVIDIA driver. `problem` says why it does not respond; the other fields are then None."""

    version: str | None = None
    cuda: tuple[int, int] | None = None
    """Newest CUDA version that the driver supports."""
    problem: str = ""
    error_code: int | None = None
    """NVML's code of the problem (`nvml.py`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Folder that may fill up or have a quota, and its free space."""

    label: str
    path: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    writable: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One machine, as this process sees it."""

    cpu_name: str
    usable_cores: int
    """Cores that affinity and container quota allow this process. Hyper-threads are not counted."""
    memory_bytes: int | None
    memory_available_bytes: int | None
    """Bytes available without swapping, within the container's limit."""
    platform: str
    python_version: str
    host: str = ""
    logical_cores: int | None = None
    physical_cores: int | None = None
    """Cores of the machine. `usable_cores` may be fewer because of affinity or a container's quota."""
    machine_memory_bytes: int | None = None
    """Memory of the machine. `memory_bytes` may be less because of a container's limit."""
    cpu_flags: frozenset[str] = frozenset()
    """Reported instruction sets that matter for training: avx2, avx512f, amx_bf16, ..."""
    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    """None if there is no sign of an NVIDIA driver."""
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    """Versions by distribution name, None if not installed. They are read without imports."""
    torch_cuda: tuple[int, int] | None = None
    """CUDA version that the installed torch was built for; None for a CPU build."""
    places: tuple[Place, ...] = ()
    load_of_others: float | None = None
    """Mean number of runnable tasks of other processes in the last minute; None if not measured."""
    bytecode_obstacle: BytecodeObstacle | None = None
    """Why Python recompiles its libraries at every start; None if it does not."""
    nvidia_pci_devices: int | None = None
    """Number of NVIDIA display controllers on the PCI bus. They are counted without a driver."""


def with_cards(hardware: Hardware, card: Card, count: int = 1) -> Hardware:
    """Return the machine with `count` idle GPUs of this model instead of its own, and a matching driver and torch."""
    usable = int(card.memory_gib * _USABLE_SHARE * GIB)
    gpus = tuple(
        Gpu(index=index, name=card.names[0], capability=card.capability, memory_bytes=usable, memory_free_bytes=usable)
        for index in range(count)
    )
    # The oldest and the newest CUDA version that torch is built for.
    torch_cuda = (12, 6) if card.capability < (7, 5) else (13, 0)
    driver = Driver(version="580.65.06", cuda=(13, 0))
    return replace(hardware, gpus=gpus, driver=driver, torch_cuda=torch_cuda, nvidia_pci_devices=count)
