"""The facts that a plan is made from. `None` is "not reported", never zero; bytes are bytes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tui_trainer.hardware.gpu_models import Abilities, Card, abilities, find_card
from tui_trainer.hardware.libraries import BytecodeObstacle
from tui_trainer.units import GIB

# What the driver keeps of a card.
_USABLE_SHARE = 0.97


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuProcess:
    pid: int
    name: str | None = None
    user: str | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """One card, as the driver describes it at the time of the probe."""

    index: int
    name: str | None = None
    uuid: str | None = None
    capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    utilisation_share: float | None = None
    """0 to 1: the share of the last sample period in which a kernel ran."""
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    clock_share: float | None = None
    """0 to 1: of the highest clock that its cores have."""
    slowed_by: str | None = None
    """`heat` or `power` where one of them holds the clock back, empty where neither does."""
    processes: tuple[GpuProcess, ...] | None = None
    visible: bool = True
    """False when CUDA_VISIBLE_DEVICES hides it from this process."""
    mig_enabled: bool | None = None
    """Divided into instances (MIG), of which a process gets one: name and memory are those of that instance."""
    mig_uuid: str | None = None
    """That instance: the one that CUDA_VISIBLE_DEVICES names, else the card's first."""
    problem: str = ""
    """Why the card does not answer, such as a card that has fallen off the bus."""

    @property
    def cuda_uuid(self) -> str:
        """The name of what CUDA computes on, which never changes: the MIG instance, else the card. Empty: unknown."""
        return self.mig_uuid or self.uuid or ""

    @property
    def memory_used_bytes(self) -> int | None:
        total, free = self.memory_bytes, self.memory_free_bytes
        return None if total is None or free is None else total - free

    @property
    def card(self) -> Card | None:
        return find_card(self.name, self.memory_bytes)

    @property
    def abilities(self) -> Abilities | None:
        """None where its capability is not reported."""
        return abilities(self.capability, self.card)


@dataclass(frozen=True, kw_only=True, slots=True)
class Driver:
    """The NVIDIA driver. `problem` says why it does not answer; then the rest is None."""

    version: str | None = None
    cuda: tuple[int, int] | None = None
    """The newest CUDA that it serves."""
    problem: str = ""
    error_code: int | None = None
    """NVML's number of that problem, see `nvml.py`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A folder that fills up or has a quota: where it is, and how much room there is."""

    label: str
    path: str
    free_bytes: int | None = None
    total_bytes: int | None = None
    writable: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Hardware:
    """One machine, as seen by this process."""

    cpu_name: str
    usable_cores: int
    """Cores this process may use: affinity and container quota counted, hyper-threads not."""
    memory_bytes: int | None
    memory_available_bytes: int | None
    """What can be had without swapping, container limit counted."""
    platform: str
    python_version: str
    host: str = ""
    logical_cores: int | None = None
    physical_cores: int | None = None
    """Of the machine: `usable_cores` is less where affinity or a container's quota keep this process from some."""
    machine_memory_bytes: int | None = None
    """Of the machine: `memory_bytes` is less where a container has a limit."""
    cpu_flags: frozenset[str] = frozenset()
    """The instruction sets that matter here, of those the processor reports: avx2, avx512f, amx_bf16, ..."""
    gpus: tuple[Gpu, ...] = ()
    driver: Driver | None = None
    """None when this machine has no sign of an NVIDIA driver."""
    libraries: Mapping[str, str | None] = field(default_factory=dict)
    """Version by distribution name, None where it is not installed; read without importing anything."""
    torch_cuda: tuple[int, int] | None = None
    """The CUDA that the installed torch was built for; None for a CPU build."""
    places: tuple[Place, ...] = ()
    load_of_others: float | None = None
    """Runnable tasks of other processes, the mean of the last minute; None where nobody has looked or tells."""
    bytecode_obstacle: BytecodeObstacle | None = None
    """Why Python compiles its libraries again at every start; None where it does not."""
    nvidia_pci_devices: int | None = None
    """NVIDIA display controllers on the PCI bus, which need no driver to be counted."""


def with_cards(hardware: Hardware, card: Card, count: int = 1) -> Hardware:
    """The same machine with `count` of this card in the place of its own: nothing else runs on them, and the driver and
    torch serve them."""
    usable = int(card.memory_gib * _USABLE_SHARE * GIB)
    gpus = tuple(
        Gpu(
            index=index,
            name=card.names[0],
            capability=card.capability,
            memory_bytes=usable,
            memory_free_bytes=usable,
        )
        for index in range(count)
    )
    # The oldest that torch is still built for, and the newest.
    cuda = (12, 6) if card.capability < (7, 5) else (13, 0)
    driver = Driver(version="580.65.06", cuda=(13, 0))
    return replace(hardware, gpus=gpus, driver=driver, torch_cuda=cuda, nvidia_pci_devices=count)
