"""Which cards CUDA_VISIBLE_DEVICES leaves to this process, in the driver's own numbering.

CUDA counts the fastest card first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the driver counts by PCI bus. With different
cards in one machine a bare number is therefore ambiguous, and is read as the driver's.
Source: CUDA C++ Programming Guide, "CUDA Environment Variables".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from tui_trainer.hardware.facts import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"
_WISH = "TUI_TRAINER_GPU"


def wish_for_gpu(index: int | None) -> None:
    """The card, in the driver's numbering, that everything in this process uses from now on; None: the freest."""
    if index is None:
        os.environ.pop(_WISH, None)
    else:
        os.environ[_WISH] = str(index)


def wished_gpu() -> int | None:
    """What `wish_for_gpu` was told, here or in the process that started this one."""
    word = os.environ.get(_WISH, "")
    return int(word) if word.isascii() and word.isdigit() else None


def visible_indices(gpus: Iterable[Gpu], environment: Mapping[str, str] = os.environ) -> set[int]:
    """Indices of the cards that are left; all of them without the variable, and for MIG names, which name no card."""
    uuids = {gpu.index: gpu.uuid for gpu in gpus}
    wish = environment.get(VARIABLE)
    if wish is None or wish.strip().startswith("MIG-"):
        return set(uuids)
    found: set[int] = set()
    for word in map(str.strip, wish.split(",")):
        index = _index_of(word, uuids)
        if index is None:
            # CUDA takes the names before the first that it does not know.
            break
        found.add(index)
    return found


def _index_of(word: str, uuids: Mapping[int, str | None]) -> int | None:
    if word.isascii() and word.isdigit():
        return int(word) if int(word) in uuids else None
    if not word.startswith("GPU-"):
        return None
    matches = [index for index, uuid in uuids.items() if uuid and uuid.startswith(word)]
    return matches[0] if len(matches) == 1 else None
