"""Several documents in one row, so that a step computes little padding: the rows, the batch, and what to expect."""

from collections.abc import Sequence, Sized
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.best_fit import Lengths, narrowest_width, pack_rows

DRAWS = 16
DRAWN_DOCUMENTS = 20_000

D = TypeVar("D", bound=Sized)


def pack_batch(documents: Sequence[D], capacity: int) -> list[list[D]]:
    """The documents of one optimizer step, packed into rows of at most `capacity` inputs (a document has one fewer
    inputs than tokens).

    Of all widths that need no more rows than `capacity` does, the smallest that is found is taken: the rows are then
    equally full, and a batch of them has the least padding.
    """
    lengths = [len(document) - 1 for document in documents]
    width = narrowest_width(lengths, capacity)
    rows = pack_rows(lengths, width)
    return [[documents[place] for place in row] for row in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingShares:
    """Expected shares of a batch that are padding: as it comes, drawn by length, and packed (None: never packed)."""

    padded: float
    grouped: float
    packed: float | None


def expected_packed_rows(lengths: Lengths, capacity: int, documents: int) -> float:
    """Rows of `capacity` inputs that `documents` documents fill when packed, on average.

    `lengths` in inputs, of some rows or of all: `PreparedData.lengths`, `DataEstimate.lengths` or `Rows.lengths` - 1.
    0 where nothing is known. The same arguments give the same number.
    """
    if not len(lengths) or documents < 1:
        return 0.0
    batches = _drawn(lengths, capacity, documents)
    rows = [len(pack_rows(batch, capacity)) for batch in batches]
    return sum(rows) / batches.size * documents


def padding_shares(
    inputs: Lengths, *, capacity: int, documents: int, micro_batch: int, packs: bool = True, width_step: int = 1
) -> PaddingShares:
    """Of steps of `documents` documents, on average over the batches that are drawn; `inputs` is what each row puts
    into the model. Unpacked, `micro_batch` documents are padded to the longest of them, up to a multiple of
    `width_step`; those of a step are sorted by length before they are cut into passes (`layout.py`).
    """
    capacity = max(capacity, int(np.max(inputs)))
    batches = _drawn(inputs, capacity, documents)
    widths = [narrowest_width(batch, capacity) for batch in batches]
    packed = sum(len(pack_rows(batch, width)) * width for batch, width in zip(batches, widths, strict=True))
    used = int(batches.sum())
    by_length = np.sort(batches.ravel()).reshape(batches.shape)
    return PaddingShares(
        padded=1 - used / _padded(batches, micro_batch, width_step, capacity),
        grouped=1 - used / _padded(by_length, micro_batch, width_step, capacity),
        packed=1 - used / packed if packs else None,
    )


def _padded(batches: NDArray[np.int64], micro_batch: int, width_step: int, capacity: int) -> int:
    """Inputs of all passes, padding included."""
    longest_first = -np.sort(-batches, axis=1)
    starts = np.arange(0, batches.shape[1], micro_batch)
    sizes = np.diff(np.append(starts, batches.shape[1]))
    widths = np.minimum(-(-longest_first[:, starts] // width_step) * width_step, capacity)
    return int((widths * sizes).sum())


def _drawn(lengths: Lengths, capacity: int, documents: int) -> NDArray[np.int64]:
    """Some batches of `documents` lengths; of a very large batch, a part.

    All batches together have each length as often as `lengths` do, so their mean is exact and few are enough.
    """
    known = np.sort(np.minimum(np.asarray(lengths, dtype=np.int64), capacity))
    width = min(documents, DRAWN_DOCUMENTS)
    shape = max(1, min(DRAWS, DRAWN_DOCUMENTS // width)), width
    count = shape[0] * width
    spread = known[(2 * np.arange(count) + 1) * len(known) // (2 * count)]
    return np.random.default_rng(0).permutation(spread).reshape(shape)
