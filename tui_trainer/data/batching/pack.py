"""Several documents in one row, with as little padding as can be: the rows by best-fit decreasing, and what to expect.

The longest document goes first, each into the fullest row that still has room for it. Documents of one length are
placed together, and rows are kept by their free space: the work is a few bit operations for each group of rows, not a
search for each document. The rows are as full as those of placing the documents one by one.

Source: Johnson et al., Worst-case performance bounds for simple one-dimensional packing algorithms, SIAM J. Comput. 3
(1974): never more than 11/9 of the fewest possible rows, and 4.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.batching.collate import Document, Rounding, inputs_of

Lengths = Sequence[int] | NDArray[np.integer]


def pack_rows(lengths: Lengths, capacity: int) -> list[list[int]]:
    """The documents of each row, by their place in `lengths`: every one once, no row beyond `capacity`.

    Lengths are 1..capacity. Within a row and from row to row (by their first) documents keep their order.
    The same lengths give the same rows on every machine.
    """
    order, sizes = _longest_first(lengths, capacity)
    places, count = _place(sizes, capacity)
    row_of = np.empty(len(order), dtype=np.int64)
    row_of[order] = places
    firsts = np.full(count, len(order), dtype=np.int64)
    np.minimum.at(firsts, row_of, np.arange(len(order)))
    documents = np.lexsort((np.arange(len(order)), firsts[row_of])).tolist()
    ends = np.cumsum(np.bincount(row_of, minlength=count)[np.argsort(firsts)]).tolist()
    return [documents[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def narrowest_width(lengths: Lengths, capacity: int) -> int:
    """The smallest row width that is found to need no more rows than `capacity`, by bisection."""
    _, sizes = _longest_first(lengths, capacity)
    if not sizes:
        return capacity
    _, rows = _place(sizes, capacity)
    low, high = max(sizes[0], -(-sum(sizes) // rows)), capacity
    while low < high:
        middle = (low + high) // 2
        if _place(sizes, middle)[1] <= rows:
            high = middle
        else:
            low = middle + 1
    return high


def _longest_first(lengths: Lengths, capacity: int) -> tuple[NDArray[np.int64], list[int]]:
    """(places in `lengths`, sizes), the longest first."""
    sizes = np.asarray(lengths, dtype=np.int64)
    if len(sizes) and not 1 <= int(sizes.min()) <= int(sizes.max()) <= capacity:
        raise ValueError(f"lengths from {sizes.min()} to {sizes.max()} do not fit into rows of {capacity}")
    order = np.argsort(-sizes, kind="stable")
    return order, sizes[order].tolist()


class _RowsBySpace:
    """Rows by their free space. Which spaces occur is kept as the bits of one integer: the smallest that fits is then
    found with two bit operations.
    """

    def __init__(self) -> None:
        self._rows: dict[int, list[int]] = {}
        self._spaces = 0

    def smallest(self, size: int) -> int:
        """The smallest space of at least `size`, or 0."""
        found = self._spaces >> size
        return size + (found & -found).bit_length() - 1 if found else 0

    def add(self, space: int, rows: list[int]) -> None:
        if kept := self._rows.get(space):
            kept.extend(rows)
            return
        self._rows[space] = rows
        self._spaces |= 1 << space

    def take(self, space: int, most: int) -> list[int]:
        """Up to `most` rows with that space, taken out."""
        rows = self._rows[space]
        if len(rows) > most:
            taken = rows[-most:]
            del rows[-most:]  # in place: there may be many more
            return taken
        del self._rows[space]
        self._spaces ^= 1 << space
        return rows


def _place(sizes: Sequence[int], capacity: int) -> tuple[list[int], int]:
    """The row of each document, longest first, and the number of rows."""
    free = _RowsBySpace()
    places: list[int] = []
    count = 0
    for size, group in groupby(sizes):
        left = len(list(group))
        while left:
            space = free.smallest(size) or capacity
            fits = space // size
            wanted = -(-left // fits)
            if space == capacity:  # no row is empty: a new one is made only for a document
                rows = list(range(count, count + wanted))
                count += wanted
            else:
                rows = free.take(space, wanted)
            for some, each in _shares(rows, left, fits):
                places.extend(some if each == 1 else [row for row in some for _ in range(each)])
                left -= each * len(some)
                if rest := space - each * size:
                    free.add(rest, some)
    return places, count


def _shares(rows: list[int], documents: int, fits: int) -> Iterator[tuple[list[int], int]]:
    """(rows, documents each): all rows get `fits`, the last what is left."""
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
    """The prepared rows of one optimizer step, each as a whole, packed into rows of at most `capacity` inputs (a
    document has one fewer inputs than tokens).

    Of all widths that need no more rows than `capacity` does, the smallest that is found is taken: the rows are then
    equally full, and a batch of them has the least padding.
    """
    lengths = [inputs_of(document) for document in documents]
    width = narrowest_width(lengths, capacity)
    rows = pack_rows(lengths, width)
    return [[documents[place] for place in row] for row in rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingShares:
    """Expected shares of a batch that are padding: as it comes, drawn by length, and packed (None: never packed).

    `narrowest` and `narrowest_grouped`: inputs of the narrowest pass, as it comes and drawn by length.
    """

    padded: float
    grouped: float
    packed: float | None
    narrowest: int = 0
    narrowest_grouped: int = 0

    def of(self, *, is_grouped: bool) -> tuple[float, int]:
        """Return the share of padding and the narrowest pass, of grouped batches or of batches as they come."""
        return (self.grouped, self.narrowest_grouped) if is_grouped else (self.padded, self.narrowest)


def expected_packed_rows(lengths: Lengths, capacity: int, documents: int) -> float:
    """Rows of `capacity` inputs that `documents` documents fill when packed, on average.

    `lengths` in inputs, of some rows or of all: `PreparedData.lengths`, `Estimate.lengths` or `Rows.lengths` - 1.
    0 where nothing is known. The same arguments give the same number.
    """
    if not len(lengths) or documents < 1:
        return 0.0
    batches = _drawn(lengths, capacity, documents)
    rows = [len(pack_rows(batch, capacity)) for batch in batches]
    return sum(rows) / batches.size * documents


def padding_shares(
    inputs: Lengths,
    documents: int,
    micro_batch: int,
    rounding: Rounding | None = None,
    *,
    capacity: int,
    packs: bool = True,
) -> PaddingShares:
    """Of steps of `documents` documents, on average over the batches that are drawn; `inputs` is what each row puts
    into the model. Unpacked, `micro_batch` documents are padded to the longest of them, rounded up by
    `rounding`; those of a step are sorted by length before they are cut into passes (`layout.py`).
    """
    capacity = max(capacity, int(np.max(inputs)))
    batches = _drawn(inputs, capacity, documents)
    widths = [narrowest_width(batch, capacity) for batch in batches]
    packed = sum(len(pack_rows(batch, width)) * width for batch, width in zip(batches, widths, strict=True))
    used = int(batches.sum())
    by_length = np.sort(batches.ravel()).reshape(batches.shape)
    padded, narrowest = _padded(batches, micro_batch, rounding, capacity)
    grouped, narrowest_grouped = _padded(by_length, micro_batch, rounding, capacity)
    return PaddingShares(
        padded=1 - used / padded,
        grouped=1 - used / grouped,
        packed=1 - used / packed if packs else None,
        narrowest=narrowest,
        narrowest_grouped=narrowest_grouped,
    )


def _padded(batches: NDArray[np.int64], micro_batch: int, rounding: Rounding | None, capacity: int) -> tuple[int, int]:
    """Return the inputs of all passes, padding included, and the width of the narrowest whole pass.

    The last pass of a step may have fewer rows and be narrower.
    """
    longest_first = -np.sort(-batches, axis=1)
    starts = np.arange(0, batches.shape[1], micro_batch)
    sizes = np.diff(np.append(starts, batches.shape[1]))
    widths = longest_first[:, starts]
    narrowest = int(widths[:, max(batches.shape[1] // micro_batch, 1) - 1].min())
    if rounding:
        widths = np.array([rounding(int(width), capacity) for width in widths.flat]).reshape(widths.shape)
    return int((widths * sizes).sum()), narrowest


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
