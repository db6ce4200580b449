"""Where memory ran out in a step or an evaluation: the layout that takes less of it, and what is written about it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

from tui_trainer.data.batching.layout import RowLayout
from tui_trainer.data.preparing.token_rows import TokenRow
from tui_trainer.planning.moving import less_memory
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.safe_text import one_line
from tui_trainer.training.attempt import Shortage
from tui_trainer.training.components import Components

_SHOWN_TOKENS, _SHOWN_CHARACTERS = 40, 60


@dataclass(frozen=True, slots=True)
class Split:
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
        """`8 rows x 4`: rows of a pass, and passes."""
        width = f" of {self.width:,} tokens" if with_width else ""
        return f"{self.rows} row{'s' if self.rows != 1 else ''}{width} x {self.passes}"


def reduction(
    what: str, step: int, before: Split, after: Split, documents: Sequence[TokenRow], shortage: Shortage
) -> MicroBatchReduced:
    narrower = before.rows == after.rows
    splits = [split.words(with_width=narrower) for split in (before, after)]
    longest = max(map(len, documents))
    place = "" if what == "training" else " in the evaluation"
    return MicroBatchReduced(
        step=step,
        kind="out of memory",
        message=f"out of memory{place}: {splits[0]} -> {splits[1]}, goes on",
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
        f"out of memory at step {step} with one row in a pass ({shortage.words}). Its longest row has {tokens:,} "
        f"tokens: row {index + 1:,} of those prepared from {one_line(source)}, which begins {begins!r}. {stands}"
        f"A new run takes less memory with {less_memory(components.plan, tokens)}"
    )
