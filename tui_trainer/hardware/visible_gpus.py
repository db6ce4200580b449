"""GPUs that CUDA_VISIBLE_DEVICES leaves to this process, numbered as the driver does. Only the user sets the variable.

CUDA numbers the fastest GPU first unless CUDA_DEVICE_ORDER=PCI_BUS_ID; the driver numbers by PCI bus. If the GPUs of a
machine differ, a bare number is ambiguous. It is read as the driver's (`environment.py`).
Source: CUDA C++ Programming Guide, "CUDA Environment Variables"; NVIDIA MIG User Guide, "CUDA Device Enumeration"."""

import os
from collections.abc import Iterable, Mapping

from tui_trainer.errors import RunError
from tui_trainer.hardware.facts import Gpu

VARIABLE = "CUDA_VISIBLE_DEVICES"


def visible_names(environment: Mapping[str, str] = os.environ) -> list[str] | None:
    """Return the entries of the variable; None if it is not set, so that all GPUs are visible."""
    variable_value = environment.get(VARIABLE)
    return None if variable_value is None else [entry.strip() for entry in variable_value.split(",")]


def visible_indices(gpus: Iterable[Gpu], environment: Mapping[str, str] = os.environ) -> set[int]:
    """Return the indices of the visible GPUs, including one whose MIG instance is named."""
    all_gpus, names = list(gpus), visible_names(environment)
    if names is None:
        return {gpu.index for gpu in all_gpus}
    indices: set[int] = set()
    for name in names:
        index = _index_of(name, all_gpus)
        if index is None:
            # CUDA ignores the first unknown name and all after it.
            break
        indices.add(index)
        if name.startswith("MIG-"):
            # A process gets only one instance. CUDA ignores names after it.
            break
    return indices


def _index_of(name: str, gpus: list[Gpu]) -> int | None:
    if name.isascii() and name.isdigit():
        return next((gpu.index for gpu in gpus if gpu.index == int(name)), None)
    if not name.startswith(("GPU-", "MIG-")):
        return None
    # If this user may not see the instances of a partitioned GPU, the name may be one of them.
    possible = [gpu.index for gpu in gpus if name.startswith("MIG-") and gpu.mig_enabled and gpu.mig_uuid is None]
    indices = [gpu.index for gpu in gpus if any(uuid and uuid.startswith(name) for uuid in (gpu.uuid, gpu.mig_uuid))]
    indices = indices or possible
    return indices[0] if len(indices) == 1 else None


def card_index(uuid: str) -> int:
    """Return torch's index of a GPU, which may differ from the driver's. Raises RunError if CUDA hides it."""
    import torch

    gpu_count = torch.cuda.device_count()
    if not gpu_count:
        raise RunError("torch finds no GPU in this process: `tui-trainer diagnose` shows what CUDA sees")
    if not uuid:
        return 0
    for index in range(gpu_count):
        if _bare_uuid(str(torch.cuda.get_device_properties(index).uuid)) == _bare_uuid(uuid):
            return index
    if gpu_count == 1 and uuid.startswith("MIG-"):
        # The only device is that instance. Some versions of CUDA report the UUID of the whole GPU for it.
        return 0
    raise RunError(
        f"CUDA does not show GPU {uuid}, which the plan is for, to this process: start the command with "
        f"`{VARIABLE}={uuid}` to make only that GPU visible"
    )


def _bare_uuid(uuid: str) -> str:
    """Return a UUID without the driver's prefix, which torch omits."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")
