"""Where a run computes, as torch names it. One program may carry out runs on several cards, one after the other.

CUDA reads CUDA_VISIBLE_DEVICES once, when anything in the process first asks it for cards: to change it afterwards
changes nothing, and the first card computes. So it stays as the user has set it, and the card is named to torch.
"""

import torch

from tui_trainer.hardware.out_of_memory import free_memory, is_out_of_memory, let_go
from tui_trainer.models.cards import card_index
from tui_trainer.planning.plan import Plan
from tui_trainer.safe_text import one_line


def device_of(plan: Plan) -> torch.device:
    """The CPU, or the plan's card by torch's own number. Raises RunError when CUDA does not show that card."""
    return torch.device("cpu") if plan.device != "cuda" else torch.device("cuda", card_index(plan.gpu_uuid))


def use_device(device: torch.device) -> None:
    """Make it the one that libraries mean that are told no device (bitsandbytes, kernels, memory statistics).

    It holds for the thread that asks, so each run asks in its own; its peak of memory begins anew.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.cuda.reset_peak_memory_stats(device)


def reason_to_fall_back(error: Exception) -> str:
    """What a faster way has failed with, where another one may do. Raises `error` where none would: it broke the
    device, or memory ran out, which is given back before."""
    if breaks_the_device(error):
        raise error
    if is_out_of_memory(error):
        let_go(error)
        free_memory()
        raise error
    return one_line(f"{type(error).__name__}: {error}", 200)


def breaks_the_device(error: Exception) -> bool:
    """Whether nothing more can be computed after it: an error inside a kernel stays with the process."""
    return isinstance(error, torch.AcceleratorError) or "CUDA error" in str(error)
