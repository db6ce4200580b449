"""What a card can do, from its compute capability, and which builds of torch serve it.

Sources: CUDA C++ Programming Guide, "Compute Capabilities"; release notes of CUDA 12.0 (Kepler ended), 12.8 (Blackwell
began) and 13.0 (Maxwell, Pascal and Volta ended); pytorch/pytorch#157517 and #172352, which cards the wheels of CUDA
12.8 serve; FlashAttention-2's README (Ampere and newer).
"""

from dataclasses import dataclass

from tui_trainer.hardware.catalogue import Card
from tui_trainer.hardware.libraries import numbers_of

Version = tuple[int, int]

BF16_FROM: Version = (8, 0)
FP8_FROM: Version = (8, 9)
TENSOR_CORES_FROM: Version = (7, 0)
# The oldest that each major version of CUDA compiles for.
_OLDEST_OF_CUDA: dict[int, Version] = {11: (3, 5), 12: (5, 0), 13: (7, 5)}
# CUDA 12.8 itself compiles for older cards; torch's wheels of it leave them out, and from 2.11 on 7.0 as well.
_OLDEST_OF_CUDA_12_8: Version = (7, 0)
_OLDEST_SINCE_TORCH_2_11: Version = (7, 5)
_BLACKWELL_FROM: Version = (10, 0)
_CUDA_OF_BLACKWELL: Version = (12, 8)
# Which wheels torch 2.9 and newer come as: 11.x has none, and of 12.x only this one still serves cards before Turing.
_OLD_CARDS_WHEEL, _NEW_CARDS_WHEEL, _CUDA_13_WHEEL = "cu126", "cu128", "cu130"


def dotted(version: Version) -> str:
    """`12.4`."""
    return f"{version[0]}.{version[1]}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """Native, not emulated: torch computes bf16 on older cards as well, slower than fp32."""

    fp16_tensor_cores: bool
    bf16: bool
    tf32: bool
    fp8: bool
    flash_attention: bool


def abilities(capability: Version | None, card: Card | None = None) -> Abilities | None:
    """What the capability brings; None when it is not reported. `card` tells of Turing cards without tensor cores."""
    if capability is None:
        return None
    has_tensor_cores = card.tensor_cores if card else capability >= TENSOR_CORES_FROM
    ampere = capability >= BF16_FROM
    return Abilities(
        fp16_tensor_cores=has_tensor_cores,
        bf16=ampere,
        tf32=ampere,
        fp8=capability >= FP8_FROM,
        flash_attention=ampere,
    )


def cuda_that_serves(capability: Version) -> str:
    """Why no CUDA of today compiles for the card, or empty."""
    if capability < _OLDEST_OF_CUDA[12]:
        return "CUDA 12 ended the support of cards of its age, and torch has no newer build for it"
    return ""


def build_problem(capability: Version, torch_cuda: Version, torch_version: str = "") -> str:
    """Why a torch of this version that is built for this CUDA cannot use such a card, or empty."""
    oldest = _OLDEST_OF_CUDA.get(torch_cuda[0])
    if oldest and capability < oldest:
        return f"CUDA {torch_cuda[0]} serves compute capability {dotted(oldest)} and newer"
    oldest = _OLDEST_SINCE_TORCH_2_11 if numbers_of(torch_version) >= (2, 11) else _OLDEST_OF_CUDA_12_8
    if torch_cuda >= _CUDA_OF_BLACKWELL and capability < oldest:
        return f"torch for CUDA 12.8 and newer has no kernels below compute capability {dotted(oldest)}"
    if capability >= _BLACKWELL_FROM and torch_cuda < _CUDA_OF_BLACKWELL:
        return "such cards need CUDA 12.8 or newer"
    return ""


def fitting_wheel(driver_cuda: Version, capability: Version | None) -> str | None:
    """The tag of torch's wheels for a driver and a card, as in `whl/cu126`; None when a newer driver is needed.

    Within one major version, CUDA runs on drivers that serve an older minor one.
    """
    capability = capability or BF16_FROM
    if driver_cuda[0] < 12 or capability < _OLDEST_OF_CUDA[12]:
        return None
    if driver_cuda[0] >= 13 and capability >= _OLDEST_OF_CUDA[13]:
        return _CUDA_13_WHEEL
    return _NEW_CARDS_WHEEL if capability >= _BLACKWELL_FROM else _OLD_CARDS_WHEEL
