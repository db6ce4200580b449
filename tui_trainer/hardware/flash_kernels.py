"""Attention kernels that come in packages of their own, and whether they run here. Nothing is imported."""

from collections.abc import Mapping
from dataclasses import dataclass

from tui_trainer.hardware.abilities import Version, dotted
from tui_trainer.hardware.libraries import numbers_of


@dataclass(frozen=True, kw_only=True, slots=True)
class FlashKernel:
    """`distribution` as it is installed; other versions of it bring a `module` of the same name. `oldest_version` is
    the first that transformers takes, `capability_from` the first compute capability."""

    distribution: str
    module: str
    oldest_version: tuple[int, ...] = ()
    capability_from: Version

    def lack(self, libraries: Mapping[str, str | None]) -> str:
        """What is not installed of it, as the end of a sentence; empty where all is."""
        installed = libraries.get(self.distribution)
        if installed is None:
            return f"needs the package {self.distribution}, which is not installed"
        if numbers_of(installed) < self.oldest_version:
            wanted = ".".join(map(str, self.oldest_version))
            return f"needs {self.distribution} {wanted} or newer, and {installed} is installed"
        return ""

    def too_old(self, capability: Version) -> str:
        """Why a card cannot run it, as a sentence; empty where it can."""
        if capability >= self.capability_from:
            return ""
        return f"it needs compute capability {dotted(self.capability_from)}, this card has {dotted(capability)}"


# The major capability that FlashAttention 3 was written for; elsewhere torch's own is as fast, or it does not run.
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
