"""What earlier runs on this machine measured, so that the next estimate is better than the first.

Kept in the state folder by precision and by card, or by processor and number of threads: for each shape that was
trained, the seconds of a step and its floating-point operations.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tui_trainer.planning.regime import Precision
from tui_trainer.runs.folder import write_atomically

_FILE = "calibration.json"
_KEEP_SHAPES = 200
# A tiny model is all overhead and says nothing about a large one: rates hold for steps of similar work.
_SIMILAR_FACTOR = 4.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """`step_seconds` of this very shape, `flops_per_second` of the most similar step; None: not measured."""

    step_seconds: float | None = None
    flops_per_second: float | None = None


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
    shapes = _table(_read(state_folder), _machine_key(cpu_name, threads, precision, card_name))
    this = _table(shapes, shape_key)
    similar = [
        (_distance(found["flops"], flops), found) for found in map(partial(_table, shapes), shapes) if _whole(found)
    ]
    nearest = min(similar, key=lambda pair: pair[0], default=None)
    rate = None
    if nearest is not None and nearest[0] <= math.log(_SIMILAR_FACTOR):
        rate = nearest[1]["flops"] / nearest[1]["step_seconds"]
    return Calibration(step_seconds=this["step_seconds"] if _whole(this) else None, flops_per_second=rate)


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
) -> None:
    """Remember the seconds of a step of `flops` operations. A folder that cannot be written is no error."""
    everything = _read(state_folder)
    key = _machine_key(cpu_name, threads, precision, card_name)
    shapes = _table(everything, key)
    shapes.pop(shape_key, None)
    shapes[shape_key] = {"step_seconds": step_seconds, "flops": flops}
    everything[key] = dict(list(shapes.items())[-_KEEP_SHAPES:])
    try:
        state_folder.mkdir(parents=True, exist_ok=True)
        write_atomically(state_folder / _FILE, json.dumps(everything, indent=1).encode())
    except OSError:
        return


def _distance(one: float, other: float) -> float:
    return abs(math.log(one / other))


def _whole(entry: dict[str, Any]) -> bool:
    return all(isinstance(entry.get(name), int | float) and entry[name] > 0 for name in ("step_seconds", "flops"))


def _machine_key(cpu_name: str, threads: int, precision: Precision, card_name: str) -> str:
    machine = card_name or f"{cpu_name}, {threads} threads"
    return machine if precision == "fp32" else f"{machine}, {precision}"


def _read(state_folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((state_folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}
