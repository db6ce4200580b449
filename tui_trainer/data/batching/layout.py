"""How rows lie in the forward passes of a step: which share a row, which share a pass, and the batch of each pass.

Numpy alone: training makes tensors of the batches (`training/batches.py`), and `data/preview.py` shows them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Self

import numpy as np

from tui_trainer.data.batching.collate import Batch, Collate, CollatePacked
from tui_trainer.data.batching.pack import pack_batch
from tui_trainer.data.preparing.token_rows import TokenRow

Pass = Sequence[Sequence[TokenRow]]
"""The rows of one forward pass, each with the prepared rows that share it."""


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """`rows` of them at a time; packed ones share rows of `packed_width` (0: no). A row of several documents goes as a
    whole: padded, each of its documents is a row of the batch.

    `fixed_width` > 0: all rows are filled up to it, as compiled layers are made anew for each new width.
    """

    collate: Collate
    rows: int
    collate_packed: CollatePacked | None = None
    """None where nothing is ever packed."""
    packed_width: int = 0
    fixed_width: int = 0

    def passes(self, documents: Sequence[TokenRow]) -> Iterator[Pass]:
        """All forward passes over these documents. Passes of one batch are about equally large."""
        if self.packed_width:
            # Rows made narrower by `halved` are still as wide as the longest of them.
            width = max(self.packed_width, *(document.inputs for document in documents))
            packed = pack_batch(documents, width)
            # 9 rows of which 4 fit are 3, 3 and 3, not 4, 4 and 1.
            equal = -(-len(packed) // -(-len(packed) // self.rows))
            yield from (packed[start : start + equal] for start in range(0, len(packed), equal))
            return
        if len(documents) > self.rows:
            # Rows of similar length in one pass need the least padding.
            documents = sorted(documents, key=attrgetter("longest"), reverse=True)
        for start in range(0, len(documents), self.rows):
            yield [[document] for document in documents[start : start + self.rows]]

    def batch(self, rows: Pass) -> Batch:
        if self.packed_width:
            assert self.collate_packed is not None, "rows are packed only where the task packs"
            batch = self.collate_packed(rows, width=self.fixed_width)
        else:
            batch = self.collate([row[0] for row in rows], width=self.fixed_width)
        values = [row.values for together in rows for row in together if row.values is not None]
        return replace(batch, row_values=np.stack(values)) if values else batch

    def halved(self, documents: Sequence[TokenRow]) -> Self | None:
        """The same with about half as much in the largest forward pass over these documents: half of its rows, of a
        single row of several packed ones half of its width. None where the largest is one prepared row.
        """
        passes = list(self.passes(documents))
        most_rows = max(map(len, passes))
        if most_rows > 1:
            return replace(self, rows=-(-most_rows // 2))
        if not self.packed_width or self.fixed_width:
            return None
        used = max(sum(document.inputs for row in rows for document in row) for rows in passes)
        longest = max(document.inputs for document in documents)
        width = max(-(-used // 2), longest)
        return replace(self, rows=1, packed_width=width) if width < used else None
