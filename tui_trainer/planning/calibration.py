"""What earlier runs on this machine measured, so that the next estimate is better than the first.

Kept in the state folder by precision and by card, or by processor and number of threads, under the key of a step
(`kept_tables.StepKey`): its floating-point operations and the last runs, each with the seconds of a step and how busy
others kept the machine. The rate of another model, or of another setup, says nothing. Others only ever slow a run down:
of the runs on a calm machine the fastest quarter counts, and the rest only where there is no such run.
"""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Self

from pydantic import Field, PositiveFloat

from tui_trainer.planning.kept_tables import StepKey, entry_of, keep_entry, read_table

_FILE = "calibration.json"
_KEEP_SHAPES, _KEEP_RUNS = 200, 12
# Runnable tasks of others for each thread that trains, from which on a run is a poor measure.
_CALM_LOAD, _LEAST_LOAD = 0.25, 0.5
# A tiny step is all overhead and says nothing about a large one: rates hold for steps of similar work.
_SIMILAR_FACTOR = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """`step_seconds` of this very step, `flops_per_second` of the most similar one of this model; None: not measured.

    `runs`: from how many runs the first of the two comes that is there; `busy`: others kept the machine busy in each.
    """

    step_seconds: float | None = None
    flops_per_second: float | None = None
    runs: int = 0
    busy: bool = False


@dataclass(frozen=True, slots=True)
class _Run:
    step_seconds: PositiveFloat
    busy: bool = False


@dataclass(frozen=True, slots=True)
class _Shape:
    flops: PositiveFloat
    runs: Annotated[list[_Run], Field(min_length=1)]

    @classmethod
    def of(cls, entry: dict[str, object]) -> Self | None:
        """None where the entry is damaged. Until each run was kept there was one, of which nothing was said."""
        return entry_of(cls, {"runs": [entry], **entry})

    @property
    def busy(self) -> bool:
        return all(run.busy for run in self.runs)

    @property
    def seconds(self) -> list[float]:
        """Those that count, the shortest first."""
        return sorted(run.step_seconds for run in self.runs if run.busy == self.busy)

    @property
    def step_seconds(self) -> float:
        return median(self.seconds[: -(-len(self.seconds) // 4)])

    def distance(self, flops: float) -> float:
        return abs(math.log(self.flops / flops))


def read_calibration(state_folder: Path, machine: str, key: StepKey, flops: float) -> Calibration:
    """What is known about steps of `flops` operations on a machine of that key."""
    table = read_table(state_folder / _FILE, machine)
    similar: list[_Shape] = []
    this: _Shape | None = None
    for text, entry in table.items():
        other, shape = StepKey.read(text), _Shape.of(entry) if isinstance(entry, dict) else None
        if other is None or shape is None or not other.has_setup_of(key):
            continue
        if other == key:
            this = shape
        if shape.distance(flops) <= math.log(_SIMILAR_FACTOR):
            similar.append(shape)
    nearest = min(similar, key=lambda shape: (shape.busy, shape.distance(flops)), default=None)
    if this and this.busy and nearest and not nearest.busy:
        this = None  # other rows on a calm machine say more
    told = this or nearest
    return Calibration(
        step_seconds=this.step_seconds if this else None,
        flops_per_second=nearest.flops / nearest.step_seconds if nearest else None,
        runs=len(told.seconds) if told else 0,
        busy=told.busy if told else False,
    )


def keep_calibration(
    state_folder: Path, machine: str, key: str, *, step_seconds: float, flops: float, busy: bool = False
) -> None:
    """Remember the seconds of a step of `flops` operations."""
    earlier = _Shape.of(read_table(state_folder / _FILE, machine, key))
    runs = [*(earlier.runs if earlier else ()), _Run(step_seconds, busy)][-_KEEP_RUNS:]
    entry = asdict(_Shape(flops, runs))
    keep_entry(state_folder / _FILE, machine, key, entry=entry, most=_KEEP_SHAPES)


def is_busy(load: float | None, threads: int) -> bool:
    """Whether runnable tasks of others (`hardware/load.py`) slow down so many threads; None: nobody tells."""
    return load is not None and load > max(_CALM_LOAD * threads, _LEAST_LOAD)
