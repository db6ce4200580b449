"""How rows lie in the forward passes of a step: which share a row, which share a pass, and the batch of each pass.

Numpy alone: training makes tensors of the batches (`training/batches.py`), and `data/previewing/preview.py` shows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tui_trainer.data.batching.collate import Batch, Collate, collate_packed
from tui_trainer.data.batching.pack import pack_batch
from tui_trainer.data.preparing.token_rows import TokenRow

Pass = Sequence[Sequence[TokenRow]]
"""The rows of one forward pass, each with the documents that share it."""


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """`rows` of them at a time; packed ones share rows of `packed_width` (0: no).

    `fixed_width` > 0: all rows are filled up to it, as compiled layers are made anew for each new width.
    """

    collate: Collate
    pad_id: int
    rows: int
    packed_width: int = 0
    fixed_width: int = 0

    def passes(self, documents: Sequence[TokenRow]) -> Iterator[Pass]:
        """All forward passes over these documents. Passes of one batch are about equally large."""
        if self.packed_width:
            yield from _equal_parts(pack_batch(documents, self.packed_width), self.rows)
            return
        if len(documents) > self.rows:
            # Rows of similar length in one pass need the least padding.
            documents = sorted(documents, key=len, reverse=True)
        for start in range(0, len(documents), self.rows):
            yield [[document] for document in documents[start : start + self.rows]]

    def batch(self, rows: Pass) -> Batch:
        """The arrays that the model gets in one of these passes."""
        if self.packed_width:
            return collate_packed(rows, self.pad_id, width=self.fixed_width)
        return self.collate([row[0] for row in rows], width=self.fixed_width)


def _equal_parts(packed: Pass, largest: int) -> Iterator[Pass]:
    """9 rows of which 4 fit are 3, 3 and 3, not 4, 4 and 1."""
    count = -(-len(packed) // largest)
    width = -(-len(packed) // count)
    for start in range(0, len(packed), width):
        yield packed[start : start + width]
