"""The layout of rows in the forward passes of a step: which rows share a row of the batch, and which a pass.

It uses numpy only: `training/batches.py` converts the batches to tensors, and `data/preview.py` shows them.
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
"""The rows of the batch in one forward pass. Each is the list of prepared rows that share it."""


@dataclass(frozen=True, kw_only=True)
class RowLayout:
    """Division of a step into passes of up to `rows_per_pass` rows. `packed_width`: width of packed rows, 0 for none.

    A prepared row with several documents stays together. Without packing, each of its documents is a row of the batch.
    `fixed_width` > 0 pads all rows to this width, because compiled layers are compiled again for each new width."""

    collate: Collate
    rows_per_pass: int
    collate_packed: CollatePacked | None = None
    """Function that collates packed rows; None if rows are never packed."""
    packed_width: int = 0
    fixed_width: int = 0

    def passes(self, documents: Sequence[TokenRow]) -> Iterator[Pass]:
        """Yield the forward passes over these prepared rows. Packed passes have about equal numbers of rows."""
        if self.packed_width:
            # `halved` narrows rows, but they are at least as wide as the longest document.
            width = max(self.packed_width, *(document.input_count for document in documents))
            packed_rows = pack_batch(documents, width)
            # With 4 rows per pass, 9 rows become 3, 3 and 3 instead of 4, 4 and 1.
            pass_rows = -(-len(packed_rows) // -(-len(packed_rows) // self.rows_per_pass))
            yield from (packed_rows[start : start + pass_rows] for start in range(0, len(packed_rows), pass_rows))
            return
        if len(documents) > self.rows_per_pass:
            # Rows of similar length in one pass need the least padding.
            documents = sorted(documents, key=attrgetter("longest"), reverse=True)
        for start in range(0, len(documents), self.rows_per_pass):
            yield [[document] for document in documents[start : start + self.rows_per_pass]]

    def batch(self, rows: Pass) -> Batch:
        if self.packed_width:
            assert self.collate_packed is not None, "rows are packed only where the task packs"
            batch = self.collate_packed(rows, width=self.fixed_width)
        else:
            batch = self.collate([row[0] for row in rows], width=self.fixed_width)
        values = [row.values for documents in rows for row in documents if row.values is not None]
        labels = [row.row_label for documents in rows for row in documents if row.row_label is not None]
        row_labels = np.concatenate(labels).astype(np.int64) if labels else None
        return replace(batch, row_values=np.stack(values) if values else None, row_labels=row_labels)

    def halved(self, documents: Sequence[TokenRow]) -> Self | None:
        """Return a layout whose largest pass over these rows needs about half the memory: half as many rows, or a
        single packed row of half the width. None if the largest pass is already a single prepared row."""
        passes = list(self.passes(documents))
        most_rows = max(map(len, passes))
        if most_rows > 1:
            return replace(self, rows_per_pass=-(-most_rows // 2))
        if not self.packed_width or self.fixed_width:
            return None
        used_width = max(sum(document.input_count for row in rows for document in row) for rows in passes)
        longest_inputs = max(document.input_count for document in documents)
        width = max(-(-used_width // 2), longest_inputs)
        return replace(self, rows_per_pass=1, packed_width=width) if width < used_width else None
