"""What earlier runs on this machine measured, so that the next estimate is better than the first.

A record (`records.py`) for each of the last runs under the key of its steps: their floating-point operations, the
seconds of a step and how busy others kept the machine. The rate of another model, or of another setup, says nothing.
Others only ever slow a run down: of the runs on a calm machine the fastest quarter counts, and the rest only where
there is no such run.
"""

import math
from dataclasses import asdict, dataclass
from statistics import median

from pydantic import PositiveFloat

from tui_trainer.planning.records import STEP_SECONDS, figures_as, find_records, keep_record
from tui_trainer.planning.step_key import StepKey

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
    flops: PositiveFloat
    step_seconds: PositiveFloat
    busy: bool = False


@dataclass(slots=True)
class _Shape:
    """Runs with one cut of rows."""

    runs: list[_Run]

    @property
    def flops(self) -> float:
        return self.runs[-1].flops

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


def read_calibration(device: str, key: StepKey, flops: float) -> Calibration:
    """What is known about steps of `flops` operations on this device."""
    shapes: dict[str, _Shape] = {}
    for record in find_records(STEP_SECONDS, key.on(device)):
        if run := figures_as(_Run, record.figures):
            shapes.setdefault(record.part, _Shape([])).runs.append(run)
    this = shapes.get(key.cut)
    similar = [shape for shape in shapes.values() if shape.distance(flops) <= math.log(_SIMILAR_FACTOR)]
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


def keep_calibration(device: str, key: StepKey, *, step_seconds: float, flops: float, busy: bool = False) -> None:
    """Remember the seconds of a step of `flops` operations."""
    keep_record(STEP_SECONDS, key.on(device), asdict(_Run(flops, step_seconds, busy)), part=key.cut)


def is_busy(load: float | None, threads: int) -> bool:
    """Whether runnable tasks of others (`hardware/load.py`) slow down so many threads; None: nobody tells."""
    return load is not None and load > max(_CALM_LOAD * threads, _LEAST_LOAD)
