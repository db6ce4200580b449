"""Predicted against measured: peak memory and time of a step over 41 configurations of ten families.

    python tests/benchmarks/memory_grid.py [--device cuda] [--only PART OF A NAME] [--cases N] [--times K]

--times 4: four times as wide, for a card; --cases 10: ten of them, evenly spaced; --json FILE keeps the figures. Where
one fails it says so, and the others go on.

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
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from memory_grid_cases import CASES, Case

from tui_trainer.planning.calibration import keep_calibration, read_calibration
from tui_trainer.planning.duration import step_time, training_flops
from tui_trainer.planning.measured_memory import NOT_ALLOCATED
from tui_trainer.planning.memory.estimate import memory_parts

TOLERANCES, TIME_TOLERANCE = (0.10, 0.20), 0.15
THREADS = 1
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

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def time_error(self) -> float:
        return self.predicted_seconds / self.measured_seconds - 1


class ChildFailed(Exception):
    """A configuration could not be measured."""


def compare(case: Case, device: str, state_folder: Path) -> Comparison:
    """Run one configuration in a child process, and compare."""
    done = run_in_child(case, device)
    shape, setup = case.shape(), case.setup(device)
    parts = memory_parts(shape, setup, micro_batch=case.rows, eval_batch=case.eval_rows or case.rows,
                         row_tokens=case.row_tokens, accumulation=case.accumulation, most_labels=case.labels,
                         most_eval_labels=case.labels)  # fmt: skip
    counted = {part.name: part.bytes for part in parts if device == "cpu" or part.name not in NOT_ALLOCATED}
    tokens = case.rows * case.row_tokens * case.accumulation
    flops = training_flops(shape, setup, tokens=tokens, row_tokens=case.row_tokens)
    guess = step_time(flops, shape.hidden_size, read_calibration(state_folder, "none", THREADS, "", flops), setup)
    first, rest = done["seconds"][CALIBRATION_STEPS], done["seconds"][CALIBRATION_STEPS.stop :]
    keep_calibration(state_folder, "this", THREADS, case.name, step_seconds=median(first), flops=flops)
    known = read_calibration(state_folder, "this", THREADS, case.name, flops)
    predicted = step_time(flops, shape.hidden_size, known, setup).seconds
    assert predicted is not None
    return Comparison(
        name=case.name,
        predicted_bytes=sum(counted.values()),
        measured_bytes=done["peak_bytes"],
        guessed_seconds=guess.seconds,
        predicted_seconds=predicted,
        measured_seconds=median(rest),
        parts=counted,
    )


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
    memory = f"{done.predicted_bytes / 1e6:9.0f} {done.measured_bytes / 1e6:8.0f} {done.memory_error:+7.1%}"
    seconds = f"{guessed} {done.predicted_seconds:9.3f} {done.measured_seconds:8.3f} {done.time_error:+5.0%}"
    return f"{done.name:42}| {memory} | {seconds}"


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--only", default="")
    options.add_argument("--cases", type=int, default=len(CASES))
    options.add_argument("--times", type=int, default=1)
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
    named = [case.wider(chosen.times) for case in CASES if chosen.only in case.name]
    cases = [named[index * len(named) // chosen.cases] for index in range(chosen.cases)][: len(named)]
    with tempfile.TemporaryDirectory() as folder:
        for case in dict.fromkeys(cases):
            try:
                results.append(compare(case, chosen.device, Path(folder)))
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
    for tolerance in TOLERANCES:
        within = sum(abs(done.memory_error) <= tolerance for done in results)
        print(f"memory: {within} of {len(results)} within {tolerance:.0%} ({within / len(results):.0%})")
    timely = sum(abs(done.time_error) <= TIME_TOLERANCE for done in results)
    print(f"time after calibration: {timely} of {len(results)} within {TIME_TOLERANCE:.0%}")


if __name__ == "__main__":
    main()
