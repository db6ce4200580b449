"""What earlier runs on this machine measured, so that the next estimate is better than the first.

Kept in the state folder by precision and by card, or by processor and number of threads: for each shape that was
trained, its floating-point operations and the last runs, each with the seconds of a step and how busy others kept the
machine. Others only ever slow a run down: of the runs on a calm machine the fastest quarter counts, and the rest only
where there is no such run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tui_trainer.runs.folder import write_atomically

if TYPE_CHECKING:
    from tui_trainer.planning.training_setup import Precision

_FILE = "calibration.json"
_KEEP_SHAPES, _KEEP_RUNS = 200, 12
# Runnable tasks of others for each thread that trains, from which on a run is a poor measure.
_CALM_LOAD, _LEAST_LOAD = 0.25, 0.5
# A tiny model is all overhead and says nothing about a large one: rates hold for steps of similar work.
_SIMILAR_FACTOR = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """`step_seconds` of this very shape, `flops_per_second` of the most similar step; None: not measured.

    `runs`: from how many runs the first of the two comes that is there; `busy`: others kept the machine busy in each.
    """

    step_seconds: float | None = None
    flops_per_second: float | None = None
    runs: int = 0
    busy: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shape:
    """What the runs of one shape say."""

    step_seconds: float
    flops: float
    runs: int
    busy: bool

    @classmethod
    def of(cls, entry: dict[str, Any]) -> _Shape | None:
        """None where the entry is damaged."""
        flops, runs = entry.get("flops"), _runs_of(entry)
        if flops is None or not _is_positive(flops) or not runs:
            return None
        calm = [run["step_seconds"] for run in runs if not run.get("busy")]
        seconds = sorted(calm or [run["step_seconds"] for run in runs])
        fastest = seconds[: -(-len(seconds) // 4)]
        return cls(step_seconds=median(fastest), flops=flops, runs=len(seconds), busy=not calm)

    def distance(self, flops: float) -> float:
        return abs(math.log(self.flops / flops))


def read_calibration(
    state_folder: Path,
    cpu_name: str,
    threads: int,
    shape_key: str,
    flops: float,
    *,
    precision: Precision = "fp32",
    card_name: str = "",
) -> Calibration:
    """What is known about steps of `flops` operations here; a missing or damaged file means nothing is.

    With `card_name` the steps are those of a card; processor and threads do not matter then.
    """
    table = table_in(read_table(state_folder / _FILE), machine_key(cpu_name, threads, precision, card_name))
    shapes = {key: shape for key in table if (shape := _Shape.of(table_in(table, key)))}
    similar = [shape for shape in shapes.values() if shape.distance(flops) <= math.log(_SIMILAR_FACTOR)]
    nearest = min(similar, key=lambda shape: (shape.busy, shape.distance(flops)), default=None)
    this = shapes.get(shape_key)
    if this and this.busy and nearest and not nearest.busy:
        this = None  # a similar model on a calm machine says more
    told = this or nearest
    return Calibration(
        step_seconds=this.step_seconds if this else None,
        flops_per_second=nearest.flops / nearest.step_seconds if nearest else None,
        runs=told.runs if told else 0,
        busy=told.busy if told else False,
    )


def keep_calibration(
    state_folder: Path,
    cpu_name: str,
    threads: int,
    shape_key: str,
    *,
    step_seconds: float,
    flops: float,
    precision: Precision = "fp32",
    card_name: str = "",
    load: float | None = None,
) -> None:
    """Remember the seconds of a step of `flops` operations.

    `load`: runnable tasks of others meanwhile (`hardware/load.py`); None where the system does not tell, or on a card.
    """
    everything = read_table(state_folder / _FILE)
    key = machine_key(cpu_name, threads, precision, card_name)
    shapes = table_in(everything, key)
    earlier = _runs_of(shapes.pop(shape_key, None))
    run = {"step_seconds": step_seconds, "busy": load is not None and load > max(_CALM_LOAD * threads, _LEAST_LOAD)}
    shapes[shape_key] = {"flops": flops, "runs": [*earlier, run][-_KEEP_RUNS:]}
    everything[key] = dict(list(shapes.items())[-_KEEP_SHAPES:])
    write_table(state_folder / _FILE, everything)


def _runs_of(entry: Any) -> list[dict[str, Any]]:
    """The runs of one shape. Until each was kept there was one, on a machine of which nothing was said."""
    if not isinstance(entry, dict):
        return []
    runs = entry.get("runs", [entry])
    found = [run for run in runs if isinstance(run, dict)] if isinstance(runs, list) else []
    return [run for run in found if _is_positive(run.get("step_seconds"))]


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and value > 0


def machine_key(cpu_name: str, threads: int, precision: Precision, card_name: str) -> str:
    """Under which name the figures of this machine are kept."""
    machine = card_name or f"{cpu_name}, {threads} threads"
    return machine if precision == "fp32" else f"{machine}, {precision}"


def read_table(path: Path) -> dict[str, Any]:
    """The JSON object of a file; empty where it is not there or damaged."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write_table(path: Path, table: Mapping[str, Any]) -> None:
    """A folder that cannot be written is no error: nothing is known the next time either."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(table, indent=1).encode())


def table_in(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """The object under a key; empty where there is none."""
    found = values.get(key)
    return found if isinstance(found, dict) else {}
