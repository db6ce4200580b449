"""Work that may run out of memory: it is left as if it had never been begun, and can be tried again."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import torch

from tui_trainer.hardware.out_of_memory import free_memory, is_out_of_memory, let_go
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.safe_text import one_line
from tui_trainer.training.random_state import random_tensors, restore_random
from tui_trainer.training.recorder import peak_memory_bytes
from tui_trainer.units import format_bytes

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shortage:
    """Memory ran out: of the card, or of the machine for a run on a CPU. None: not known."""

    reason: str
    peak_bytes: int
    free_bytes: int | None

    @property
    def words(self) -> str:
        free = "" if self.free_bytes is None else f", {format_bytes(self.free_bytes)} free"
        return f"peak {format_bytes(self.peak_bytes)}{free}"


def attempt(work: Callable[[], T], device: torch.device, give_up: Callable[[], None] = lambda: None) -> T | Shortage:
    """What `work` gives. Where memory runs out `give_up` is called, nothing holds what was computed any more, and the
    generators of torch are as they were.
    """
    random = random_tensors()
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = one_line(str(error), 200) or type(error).__name__
        free = None
        with suppress(RuntimeError, OSError):
            free = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else memory_available_now()
        shortage = Shortage(reason=reason, peak_bytes=peak_memory_bytes(device), free_bytes=free)
        let_go(error)
    # Not before: while an error is handled it holds on to its frames.
    give_up()
    free_memory()
    restore_random(random)
    return shortage


def attempt_twice(work: Callable[[], T], device: torch.device) -> T:
    """What `work` gives, at the second try where memory runs out at the first. Raises MemoryError after that."""
    found = attempt(work, device)
    if isinstance(found, Shortage):
        found = attempt(work, device)
    if isinstance(found, Shortage):
        raise MemoryError(f"not enough memory ({found.reason})")
    return found
