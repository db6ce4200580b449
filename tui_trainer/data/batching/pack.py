"""Packing: several documents in one row, with little padding, and estimates of how full the rows will be.

Best-fit decreasing: the longest document is placed first, each in the fullest row that has room for it. Documents of
equal length are placed together, and rows are indexed by their free space, so the work is a few bit operations per
group of rows instead of a search per document, with the same result.

Source: Johnson et al., Worst-case performance bounds for simple one-dimensional packing algorithms, SIAM J. Comput. 3
(1974): at most 11/9 of the least possible number of rows, plus 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.collate import Document, Rounding, count_inputs

Lengths = Sequence[int] | NDArray[np.integer]


def pack_rows(lengths: Lengths, capacity: int) -> list[list[int]]:
    """Return the documents of each row, as positions in `lengths`. Each occurs once, and no row exceeds `capacity`.

    Lengths are 1..capacity. Documents keep their order within a row, and rows are ordered by their first document. The
    same lengths give the same rows on every machine."""
    order, sizes = _longest_first(lengths, capacity)
    row_numbers, row_count = _assign_rows(sizes, capacity)
    row_of = np.empty(len(order), dtype=np.int64)
    row_of[order] = row_numbers
    first_documents = np.full(row_count, len(order), dtype=np.int64)
    np.minimum.at(first_documents, row_of, np.arange(len(order)))
    documents = np.lexsort((np.arange(len(order)), first_documents[row_of])).tolist()
    ends = np.cumsum(np.bincount(row_of, minlength=row_count)[np.argsort(first_documents)]).tolist()
    return [documents[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def narrowest_width(lengths: Lengths, capacity: int) -> int:
    """Return the smallest width, found by bisection, with which packing needs no more rows than with `capacity`."""
    _, sizes = _longest_first(lengths, capacity)
    if not sizes:
        return capacity
    _, row_count = _assign_rows(sizes, capacity)
    low_width, high_width = max(sizes[0], -(-sum(sizes) // row_count)), capacity
    while low_width < high_width:
        middle_width = (low_width + high_width) // 2
        if _assign_rows(sizes, middle_width)[1] <= row_count:
            high_width = middle_width
        else:
            low_width = middle_width + 1
    return high_width


def _longest_first(lengths: Lengths, capacity: int) -> tuple[NDArray[np.int64], list[int]]:
    """Return the positions of the documents, and their lengths, the longest first."""
    sizes = np.asarray(lengths, dtype=np.int64)
    if len(sizes) and not 1 <= int(sizes.min()) <= int(sizes.max()) <= capacity:
        raise ValueError(f"lengths from {sizes.min()} to {sizes.max()} do not fit into rows of {capacity}")
    order = np.argsort(-sizes, kind="stable")
    return order, sizes[order].tolist()


class _RowsByFreeSpace:
    """Rows by their free space. The bits of an integer are the amounts that occur, to find the smallest that fits."""

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._spaces = 0

    def smallest(self, size: int) -> int:
        """Return the smallest free space of any row that is at least `size`; 0 if no row has it."""
        space_bits = self._spaces >> size
        return size + (space_bits & -space_bits).bit_length() - 1 if space_bits else 0

    def add(self, space: int, rows: list[int]) -> None:
        if same_space := self._rows.get(space):
            same_space.extend(rows)
            return
        self._rows[space] = rows
        self._spaces |= 1 << space

    def take(self, space: int, limit: int) -> list[int]:
        """Remove and return up to `limit` of the rows that have exactly this free space."""
        rows = self._rows[space]
        if len(rows) > limit:
            removed_rows = rows[-limit:]
            del rows[-limit:]  # in place, because many rows may remain
            return removed_rows
        del self._rows[space]
        self._spaces ^= 1 << space
        return rows


def _assign_rows(sizes: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """Return the row number of each document, in the order of `sizes` (longest first), and the number of rows."""
    rows_by_space = _RowsByFreeSpace()
    row_of: list[int] = []
    row_count = 0
    for size, group in groupby(sizes):
        documents_left = len(list(group))
        while documents_left:
            space = rows_by_space.smallest(size) or capacity
            fitting_documents = space // size
            needed_rows = -(-documents_left // fitting_documents)
            if space == capacity:  # no existing row is empty, so this means new rows
                rows = list(range(row_count, row_count + needed_rows))
                row_count += needed_rows
            else:
                rows = rows_by_space.take(space, needed_rows)
            for group_rows, per_row in _documents_per_row(rows, documents_left, fitting_documents):
                row_of.extend(group_rows if per_row == 1 else [row for row in group_rows for _ in range(per_row)])
                documents_left -= per_row * len(group_rows)
                if free_space := space - per_row * size:
                    rows_by_space.add(free_space, group_rows)
    return row_of, row_count


def _documents_per_row(rows: list[int], documents: int, fits: int) -> Iterator[tuple[list[int], int]]:
    """Yield groups of rows with the number of documents for each of them: `fits`, or in the last row the rest."""
    if len(rows) * fits <= documents:
        yield rows, fits
        return
    if len(rows) > 1:
        yield rows[:-1], fits
    yield rows[-1:], documents - (len(rows) - 1) * fits


DRAWS = 16
DRAWN_DOCUMENTS = 20_000

D = TypeVar("D", bound=Document)


def pack_batch(documents: Sequence[D], capacity: int) -> list[list[D]]:
    """Pack the prepared rows of one optimizer step into rows of at most `capacity` inputs. Prepared rows are not split.

    A document has one input fewer than tokens. The width is the smallest that needs no more rows than `capacity` does:
    the rows are then about equally full, and the batch has little padding."""
    lengths = [count_inputs(document) for document in documents]
    width = narrowest_width(lengths, capacity)
    rows = pack_rows(lengths, width)
    return [[documents[position] for position in row] for row in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingShares:
    """Expected shares of padding in a batch: in random order, grouped by length, and packed (None if it never is).

    `narrowest` and `narrowest_grouped`: width in inputs of the narrowest pass, in random order and grouped by length.
    """

    padded: float
    grouped: float
    packed: float | None
    narrowest: int = 0
    narrowest_grouped: int = 0

    def of(self, *, is_grouped: bool) -> tuple[float, int]:
        """Return the share of padding, and the width of the narrowest pass, with or without grouping by length."""
        return (self.grouped, self.narrowest_grouped) if is_grouped else (self.padded, self.narrowest)


def expected_packed_rows(lengths: Lengths, capacity: int, documents: int) -> float:
    """Return the mean number of rows of `capacity` inputs that `documents` packed documents fill; 0 without lengths.

    `lengths` are the inputs of some rows or all of them, such as `PreparedData.lengths`, `Estimate.lengths` or
    `Rows.lengths` - 1. The result is deterministic."""
    if not len(lengths) or documents < 1:
        return 0.0
    batches = _draw_batches(lengths, capacity, documents)
    row_counts = [len(pack_rows(batch, capacity)) for batch in batches]
    return sum(row_counts) / batches.size * documents


def padding_shares(
    inputs: Lengths,
    documents: int,
    micro_batch: int,
    rounding: Rounding | None = None,
    *,
    capacity: int,
    packs: bool = True,
) -> PaddingShares:
    """Return the mean shares of padding in steps of `documents` documents, from some drawn steps. `inputs`: those of
    each row. Without packing, `micro_batch` documents are padded to the longest, rounded up with `rounding`. Grouping
    by length sorts the documents of a step before they are split into passes."""
    capacity = max(capacity, int(np.max(inputs)))
    batches = _draw_batches(inputs, capacity, documents)
    widths = [narrowest_width(batch, capacity) for batch in batches]
    packed_inputs = sum(len(pack_rows(batch, width)) * width for batch, width in zip(batches, widths, strict=True))
    used_inputs = int(batches.sum())
    grouped_batches = np.sort(batches.ravel()).reshape(batches.shape)
    padded_inputs, narrowest_pass = _padded_inputs(batches, micro_batch, rounding, capacity)
    grouped_inputs, narrowest_grouped = _padded_inputs(grouped_batches, micro_batch, rounding, capacity)
    return PaddingShares(
        padded=1 - used_inputs / padded_inputs,
        grouped=1 - used_inputs / grouped_inputs,
        packed=1 - used_inputs / packed_inputs if packs else None,
        narrowest=narrowest_pass,
        narrowest_grouped=narrowest_grouped,
    )


def _padded_inputs(
    batches: NDArray[np.int64], micro_batch: int, rounding: Rounding | None, capacity: int
) -> tuple[int, int]:
    """Return the inputs of all passes, padding included, and the width of the narrowest pass with all its rows.

    The last pass of a step may have fewer rows and be narrower."""
    longest_first = -np.sort(-batches, axis=1)
    starts = np.arange(0, batches.shape[1], micro_batch)
    pass_rows = np.diff(np.append(starts, batches.shape[1]))
    widths = longest_first[:, starts]
    narrowest_full = int(widths[:, max(batches.shape[1] // micro_batch, 1) - 1].min())
    if rounding:
        widths = np.array([rounding(int(width), capacity) for width in widths.flat]).reshape(widths.shape)
    return int((widths * pass_rows).sum()), narrowest_full


def _draw_batches(lengths: Lengths, capacity: int, documents: int) -> NDArray[np.int64]:
    """Draw the lengths of some batches of `documents` documents; of a very large batch, only a part.

    Together, the batches contain each length as often as `lengths` does, so a few of them have the exact mean."""
    sorted_lengths = np.sort(np.minimum(np.asarray(lengths, dtype=np.int64), capacity))
    batch_documents = min(documents, DRAWN_DOCUMENTS)
    shape = max(1, min(DRAWS, DRAWN_DOCUMENTS // batch_documents)), batch_documents
    drawn_count = shape[0] * batch_documents
    spread_lengths = sorted_lengths[(2 * np.arange(drawn_count) + 1) * len(sorted_lengths) // (2 * drawn_count)]
    return np.random.default_rng(0).permutation(spread_lengths).reshape(shape)
