"""Table of GPU models (`CARDS`), their abilities by compute capability, and the builds of torch that support them.

Sources: CUDA C++ Programming Guide, "Compute Capabilities"; release notes of CUDA 12.0 (Kepler ended), 12.8 (Blackwell
began) and 13.0 (Maxwell, Pascal and Volta ended); pytorch/pytorch#157517 and #172352, which GPUs the wheels of CUDA
12.8 support; FlashAttention-2's README (Ampere and newer)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from tui_trainer.hardware.libraries import numbers_of
from tui_trainer.units import GIB

# Rates are those of the maker for dense matrices (half of the sparse ones in data sheets). Tensor cores accumulate in
# fp32, as in training, which on GeForce GPUs is half of the advertised rate.

# Reported memory as a share of the nominal one: the driver reserves some, and ECC another sixteenth.
_LEAST_SHARE, _MOST_SHARE = 0.90, 1.02
MAKERS_WORDS = ("nvidia", "geforce", "tesla", "quadro")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Peak rates in 10^12 operations per second by type; None if the GPU lacks such units or the rate is unknown."""

    fp32: float | None = None
    tf32: float | None = None
    fp16: float | None = None
    bf16: float | None = None
    fp8: float | None = None
    int8: float | None = None

    def known(self) -> dict[str, float]:
        """Return the rates that are not None, by type."""
        return {field.name: rate for field in fields(self) if (rate := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU model. `names` are the names that the driver reports, after `plain_name`."""

    title: str
    names: tuple[str, ...]
    capability: tuple[int, int]
    memory_gib: int
    gigabytes_per_second: float
    """Peak rate of its memory, in 10^9 bytes per second."""
    teraflops: Rates
    source: str
    tensor_cores: bool = True

    @property
    def label(self) -> str:
        """Title, with the memory size if several models have the same title: `V100 32 GB`."""
        is_shared_title = sum(other.title == self.title for other in CARDS) > 1
        return f"{self.title} {self.memory_gib} GB" if is_shared_title else self.title


def find_card(name: str | None, memory_bytes: int | None) -> Card | None:
    """Return the model by the name that the driver reports and, if models share it, by memory. None if unknown."""
    if name is None:
        return None
    cards = [card for card in CARDS if plain_name(name) in card.names]
    if memory_bytes is not None:
        cards = [card for card in cards if _LEAST_SHARE <= memory_bytes / (card.memory_gib * GIB) <= _MOST_SHARE]
    return cards[0] if len(cards) == 1 else None


def plain_name(name: str) -> str:
    """Return `rtx 4090` for `NVIDIA GeForce RTX 4090`: lower case, without hyphens and the maker's words."""
    words = name.lower().replace("-", " ").split()
    return " ".join(word for word in words if word not in MAKERS_WORDS)


def _ampere(fp32: float | None, tf32: float, half: float, fp8: float | None = None, int8: float | None = None) -> Rates:
    """Return the rates of Ampere and newer GPUs, on which bf16 is as fast as fp16."""
    return Rates(fp32=fp32, tf32=tf32, fp16=half, bf16=half, fp8=fp8, int8=int8)


_P100, _H100, _HGX_B200 = "NVIDIA P100 data sheet", "NVIDIA H100 data sheet", "NVIDIA HGX B200 data sheet"
_TURING = "NVIDIA Turing architecture paper"
_GA102 = "NVIDIA Ampere GA102 architecture paper"
_ADA = "NVIDIA Ada architecture paper"
_BLACKWELL = "NVIDIA RTX Blackwell architecture paper"
# fp32 is cores x 2 x boost clock. Other rates follow from the ratios in the paper on the same chip family.
_GA102_RATIO = "NVIDIA specifications (cores, boost clock), ratios of the GA102 paper"
_ADA_RATIO = "NVIDIA specifications (cores, boost clock), ratios of the Ada paper"
_A100_RATES = _ampere(19.5, 156, 312, int8=624)
_HOPPER_RATES = _ampere(67, 494.5, 989, fp8=1979, int8=1979)

CARDS = (
    Card("K80", ("k80",), (3, 7), 12, 240, Rates(fp32=4.37), "NVIDIA K80 data sheet, one of its two GPUs", False),
    Card("GTX 1080 Ti", ("gtx 1080 ti",), (6, 1), 11, 484, Rates(fp32=11.3), "NVIDIA specifications", False),
    Card("P100 PCIe", ("p100 pcie 16gb",), (6, 0), 16, 732, Rates(fp32=9.3, fp16=18.7), _P100, False),
    Card("P100", ("p100 sxm2 16gb",), (6, 0), 16, 732, Rates(fp32=10.6, fp16=21.2), _P100, False),
    Card("V100", ("v100 sxm2 16gb",), (7, 0), 16, 900, Rates(fp32=15.7, fp16=125), "NVIDIA V100 data sheet"),
    Card("V100", ("v100 sxm2 32gb",), (7, 0), 32, 900, Rates(fp32=15.7, fp16=125), "NVIDIA V100 data sheet"),
    Card("V100 PCIe", ("v100 pcie 16gb",), (7, 0), 16, 900, Rates(fp32=14, fp16=112), "NVIDIA V100 data sheet"),
    Card("V100 PCIe", ("v100 pcie 32gb",), (7, 0), 32, 900, Rates(fp32=14, fp16=112), "NVIDIA V100 data sheet"),
    Card("T4", ("t4",), (7, 5), 16, 320, Rates(fp32=8.1, fp16=65, int8=130), "NVIDIA T4 data sheet"),
    Card("GTX 1660", ("gtx 1660",), (7, 5), 6, 192, Rates(fp32=5.0), "NVIDIA specifications", False),
    Card("RTX 2080 Ti", ("rtx 2080 ti",), (7, 5), 11, 616, Rates(fp32=13.4, fp16=53.8, int8=215), _TURING),
    Card("RTX 3060", ("rtx 3060",), (8, 6), 12, 360, _ampere(12.7, 12.7, 25.5), _GA102_RATIO),
    Card("RTX 3080", ("rtx 3080",), (8, 6), 10, 760, _ampere(29.8, 29.8, 59.5, int8=238), _GA102),
    Card("RTX 3090", ("rtx 3090",), (8, 6), 24, 936, _ampere(35.6, 35.6, 71, int8=284), _GA102),
    Card("A10", ("a10",), (8, 6), 24, 600, _ampere(31.2, 62.5, 125, int8=250), "NVIDIA A10 data sheet"),
    Card("A40", ("a40",), (8, 6), 48, 696, _ampere(37.4, 74.8, 149.7, int8=299.3), "NVIDIA A40 data sheet"),
    Card("RTX A5000", ("rtx a5000",), (8, 6), 24, 768, _ampere(27.8, 55.6, 111.1), "NVIDIA RTX A5000 data sheet"),
    Card("RTX A6000", ("rtx a6000",), (8, 6), 48, 768, _ampere(38.7, 77.4, 154.8), _GA102),
    Card("A100 40 GB", ("a100 sxm4 40gb", "a100 pcie 40gb"), (8, 0), 40, 1555, _A100_RATES, "NVIDIA A100 data sheet"),
    Card("A100 80 GB", ("a100 sxm4 80gb",), (8, 0), 80, 2039, _A100_RATES, "NVIDIA A100 data sheet"),
    Card("A100 80 GB PCIe", ("a100 80gb pcie",), (8, 0), 80, 1935, _A100_RATES, "NVIDIA A100 data sheet"),
    Card("L4", ("l4",), (8, 9), 24, 300, _ampere(30.3, 60, 121, fp8=242.5, int8=242.5), "NVIDIA L4 data sheet"),
    Card("L40S", ("l40s",), (8, 9), 48, 864, _ampere(91.6, 183, 362, fp8=733, int8=733), "NVIDIA L40S data sheet"),
    Card("RTX 4070", ("rtx 4070",), (8, 9), 12, 504, _ampere(29.1, 29.1, 58.3, fp8=116.6), _ADA_RATIO),
    Card("RTX 4080 SUPER", ("rtx 4080 super",), (8, 9), 16, 736, _ampere(52.2, 52.2, 104.4, fp8=208.9), _ADA_RATIO),
    Card("RTX 4090", ("rtx 4090",), (8, 9), 24, 1008, _ampere(82.6, 82.6, 165.2, fp8=330.3, int8=660.6), _ADA),
    Card("RTX 5090", ("rtx 5090",), (12, 0), 32, 1792, _ampere(104.8, 104.8, 209.5, fp8=419, int8=838), _BLACKWELL),
    Card("H100 PCIe", ("h100 pcie",), (9, 0), 80, 2000, _ampere(51, 378, 756, fp8=1513, int8=1513), _H100),
    Card("H100 SXM", ("h100 80gb hbm3",), (9, 0), 80, 3350, _HOPPER_RATES, _H100),
    Card("H200 SXM", ("h200",), (9, 0), 141, 4800, _HOPPER_RATES, "NVIDIA H200 data sheet"),
    Card("B200", ("b200",), (10, 0), 180, 8000, _ampere(None, 1125, 2250, fp8=4500, int8=4500), _HGX_B200),
)


Version = tuple[int, int]

BF16_FROM: Version = (8, 0)
FP8_FROM: Version = (8, 9)
TENSOR_CORES_FROM: Version = (7, 0)
# The oldest compute capability that each major version of CUDA supports.
_OLDEST_OF_CUDA: dict[int, Version] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
# CUDA 12.8 supports older GPUs, but torch's wheels for it do not, and since torch 2.11 not 7.0 either.
_OLDEST_OF_CUDA_12_8: Version = (7, 0)
_OLDEST_SINCE_TORCH_2_11: Version = (7, 5)
BLACKWELL_FROM: Version = (10, 0)
_CUDA_OF_BLACKWELL: Version = (12, 8)
# Wheels of torch 2.9 and newer. There is none for CUDA 11.x, and only cu126 supports GPUs before Turing.
_OLD_CARDS_WHEEL, _NEW_CARDS_WHEEL, _CUDA_13_WHEEL = "cu126", "cu128", "cu130"


# Peak rate of 16 lanes in one direction, in 10^9 bytes/s: 8, 16 and 32 GT/s per lane, with 128 data bits in 130 bits
# (PCI-SIG, PCI Express Base Specification). Data sheets: 3.0 up to Turing, 4.0 for Ampere and Ada, 5.0 for newer ones.
_PCIE = (((9, 0), "5.0", 63.0), ((8, 0), "4.0", 31.5), ((0, 0), "3.0", 15.75))


def pcie_rate(capability: Version) -> tuple[float, str]:
    """Return the peak bytes per second between the host and a GPU, and the name of their link: `PCIe 4.0 x16`."""
    _, pcie_version, gigabytes = next(row for row in _PCIE if capability >= row[0])
    return 1e9 * gigabytes, f"PCIe {pcie_version} x16"


def version_text(version: Version) -> str:
    """Return a version as text: `12.4`."""
    return f"{version[0]}.{version[1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """Native types and kernels. torch also computes bf16 on older GPUs, but emulated and slower than fp32."""

    fp16_tensor_cores: bool
    bf16: bool
    tf32: bool
    fp8: bool
    flash_attention: bool


def abilities(capability: Version | None, card: Card | None = None) -> Abilities | None:
    """Return the abilities of a compute capability (None for None). `card` marks Turing GPUs without tensor cores."""
    if capability is None:
        return None
    has_tensor_cores = card.tensor_cores if card else capability >= TENSOR_CORES_FROM
    is_ampere_or_newer = capability >= BF16_FROM
    return Abilities(
        fp16_tensor_cores=has_tensor_cores,
        bf16=is_ampere_or_newer,
        tf32=is_ampere_or_newer,
        fp8=capability >= FP8_FROM,
        flash_attention=is_ampere_or_newer,
    )


def too_old_reason(capability: Version) -> str:
    """Return why no current CUDA supports a GPU of this capability; empty if one does."""
    if capability < _OLDEST_OF_CUDA[12]:
        return "CUDA 12 no longer supports GPUs of this age, and no newer build of torch does either"
    return ""


def build_problem(capability: Version, torch_cuda: Version, torch_version: str = "") -> str:
    """Return why a torch of this version and CUDA cannot use a GPU of this capability; empty if it can."""
    oldest_capability = _OLDEST_OF_CUDA.get(torch_cuda[0])
    if oldest_capability and capability < oldest_capability:
        return f"CUDA {torch_cuda[0]} supports compute capability {version_text(oldest_capability)} and newer"
    oldest_capability = _OLDEST_SINCE_TORCH_2_11 if numbers_of(torch_version) >= (2, 11) else _OLDEST_OF_CUDA_12_8
    if torch_cuda >= _CUDA_OF_BLACKWELL and capability < oldest_capability:
        oldest = version_text(oldest_capability)
        return f"torch for CUDA 12.8 and newer has no kernels below compute capability {oldest}"
    if capability >= BLACKWELL_FROM and torch_cuda < _CUDA_OF_BLACKWELL:
        return "this GPU needs CUDA 12.8 or newer"
    return ""


def fitting_wheel(driver_cuda: Version, capability: Version | None) -> str | None:
    """Return the tag of the torch wheels for a driver and a GPU (`cu126`); None if a newer driver is needed.

    Within one major version, newer CUDA runs on drivers for an older minor version."""
    capability = capability or BF16_FROM
    if driver_cuda[0] < 12 or capability < _OLDEST_OF_CUDA[12]:
        return None
    if driver_cuda[0] >= 13 and capability >= _OLDEST_OF_CUDA[13]:
        return _CUDA_13_WHEEL
    return _NEW_CARDS_WHEEL if capability >= BLACKWELL_FROM else _OLD_CARDS_WHEEL


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashKernel:
    """Attention kernel in a package of its own. It is never imported here.

    `module` is shared with other packages. `oldest_version` is the first that transformers accepts, and
    `capability_from` the lowest compute capability that runs it."""

    distribution: str
    module: str
    oldest_version: tuple[int, ...] = ()
    capability_from: Version

    def missing_reason(self, libraries: Mapping[str, str | None]) -> str:
        """Return what is missing to use the package, as the end of a sentence; empty if nothing is."""
        installed_version = libraries.get(self.distribution)
        if installed_version is None:
            return f"needs the package {self.distribution}, which is not installed"
        if numbers_of(installed_version) < self.oldest_version:
            needed_version = ".".join(map(str, self.oldest_version))
            return f"needs {self.distribution} {needed_version} or newer, but {installed_version} is installed"
        return ""

    def too_old(self, capability: Version) -> str:
        """Return why a GPU of this capability cannot run it, as the end of a sentence; empty if it can."""
        if capability >= self.capability_from:
            return ""
        needed, present = version_text(self.capability_from), version_text(capability)
        return f"needs compute capability {needed}, but this GPU has {present}"


# Major capability that FlashAttention 3 was written for. On others torch's own kernel is as fast, or it does not run.
HOPPER = 9
# Source: is_flash_attn_2_available and is_flash_attn_3_available in utils/import_utils.py of transformers 5.23, and
# FLASH_ATTENTION_COMPATIBILITY_MATRIX in its modeling_flash_attention_utils.py; FlashAttention's README.
FLASH_KERNELS: Mapping[str, FlashKernel] = {
    "flash_attention_2": FlashKernel(
        distribution="flash-attn", module="flash_attn", oldest_version=(2, 3, 3), capability_from=(8, 0)
    ),
    "flash_attention_3": FlashKernel(
        distribution="flash-attn-3", module="flash_attn_interface", capability_from=(8, 0)
    ),
}
