"""Which card torch means: CUDA counts the cards that it shows this process, in an order of its own."""

from tui_trainer.errors import RunError
from tui_trainer.hardware.visible_gpus import VARIABLE


def card_index(uuid: str) -> int:
    """torch's number of a card, which need not be the driver's. Raises RunError when CUDA does not show it."""
    import torch

    count = torch.cuda.device_count()
    if not count:
        raise RunError("torch finds no GPU in this process: `tui-trainer diagnose` shows what CUDA is given")
    if not uuid:
        return 0
    for index in range(count):
        if bare(str(torch.cuda.get_device_properties(index).uuid)) == bare(uuid):
            return index
    if count == 1 and uuid.startswith("MIG-"):
        # A process gets one instance; some versions of CUDA give it the name of the whole card.
        return 0
    raise RunError(
        f"CUDA does not show this process the card {uuid}, which the plan is for: `{VARIABLE}={uuid}` in front of the "
        "command shows it that one alone"
    )


def bare(uuid: str) -> str:
    """Without the driver's prefix, which torch leaves out."""
    return uuid.lower().removeprefix("gpu-").removeprefix("mig-")
