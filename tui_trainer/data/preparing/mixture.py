"""How often each row is used in an epoch: sources with weights, of which rows are repeated or left out randomly."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tui_trainer.data.sources.source import Source
from tui_trainer.errors import DataError

SOURCES = "sources"


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceRows:
    """One of several sources: its rows that can be used, held-out ones too, and those of an epoch of training.

    Before the data is prepared both are estimates.
    """

    description: str
    weight: float
    rows: int
    rows_per_epoch: int

    def words(self, *, exact: bool = True) -> str:
        """`a.jsonl (1.2 MiB): 1,000 rows, 1,800 in an epoch of training (data.weights 2)`."""
        weight = "" if self.weight == 1 else f" (data.weights {self.weight:g})"
        about = "" if exact else "about "
        rows = f"{about}{self.rows:,} rows, {about}{self.rows_per_epoch:,} in an epoch of training"
        return f"{self.description}: {rows}{weight}"


def used_rows(rows: int, weight: float) -> int:
    """Of so many training rows of a source, those of an epoch."""
    whole = int(weight)
    return whole * rows + round((weight - whole) * rows)


def copies_of(
    trained: NDArray[np.bool_], counts: Sequence[int], weights: Sequence[float], seed: int
) -> NDArray[np.int16]:
    """How often each row is used in an epoch: int16 [rows], 0 where it is not `trained` on, bool [rows].

    Sources have `counts` rows each, one after another. Of n rows with weight w each is used floor(w) times, and
    round((w - floor(w)) n) of them, drawn with the seed, once more. Without weights, every row is used once.
    """
    copies = trained.astype(np.int16)
    start = 0
    for number, (count, weight) in enumerate(zip(counts, weights, strict=bool(weights))):
        places = start + np.flatnonzero(trained[start : start + count])
        copies[places] = int(weight)
        if more := used_rows(len(places), weight) - int(weight) * len(places):
            drawn = np.argsort(np.random.PCG64([seed, number]).random_raw(len(places)), kind="stable")
            copies[places[drawn[:more]]] += 1
        start += count
    return copies


def source_rows(
    source: Source, counts: Sequence[int], copies: NDArray[np.int16], weights: Sequence[float]
) -> tuple[SourceRows, ...]:
    """What came of each source; () for a single one without a weight. Raises DataError for one that is thinned to
    nothing.
    """
    if not source.several and not weights:
        return ()
    found, start = [], 0
    for part, count, weight in zip(source.parts, counts, weights or [1.0] * len(counts), strict=True):
        used = int(copies[start : start + count].sum())
        if not used and weight < 1:
            message = f"none of its {count:,} rows is left to train on with a weight of {weight:g}"
            whole = "; a text file is one row, which is used whole or not at all" if count == 1 else ""
            hint = f"raise its number in data.weights, or take the source out{whole}"
            raise DataError(message, where=part.description, hint=hint)
        found.append(SourceRows(description=part.description, weight=weight, rows=count, rows_per_epoch=used))
        start += count
    return tuple(found)


def sources_in(details: Mapping[str, Any]) -> tuple[SourceRows, ...]:
    """What came of each source, as it is kept with the prepared data."""
    return tuple(SourceRows(**one) for one in details.get(SOURCES, ()))
