"""Peaks of memory that runs and rehearsals had here, so that the next plan of such a run is not a formula's alone.

Records (`records.py`) under the key of a measured micro-batch (`kept_micro_batches.micro_batch_key`): the last peaks of
each number of rows in a pass.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from tui_trainer.planning.memory.parts import MemoryPart
from tui_trainer.planning.records import PEAK, Key, find_records, keep_record
from tui_trainer.planning.training_setup import MeasuredPeak
from tui_trainer.units import MIB, format_bytes

# Known to the byte.
LASTING = ("weights", "master weights", "gradients", "optimizer")
# Of a card's memory: torch does not count them among what it has allocated.
NOT_ALLOCATED = ("pieces", "context")
# The same whatever goes through the model: what a measurement corrects is the rest.
_FIXED_BYTES = 128 * MIB
_CONSTANT = (*LASTING, *NOT_ALLOCATED, "libraries")
# Of what passes of another size had more or less: what a CPU's allocator holds differs from size to size. By the
# figures of `memory_grid.py --calibrate`, which goes from half of the rows to all, 38 of 41 plans lie within 10 % with
# none of it, 40 with half, 37 with all.
_OTHER_ROWS_SHARE = 0.5


def measured_peaks(key: Key) -> tuple[MeasuredPeak, ...]:
    """The highest peak of each number of rows; none where nothing was measured."""
    peaks: dict[str, list[int]] = {}
    for record in find_records(PEAK, key):
        if isinstance(peak := record.figures.get("bytes"), int) and peak > 0:
            peaks.setdefault(record.part, []).append(peak)
    found = []
    for part, several in peaks.items():
        with suppress(ValueError):
            rows, eval_rows = map(int, part.split("+"))
            if min(rows, eval_rows) > 0:
                found.append(MeasuredPeak(rows=rows, eval_rows=eval_rows, bytes=max(several), runs=len(several)))
    return tuple(found)


def keep_measured_peak(key: Key, rows: int, eval_rows: int, peak_bytes: int) -> None:
    """`peak_bytes` as the plan counts: on a CPU without the libraries."""
    keep_record(PEAK, key, {"bytes": peak_bytes}, part=f"{rows}+{eval_rows}")


def nearest_peak(peaks: Sequence[MeasuredPeak], rows: int, eval_rows: int) -> MeasuredPeak | None:
    """That of the most similar passes; None: there is none."""

    def distance(one: MeasuredPeak) -> float:
        return abs(math.log(one.rows / rows)) + abs(math.log(one.eval_rows / eval_rows))

    return min(peaks, key=distance, default=None)


def corrected(
    parts: tuple[MemoryPart, ...],
    rows: int,
    device: str,
    peak: MeasuredPeak,
    parts_then: Callable[[int, int], tuple[MemoryPart, ...]],
) -> tuple[MemoryPart, ...]:
    """The parts of a plan of so many `rows` in a pass with what `peak` teaches: those that go with the rows take as
    much more or less as they did then. `parts_then` gives the parts of so many rows in a pass of training and of
    evaluation."""
    then = [part for part in parts_then(peak.rows, peak.eval_rows) if part.name not in NOT_ALLOCATED]
    total, passing, now = sum(part.bytes for part in then), _passing(then), _passing(parts)
    if not passing or not now:
        return parts
    share = 1.0 if device == "cuda" or peak.rows == rows else _OTHER_ROWS_SHARE
    difference = share * (peak.bytes - total)
    # What libraries take at first use, or not, is the same for any number of rows.
    fixed = max(-_FIXED_BYTES, min(difference, _FIXED_BYTES))
    times = max(0.0, now * (1 + (difference - fixed) / passing) + fixed) / now
    return tuple(
        part
        if part.name in _CONSTANT
        else replace(part, bytes=round(times * part.bytes), formula=f"{part.formula}; x {times:.2f}, as measured here")
        for part in parts
    )


def _passing(parts: Sequence[MemoryPart]) -> int:
    return sum(part.bytes for part in parts if part.name not in _CONSTANT)


def measured_words(peak: MeasuredPeak) -> str:
    """`1 run here, with 8 rows in a pass, had a peak of 1.2 GiB`."""
    runs = "1 run" if peak.runs == 1 else f"{peak.runs} runs"
    rows = f"{peak.rows} row{'s' if peak.rows != 1 else ''}"
    return f"{runs} here, with {rows} in a pass, had a peak of {format_bytes(peak.bytes)}"
