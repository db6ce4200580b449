"""torch's own generators, which dropout draws from. Everything else draws from generators of its own."""

from __future__ import annotations

import torch
from torch import Tensor


def random_tensors() -> dict[str, Tensor]:
    """Their state, read without waiting for a card."""
    found = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def restore_random(tensors: dict[str, Tensor]) -> None:
    """Put back what `random_tensors` gave."""
    torch.set_rng_state(tensors["cpu"])
    if "cuda" in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors["cuda"])
