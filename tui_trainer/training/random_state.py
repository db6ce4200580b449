"""torch's own generators, which dropout draws from. Everything else draws from generators of its own."""

import torch
from torch import Tensor


def random_tensors(rank: int = 0) -> dict[str, Tensor]:
    """Their state, read without waiting for a card. Those of several processes have different names."""
    found = {_name("cpu", rank): torch.get_rng_state()}
    if torch.cuda.is_initialized():
        found[_name("cuda", rank)] = torch.cuda.get_rng_state()
    return found


def restore_random(tensors: dict[str, Tensor], rank: int = 0) -> None:
    """Put back what `random_tensors` gave. A process that was not there keeps what it has."""
    if rank and _name("cpu", rank) not in tensors:
        return
    torch.set_rng_state(tensors[_name("cpu", rank)])
    if _name("cuda", rank) in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors[_name("cuda", rank)])


def _name(device: str, rank: int) -> str:
    return f"rank{rank}.{device}" if rank else device
