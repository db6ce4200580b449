"""Work that may run out of memory: it is left as if it had never been begun, and can be tried again."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from tui_trainer.advice.remedies import less_memory
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.hardware.out_of_memory import free_memory, is_out_of_memory, let_go
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.runs.wording import split_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.components import Components
from tui_trainer.training.recorder import peak_memory_bytes
from tui_trainer.units import format_bytes

# torch's own generators, which dropout draws from. Everything else draws from generators of its own.


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


# Where memory ran out in a step or an evaluation: the layout that takes less of it, and what is written about it.

_SHOWN_TOKENS, _SHOWN_CHARACTERS = 40, 60


@dataclass(frozen=True, slots=True)
class SmallerPasses:
    """Rows of the largest forward pass, how many passes there are, and the width of packed rows (0: not packed)."""

    rows: int
    passes: int
    width: int = 0

    @classmethod
    def of(cls, layout: RowLayout, documents: Sequence[TokenRow]) -> Self:
        passes = list(layout.passes(documents))
        return cls(max(map(len, passes)), len(passes), layout.packed_width)

    @classmethod
    def of_step(cls, layout: RowLayout, documents: Sequence[TokenRow], effective_rows: int) -> Self:
        """Of a whole effective batch: the last one of an epoch may be smaller. Packed ones fill more or fewer rows."""
        split = cls.of(layout, documents)
        return split if layout.packed_width else replace(split, passes=-(-effective_rows // split.rows))

    def words(self, *, with_width: bool) -> str:
        return split_words(self.rows, self.passes, width_tokens=self.width if with_width else 0)


def reduction(
    what: str, step: int, before: SmallerPasses, after: SmallerPasses, documents: Sequence[TokenRow], shortage: Shortage
) -> MicroBatchReduced:
    narrower = before.rows == after.rows
    splits = [split.words(with_width=narrower) for split in (before, after)]
    longest = max(map(len, documents))
    place = "" if what == "training" else " in the evaluation"
    return MicroBatchReduced(
        step=step,
        kind="out of memory",
        message=f"out of memory{place}: {splits[0]} -> {splits[1]}, continuing",
        hint=f"longest row {longest:,} tokens, {shortage.words}",
        what=what,
        rows_before=before.rows,
        rows=after.rows,
        passes=after.passes,
        longest_row=longest,
        peak_memory_bytes=shortage.peak_bytes,
        free_memory_bytes=shortage.free_bytes,
    )


def too_large(components: Components, source: str, step: int, shortage: Shortage, *, saved: bool) -> str:
    """Why a run ends whose forward passes have one row each: which row is the longest, and what to change."""
    batches = components.batches
    rows, numbers = batches.rows, batches.order.at(step)
    index = int(numbers[rows.lengths[numbers].argmax()])
    tokens = int(rows.lengths[index])
    begins = one_line(str(components.tokenizer.decode(rows.row(index)[:_SHOWN_TOKENS].tolist())), _SHOWN_CHARACTERS)
    stands = f"The checkpoint of step {step - 1} is saved. " if saved and step > 1 else ""
    return (
        f"out of memory at step {step} with one row per pass ({shortage.words}). "
        f"The longest row has {tokens:,} tokens: row {index + 1:,} prepared from {one_line(source)}, "
        f"starting with {begins!r}. {stands}"
        f"To use less memory, start a new run with {less_memory(components.plan, tokens)}"
    )
