"""Predicted against measured: peak memory and time of a step over 41 configurations of ten families.

    python tests/benchmarks/memory_grid.py [--unlisted | --crossed] [--device cuda] [--only PART OF A NAME]
                                           [--cases N] [--times K] [--calibrate] [--simulate]

--unlisted: 13 of families to which nothing was fitted. --crossed: 32, four families with each attention, with and
without checkpoints, full and with LoRA. --simulate: two other ways to predict memory stand beside the plan's: by the
general formula that a plan falls back to where no layer can be counted, and by a step on tensors without numbers
(`simulated_step.py`), on a CPU with what any run loads. --times 4: four times as wide, for a card; --cases 10: ten of
them, evenly spaced; --json FILE keeps the figures. Where one fails it says so, and the others go on. --calibrate: a
run with half the rows in a pass comes first, and a second prediction goes by its peak, as the plan does after a run or
a rehearsal of the same model.

Each configuration is a child process with a small model of random weights, built from its config and trained by the
program's own parts (loss, step, optimizer, adapters) for some steps, an evaluation between them. On a CPU resident
bytes count, from the moment when a tiny model of the family has loaded the libraries; on a GPU allocated bytes, so the
plan's lines `pieces` and `context` are left out there. The first measured steps calibrate the time of those after them;
on a CPU it is processor time of one thread, which other programs disturb less than wall time: the load is printed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from memory_grid_cases import CASES, CROSSED, UNLISTED, Case

from tui_trainer.planning.duration import step_time, training_flops
from tui_trainer.planning.measured_steps import (
    NOT_ALLOCATED,
    StepKey,
    correct_parts,
    keep_calibration,
    read_calibration,
)
from tui_trainer.planning.memory.cpu import LIBRARY_BYTES
from tui_trainer.planning.memory.dry_run import measure_layer
from tui_trainer.planning.memory.estimate import memory_parts
from tui_trainer.planning.memory.parts import BatchSizes, MemoryPart
from tui_trainer.planning.training_setup import MeasuredPeak, TrainingSetup

TOLERANCES, TIME_TOLERANCE = (0.10, 0.15, 0.20), 0.15
THREADS = 1
GENERAL, SIMULATED = "general formula", "simulated step"
STEPS, EVALUATE_AFTER, CALIBRATION_STEPS = 8, 2, slice(2, 5)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was predicted for one configuration, and what it did. Bytes, and seconds of a step."""

    name: str
    predicted_bytes: int
    measured_bytes: int
    guessed_seconds: float | None
    predicted_seconds: float
    measured_seconds: float
    parts: dict[str, int]
    calibrated_bytes: int = 0
    other_bytes: dict[str, int] = field(default_factory=dict)
    """By other ways to predict it."""

    def memory_error(self, found_bytes: int | None = None) -> float:
        return (self.predicted_bytes if found_bytes is None else found_bytes) / self.measured_bytes - 1

    @property
    def time_error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1


class ChildFailed(Exception):
    """A configuration could not be measured."""


def compare(case: Case, device: str, *, calibrates: bool, simulates: bool) -> Comparison:
    """Run one configuration in a child process, and compare."""
    shape, setup, calibrated = case.shape(), completed(case, case.setup(device)), 0

    def parts_with(rows: int, eval_rows: int, setup: TrainingSetup = setup) -> tuple[MemoryPart, ...]:
        batch = BatchSizes(rows=rows, eval_rows=eval_rows, row_tokens=case.row_tokens, accumulation=case.accumulation,
                      most_labels=case.labels * rows // case.rows,
                      most_eval_labels=case.labels * eval_rows // case.rows)  # fmt: skip
        return memory_parts(shape, setup, batch)

    eval_rows = case.eval_rows or case.rows
    parts = parts_with(case.rows, eval_rows)
    if calibrates:
        half = replace(case, rows=max(1, case.rows // 2), eval_rows=max(1, eval_rows // 2),
                       labels=case.labels * max(1, case.rows // 2) // case.rows)  # fmt: skip
        peak = MeasuredPeak(
            rows=half.rows, eval_rows=half.eval_rows or 1, bytes=run_in_child(half, device)["peak_bytes"], runs=1
        )
        calibrated = sum(counted_parts(correct_parts(parts, case.rows, device, peak, parts_with), device).values())
    others = {}
    if simulates:
        general = counted_parts(parts_with(case.rows, eval_rows, replace(setup, counted=None)), device)
        others = {GENERAL: sum(general.values()), SIMULATED: simulated_bytes(case, device)}
    done = run_in_child(case, device)
    counted = counted_parts(parts, device)
    tokens = case.rows * case.row_tokens * case.accumulation
    flops = training_flops(shape, setup, tokens=tokens, row_tokens=case.row_tokens)
    key = StepKey("", "", case.name)
    guess = step_time(flops, shape.hidden_size, read_calibration("none", key, flops), setup)
    first, rest = done["seconds"][CALIBRATION_STEPS], done["seconds"][CALIBRATION_STEPS.stop :]
    keep_calibration("this", key, step_seconds=median(first), flops=flops)
    known = read_calibration("this", key, flops)
    predicted = step_time(flops, shape.hidden_size, known, setup).value
    assert predicted is not None
    return Comparison(
        name=case.name,
        predicted_bytes=sum(counted.values()),
        measured_bytes=done["peak_bytes"],
        guessed_seconds=guess.value,
        predicted_seconds=predicted,
        measured_seconds=median(rest),
        parts=counted,
        calibrated_bytes=calibrated,
        other_bytes=others,
    )


def simulated_bytes(case: Case, device: str) -> int:
    """What a step on tensors without numbers allocates; on a CPU with what is loaded at first use."""
    from simulated_step import simulated_peak_bytes

    return simulated_peak_bytes(case, device) + (LIBRARY_BYTES if device == "cpu" else 0)


def completed(case: Case, setup: TrainingSetup) -> TrainingSetup:
    """With what a dry run counts."""
    layer, why_not = measure_layer(case.config(), case.shape(), setup, case.row_tokens)
    if layer is None:
        raise ChildFailed(f"{case.name}: {why_not}")
    return replace(setup, counted=layer)


def counted_parts(parts: tuple[MemoryPart, ...], device: str) -> dict[str, int]:
    return {part.name: part.bytes for part in parts if device == "cpu" or part.name not in NOT_ALLOCATED}


def run_in_child(case: Case, device: str) -> dict[str, Any]:
    child = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps(asdict(case)), "--device", device],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(THREADS)},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise ChildFailed(f"{case.name}: the child ended with {child.returncode}\n{child.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return found


HEADER = f"""\
{"":42}|      peak, MB              | seconds of a step
{"configuration":42}| predicted measured   error | guessed predicted measured error"""


def row(done: Comparison) -> str:
    guessed = "      -" if done.guessed_seconds is None else f"{done.guessed_seconds:7.3f}"
    memory = f"{done.predicted_bytes / 1e6:9.0f} {done.measured_bytes / 1e6:8.0f} {done.memory_error():+7.1%}"
    seconds = f"{guessed} {done.predicted_seconds:9.3f} {done.measured_seconds:8.3f} {done.time_error:+5.0%}"
    others = {**done.other_bytes, "calibrated": done.calibrated_bytes}
    shown = "".join(
        f" | {found / 1e6:6.0f} {done.memory_error(found):+7.1%} {n}" for n, found in others.items() if found
    )
    return f"{done.name:42}| {memory} | {seconds}{shown}"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--unlisted", action="store_true")
    options.add_argument("--crossed", action="store_true")
    options.add_argument("--simulate", action="store_true")
    options.add_argument("--only", default="")
    options.add_argument("--cases", type=int, default=0)
    options.add_argument("--times", type=int, default=1)
    options.add_argument("--calibrate", action="store_true")
    options.add_argument("--json", type=Path)
    options.add_argument("--child")
    chosen = options.parse_args()
    if chosen.child:
        from memory_grid_child import run

        print(json.dumps(run(Case(**json.loads(chosen.child)), chosen.device)))
        return
    os.environ["OPENBLAS_NUM_THREADS"] = str(THREADS)  # numpy's rate is for as many threads as train
    print(HEADER)
    results, failed = [], []
    listed = UNLISTED if chosen.unlisted else CROSSED if chosen.crossed else CASES
    named = [case.wider(chosen.times) for case in listed if chosen.only in case.name]
    count = min(chosen.cases or len(named), len(named))
    cases = [named[index * len(named) // count] for index in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUI_TRAINER_HOME"] = folder
        for case in dict.fromkeys(cases):
            try:
                results.append(compare(case, chosen.device, calibrates=chosen.calibrate, simulates=chosen.simulate))
            except ChildFailed as error:
                failed.append(str(error))
                print(error, flush=True)
                continue
            finally:
                if chosen.json:
                    found = {"configurations": [asdict(done) for done in results], "failed": failed}
                    chosen.json.write_text(json.dumps(found, indent=1))
            print(f"{row(results[-1])}   load {os.getloadavg()[0]:.1f}", flush=True)
    summary(results)
    if failed:
        sys.exit(f"{len(failed)} configurations could not be measured")


def summary(results: list[Comparison]) -> None:
    if not results:
        return
    found = {
        "memory": {done.name: done.predicted_bytes for done in results},
        "memory after calibration": {done.name: done.calibrated_bytes for done in results if done.calibrated_bytes},
        **{way: {done.name: done.other_bytes[way] for done in results} for way in results[0].other_bytes},
    }
    for way, predicted in found.items():
        errors = [(done.memory_error(predicted[done.name]), done.memory_error()) for done in results
                  if done.name in predicted]  # fmt: skip
        for tolerance in TOLERANCES if errors else ():
            within = sum(abs(error) <= tolerance for error, _ in errors)
            print(f"{way}: {within} of {len(errors)} within {tolerance:.0%} ({within / len(errors):.0%})")
        if way in results[0].other_bytes:
            nearer = sum(abs(error) < abs(planned) for error, planned in errors)
            print(f"{way}: nearer than the plan in {nearer} of {len(errors)}")
    guessed = [done for done in results if done.guessed_seconds]
    timely = sum(abs(done.guessed_seconds / done.measured_seconds - 1) <= TIME_TOLERANCE for done in guessed)
    print(f"time before calibration: {timely} of {len(guessed)} within {TIME_TOLERANCE:.0%}")
    timely = sum(abs(done.time_error) <= TIME_TOLERANCE for done in results)
    print(f"time after calibration: {timely} of {len(results)} within {TIME_TOLERANCE:.0%}")


if __name__ == "__main__":
    main()
