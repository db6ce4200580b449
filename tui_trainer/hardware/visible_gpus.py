"""Which cards CUDA_VISIBLE_DEVICES leaves to this process, in the driver's own numbering. Only the user sets it.

CUDA counts the fastest card first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the driver counts by PCI bus. With different
cards in one machine a bare number is therefore ambiguous, and is read as the driver's: see `environment.py`.
Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA MIG User Guide, "CUDA Device Enumeration".
"""

import os
from collections.abc import Iterable, Mapping

from tui_trainer.errors import RunError
from tui_trainer.hardware.facts import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_names(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """The words of the variable; None without it, which leaves every card."""
    value = environment.get(VARIABLE)
    return None if value is None else [word.strip() for word in value.split(",")]


def visible_indices(gpus: Iterable[Gpu], environment: Mapping[str, str] = os.environ) -> set[int]:
    """Indices of the cards that are left, a card with the named MIG instance among them; all without the variable."""
    cards, names = list(gpus), visible_names(environment)
    if names is None:
        return {gpu.index for gpu in cards}
    found: set[int] = set()
    for name in names:
        index = _index_of(name, cards)
        if index is None:
            # CUDA takes the names before the first that it does not know.
            break
        found.add(index)
        if name.startswith("MIG-"):
            # A process gets one instance, whatever is named behind it.
            break
    return found


def _index_of(name: str, gpus: list[Gpu]) -> int | None:
    if name.isascii() and name.isdigit():
        return next((gpu.index for gpu in gpus if gpu.index == int(name)), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    # The instances of a divided card may be closed to this user: then it may be the one that is meant.
    unknown = [gpu.index for gpu in gpus if name.startswith("MIG-") and gpu.mig_enabled and gpu.mig_uuid is None]
    matches = [gpu.index for gpu in gpus if any(uuid and uuid.startswith(name) for uuid in (gpu.uuid, gpu.mig_uuid))]
    matches = matches or unknown
    return matches[0] if len(matches) == 1 else None


# Which card torch means: CUDA counts the cards that it shows this process, in an order of its own.


def card_index(uuid: str) -> int:
    """torch's number of a card, which need not be the driver's. Raises RunError when CUDA does not show it."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise RunError("torch finds no GPU in this process: `tui-trainer diagnose` shows what CUDA sees")
    if not uuid:
        return 0
    for index in range(count):
        if bare(str(torch.cuda.get_device_properties(index).uuid)) == bare(uuid):
            return index
    if count == 1 and uuid.startswith("MIG-"):
        # A process gets one instance; some versions of CUDA give it the name of the whole card.
        return 0
    raise RunError(
        f"CUDA does not show GPU {uuid}, which the plan is for, to this process: start the command with "
        f"`{VARIABLE}={uuid}` to make only that GPU visible"
    )


def bare(uuid: str) -> str:
    """Without the driver's prefix, which torch leaves out."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")
