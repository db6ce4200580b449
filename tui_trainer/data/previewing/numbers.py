"""How long the rows are and how much of a batch is padding, over all of them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.pack import expected_padding

_BARS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Lengths:
    """Tokens of the training rows. `histogram`: (from, to, rows), equally wide, without gaps."""

    median: float
    percent_90: float
    longest: int
    histogram: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, lengths: NDArray[np.int64]) -> "Lengths":
        """int64 [rows], at least one."""
        low, high = int(lengths.min()), int(lengths.max())
        width = max(1, -(-(high - low + 1) // _BARS))
        counted = np.bincount((lengths - low) // width)
        return cls(
            median=float(np.median(lengths)),
            percent_90=float(np.quantile(lengths, 0.9)),
            longest=high,
            histogram=tuple(
                (low + place * width, min(high, low + (place + 1) * width - 1), int(rows))
                for place, rows in enumerate(counted)
            ),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingShares:
    """Expected shares of a batch: padded, drawn by length, and packed (None: this task never packs)."""

    padded: float
    grouped: float
    packed: float | None

    @classmethod
    def of(
        cls, inputs: NDArray[np.int64], *, capacity: int, documents: int, micro_batch: int, packs: bool, width_step: int
    ) -> "PaddingShares":
        """`inputs`, int64 [rows]: what each row puts into the model; `documents` behind a step, `micro_batch` of them
        in a pass that is not packed, whose width is a multiple of `width_step`."""
        capacity = max(capacity, int(inputs.max()))
        expected = expected_padding(
            inputs, capacity=capacity, documents=documents, micro_batch=micro_batch, width_step=width_step
        )
        return cls(
            padded=expected.unpacked_share,
            grouped=expected.grouped_share,
            packed=expected.packed_share if packs else None,
        )
