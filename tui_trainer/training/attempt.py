"""Run work that may exhaust memory: after a failure the state is as before the work, so the work can be tried again."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from tui_trainer.advice.remedies import less_memory_advice
from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.hardware.out_of_memory import clear_error_frames, free_memory, is_out_of_memory
from tui_trainer.hardware.probe import memory_available_now
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.runs.wording import split_words
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.training.components import Components
from tui_trainer.training.recorder import peak_memory_bytes
from tui_trainer.units import format_bytes

# Only torch's global generators are saved here: dropout uses them. All other code has generators of its own.


def generator_states(rank: int = 0) -> dict[str, Tensor]:
    """Return the states of torch's random generators, keyed `cpu` and `cuda`, for example `rank2.cuda` in process 2."""
    states = {_name("cpu", rank): torch.get_rng_state()}
    if torch.cuda.is_initialized():
        states[_name("cuda", rank)] = torch.cuda.get_rng_state()
    return states


def restore_random(tensors: dict[str, Tensor], rank: int = 0) -> None:
    """Restore what `generator_states` returned. If this process has no saved state, keep its own."""
    if rank and _name("cpu", rank) not in tensors:
        return
    torch.set_rng_state(tensors[_name("cpu", rank)])
    if _name("cuda", rank) in tensors and torch.cuda.is_initialized():
        torch.cuda.set_rng_state(tensors[_name("cuda", rank)])


def _name(device: str, rank: int) -> str:
    return f"rank{rank}.{device}" if rank else device


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryShortage:
    """An out-of-memory error of the GPU, or of the machine for a run on a CPU."""

    reason: str
    peak_bytes: int
    free_bytes: int | None
    """Free memory at the error; None if it is unknown."""

    @property
    def words(self) -> str:
        free_words = "" if self.free_bytes is None else f", {format_bytes(self.free_bytes)} free"
        return f"peak memory {format_bytes(self.peak_bytes)}{free_words}"


def attempt(work: Callable[[], T], device: torch.device, undo: Callable[[], None] = lambda: None) -> T | MemoryShortage:
    """Return the result of `work`, or a MemoryShortage if memory runs out.

    After a shortage this frees the tensors of `work`, calls `undo`, and restores torch's random generators.
    """
    random_states = generator_states()
    try:
        return work()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        reason = one_line(str(error), 200) or type(error).__name__
        free_bytes = None
        with suppress(RuntimeError, OSError):
            free_bytes = int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else memory_available_now()
        shortage = MemoryShortage(reason=reason, peak_bytes=peak_memory_bytes(device), free_bytes=free_bytes)
        clear_error_frames(error)
    # Memory is freed only here, because an error keeps its frames alive while it is handled.
    undo()
    free_memory()
    restore_random(random_states)
    return shortage


def attempt_twice(work: Callable[[], T], device: torch.device) -> T:
    """Return the result of `work`. If memory runs out, try once more, and then raise MemoryError."""
    result = attempt(work, device)
    if isinstance(result, MemoryShortage):
        result = attempt(work, device)
    if isinstance(result, MemoryShortage):
        raise MemoryError(f"not enough memory ({result.reason})")
    return result


# Smaller passes after an out-of-memory error, and the messages about them.

_SHOWN_TOKENS, _SHOWN_CHARACTERS = 40, 60


@dataclass(frozen=True, slots=True)
class SmallerPasses:
    """How a step is split: rows of its largest forward pass, number of passes, width of packed rows (0: not packed)."""

    rows_per_pass: int
    pass_count: int
    width: int = 0

    @classmethod
    def of(cls, layout: RowLayout, documents: Sequence[TokenRow]) -> Self:
        passes = list(layout.passes(documents))
        return cls(max(map(len, passes)), len(passes), layout.packed_width)

    @classmethod
    def of_step(cls, layout: RowLayout, documents: Sequence[TokenRow], effective_rows: int) -> Self:
        """Return how a full effective batch would be split, even if `documents` are the smaller last batch of an epoch.

        With packing, return how `documents` themselves are split.
        """
        split = cls.of(layout, documents)
        return split if layout.packed_width else replace(split, pass_count=-(-effective_rows // split.rows_per_pass))

    def words(self, *, with_width: bool) -> str:
        return split_words(self.rows_per_pass, self.pass_count, width_tokens=self.width if with_width else 0)


def reduced_event(
    what: str,
    step: int,
    before: SmallerPasses,
    after: SmallerPasses,
    documents: Sequence[TokenRow],
    shortage: MemoryShortage,
) -> MicroBatchReduced:
    """Return the event of smaller passes in `what`, which is `training` or `evaluation`."""
    is_narrower = before.rows_per_pass == after.rows_per_pass
    split_sentences = [split.words(with_width=is_narrower) for split in (before, after)]
    longest_tokens = max(map(len, documents))
    where_words = "" if what == "training" else " in the evaluation"
    return MicroBatchReduced(
        step=step,
        kind="out of memory",
        message=f"out of memory{where_words}: {split_sentences[0]} do not fit, continuing with {split_sentences[1]}",
        hint=f"longest row {longest_tokens:,} tokens, {shortage.words}",
        what=what,
        rows_before=before.rows_per_pass,
        rows=after.rows_per_pass,
        passes=after.pass_count,
        longest_row=longest_tokens,
        peak_memory_bytes=shortage.peak_bytes,
        free_memory_bytes=shortage.free_bytes,
    )


def too_large_message(components: Components, source: str, step: int, shortage: MemoryShortage, *, saved: bool) -> str:
    """Return the error message for a run that is out of memory with one row per pass, with the settings to change."""
    batches = components.batches
    rows, row_numbers = batches.rows, batches.order.at(step)
    index = int(row_numbers[rows.lengths[row_numbers].argmax()])
    token_count = int(rows.lengths[index])
    beginning = one_line(str(components.tokenizer.decode(rows.row(index)[:_SHOWN_TOKENS].tolist())), _SHOWN_CHARACTERS)
    saved_words = f"The checkpoint of step {step - 1} is saved. " if saved and step > 1 else ""
    return (
        f"out of memory at step {step} with one row per pass ({shortage.words}). "
        f"The longest row has {token_count:,} tokens: row {index + 1:,} prepared from {one_line(source)}, "
        f"starting with {beginning!r}. {saved_words}"
        f"To use less memory, start a new run with {less_memory_advice(components.plan, token_count)}"
    )
