"""What earlier runs on this machine measured, so that the next estimate is better than the first.

Kept in the state folder, by processor and number of threads: the training rate of whole steps, and the step time of
each shape that was trained.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tui_trainer.runs.folder import write_atomically

_FILE = "calibration.json"
_KEEP_SHAPES = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """`step_seconds` of this very shape, `flops_per_second` of the last run of any shape; None: not measured."""

    step_seconds: float | None = None
    flops_per_second: float | None = None


def read_calibration(state_folder: Path, cpu_name: str, threads: int, shape_key: str) -> Calibration:
    """What is known about this machine; a missing or damaged file means nothing is."""
    machine = _table(_read(state_folder), _machine_key(cpu_name, threads))
    shapes = _table(machine, "step_seconds")
    return Calibration(
        step_seconds=_number(shapes.get(shape_key)), flops_per_second=_number(machine.get("flops_per_second"))
    )


def keep_calibration(
    state_folder: Path, cpu_name: str, threads: int, shape_key: str, *, step_seconds: float, flops: float
) -> None:
    """Remember the seconds of a step of `flops` operations. A folder that cannot be written is no error."""
    everything = _read(state_folder)
    key = _machine_key(cpu_name, threads)
    shapes = _table(_table(everything, key), "step_seconds")
    shapes.pop(shape_key, None)
    shapes[shape_key] = step_seconds
    newest = dict(list(shapes.items())[-_KEEP_SHAPES:])
    everything[key] = {"step_seconds": newest, "flops_per_second": flops / step_seconds}
    try:
        state_folder.mkdir(parents=True, exist_ok=True)
        write_atomically(state_folder / _FILE, json.dumps(everything, indent=1).encode())
    except OSError:
        return


def _machine_key(cpu_name: str, threads: int) -> str:
    return f"{cpu_name}, {threads} threads"


def _read(state_folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((state_folder / _FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _table(values: dict[str, Any], key: str) -> dict[str, Any]:
    found = values.get(key)
    return found if isinstance(found, dict) else {}


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and value > 0 else None
