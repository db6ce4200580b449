"""What earlier versions have measured, in a file of JSON for each kind: it is taken over once, and the files stay."""

import json
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# (kind, fields of the key, part, date, figures)
OldRecord = tuple[str, dict[str, str], str, str, dict[str, Any]]
_SUFFIXES = (", bf16", ", fp16", ", weights on the host")


def are_there(folder: Path) -> bool:
    return any((folder / name).exists() for name in _READERS)


def old_records(folder: Path) -> Iterator[OldRecord]:
    """All that can be read of the tables in the state folder; what is damaged is left out."""
    for name, read in _READERS.items():
        path = folder / name
        with suppress(OSError, ValueError):
            table = json.loads(path.read_bytes())
            at = datetime.fromtimestamp(path.stat().st_mtime, UTC).isoformat(timespec="milliseconds")
            for key, entry in table.items() if isinstance(table, dict) else ():
                with suppress(LookupError, TypeError, ValueError, AttributeError):
                    found = list(read(key, entry, at.replace("+00:00", "Z")))
                    yield from (record for record in found if isinstance(record[3], str))


def _calibration(machine: str, steps: dict[str, Any], at: str) -> Iterator[OldRecord]:
    for step, entry in steps.items():
        with suppress(LookupError, TypeError, ValueError):
            key, cut = _key_of(step, machine)
            # Until each run was kept there was one, of which nothing was said.
            for run in entry.get("runs", [entry]):
                figures = {"flops": entry["flops"], "step_seconds": run["step_seconds"], "busy": run.get("busy", False)}
                yield "step_seconds", key, cut, at, figures


def _peaks(text: str, peaks: dict[str, list[int]], at: str) -> Iterator[OldRecord]:
    key = _key_with_data(text)
    for rows, several in peaks.items():
        for peak in several:
            yield "peak_memory", key, rows, at, {"bytes": peak}


def _micro_batches(text: str, entry: dict[str, Any], at: str) -> Iterator[OldRecord]:
    yield "micro_batch", _key_with_data(text), "", at, entry


def _gains(machine: str, pairs: dict[str, Any], _: str) -> Iterator[OldRecord]:
    for pair, gain in pairs.items():
        with suppress(LookupError, TypeError, ValueError):
            key = _key_of(gain["shapes"][gain["from"]], machine)[0]
            yield "gain", key, pair, gain["at"], gain


def _trials(machine: str, trial: dict[str, Any], _: str) -> Iterator[OldRecord]:
    yield "trial", {"device": machine, "versions": f"torch {trial['torch']}"}, "", trial["at"], trial


def _key_of(step: str, machine: str) -> tuple[dict[str, str], str]:
    """(key, how rows are cut) of `TASK SHAPE, VERSIONS | SETUP | CUT`. Raises ValueError for one of before tasks and
    libraries were part of it."""
    model, setup, cut = step.split(" | ")
    (task, shape), versions = model.partition(", ")[0].split(" "), model.partition(", ")[2]
    for suffix in _SUFFIXES:
        machine = machine.removesuffix(suffix)
    return {"task": task, "shape": shape, "setup": setup, "device": machine, "versions": versions}, cut


def _key_with_data(text: str) -> dict[str, str]:
    """The key of `MACHINE: STEP: DIGEST OF THE DATA`: rows and data are part of the setup."""
    machine_and_step, _, data = text.rpartition(": ")
    machine, _, step = machine_and_step.rpartition(": ")
    key, cut = _key_of(step, machine)
    return key | {"setup": f"{key['setup']} | {cut} | {data}"}


_READERS = {
    "calibration.json": _calibration,
    "memory.json": _peaks,
    "micro_batches.json": _micro_batches,
    "gains.json": _gains,
    "trials.json": _trials,
}
