"""Rows that are padded anyway get a little more padding, so that there are few sizes of results.

With every width there are so many of them that glibc finds no place twice: a BERT of 128 x 2 with rows of 20 to 64
tokens took 98 MiB where it takes 56 MiB so. On GPUs matmuls of such widths are the fast ones.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.collate import IGNORE, Batch, Collate
from tui_trainer.data.preparing.token_rows import TokenRow

WIDTH_STEP = 8


def in_even_widths(collate: Collate, pad_id: int, widest: int, longest_target: int) -> Collate:
    """The same batches with more padding: inputs, and answers behind an encoder, are as wide as a multiple of
    `WIDTH_STEP` or as the widest may be, where a model has no more positions. For models that are told what is padding.
    """

    def evenly(rows: Sequence[TokenRow], *, width: int = 0) -> Batch:
        batch = collate(rows, width=max(width, _even(max(map(len, rows)), widest)))
        if (read := batch.more.get("decoder_input_ids")) is None:
            return batch
        filled = _even(read.shape[1], longest_target)
        more = {**batch.more, "decoder_input_ids": _filled(read, filled, pad_id)}
        return replace(batch, labels=_filled(batch.labels, filled, IGNORE), more=more)

    return evenly


def _even(width: int, widest: int) -> int:
    return max(width, min(-(-width // WIDTH_STEP) * WIDTH_STEP, widest))


def _filled(rows_BT: NDArray[Any], width: int, filling: int) -> NDArray[Any]:
    return np.pad(rows_BT, ((0, 0), (0, width - rows_BT.shape[1])), constant_values=filling)
