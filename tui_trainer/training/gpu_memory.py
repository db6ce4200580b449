"""What a run leaves on its card. No torch here until a run has loaded it."""

from __future__ import annotations

import gc
import sys


def release_memory() -> None:
    """Give back what the allocator keeps for a next time: the next plan counts what is free, on whichever card."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # Model and optimizer refer to each other in circles, which nothing but the collector ends.
        gc.collect()
        torch.cuda.empty_cache()
