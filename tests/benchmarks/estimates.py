"""Predicted against measured: memory and time of six configurations whose activations differ 18 times.

    python tests/benchmarks/estimates.py [--only PART OF A NAME] [--device cuda] [--times K] [--steps N] [--json FILE]

--steps 20: all with so few steps. --times 8: eight times as wide and with eight times the rows, for a card.

Each configuration is a real run of the program in a child process, with a state folder of its own, so that nothing is
known about the machine beforehand. Predictions are those of the run's own plan.json and of runs.remaining at step
10 (or 5 % of the run); the rest of the run is measured to RunFinished, text samples and the final model counted in. The
child notes the resident memory when torch, transformers and their threads are there, and the peak from then to the end;
on a card the peak is what torch has allocated, and the plan's lines for what it does not count are left out.
Steps are timed fairly only on a machine that does nothing else: the load is printed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

from tui_trainer.planning.measured_steps import NOT_ALLOCATED
from tui_trainer.runs.events import Event, RunFinished, StepDone, from_line
from tui_trainer.runs.state import RunState
from tui_trainer.runs.steps_and_eta import eta_seconds

MEMORY_TOLERANCE, TIME_TOLERANCE = 0.20, 0.25
FIRST_STEPS, FIRST_SHARE = 10, 0.05
TEXT_CHARACTERS = 400_000
EVALUATION_BATCHES = 6


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration. A micro-batch is `rows` of `row_tokens`."""

    name: str
    hidden_size: int
    layers: int
    heads: int
    key_value_heads: int | None = None
    rows: int
    row_tokens: int
    accumulation: int = 1
    dropout: float = 0.0
    steps: int

    def settings(self) -> dict[str, Any]:
        return {
            "data.path": "sample:python-reference",
            "data.max_chars": TEXT_CHARACTERS,
            "data.max_length": self.row_tokens,
            "model.scratch.hidden_size": self.hidden_size,
            "model.scratch.num_hidden_layers": self.layers,
            "model.scratch.num_attention_heads": self.heads,
            "model.scratch.num_key_value_heads": self.key_value_heads or self.heads,
            "model.scratch.attention_dropout": self.dropout,
            "training.per_device_train_batch_size": self.rows,
            "training.effective_batch_size": self.rows * self.accumulation,
            "training.max_steps": self.steps,
            "evaluation.max_eval_rows": EVALUATION_BATCHES * self.rows,
        }

    def larger(self, times: int) -> Case:
        """So many times as wide, with so many times the rows."""
        name = f"{times} times {self.name}" if times > 1 else self.name
        return replace(self, name=name, hidden_size=times * self.hidden_size, heads=times * self.heads,
                       key_value_heads=self.key_value_heads and times * self.key_value_heads,
                       rows=times * self.rows)  # fmt: skip


CASES = (
    Case(name="4 x 128, accumulation 4", hidden_size=256, layers=4, heads=4, rows=4, row_tokens=128,
         accumulation=4, steps=40),
    Case(name="2 x 64, 38 M weights", hidden_size=512, layers=12, heads=8, rows=2, row_tokens=64, steps=30),
    Case(name="16 x 128, the quickstart", hidden_size=128, layers=4, heads=4, rows=16, row_tokens=128, steps=100),
    Case(name="8 x 512, 2 key/value heads", hidden_size=256, layers=3, heads=8, key_value_heads=2, rows=8,
         row_tokens=512, steps=24),
    Case(name="8 x 256, dropout", hidden_size=192, layers=4, heads=6, rows=8, row_tokens=256, dropout=0.1, steps=30),
    Case(name="64 x 192", hidden_size=128, layers=6, heads=4, rows=64, row_tokens=192, steps=20),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was predicted for one run, and what it did. Bytes and seconds; `rest` is what came after the first steps."""

    name: str
    activation_bytes: int
    predicted_bytes: int
    measured_bytes: int
    planned_step_seconds: float | None
    step_seconds: float
    predicted_rest_seconds: float
    rest_seconds: float

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def time_error(self) -> float:
        return self.predicted_rest_seconds / self.rest_seconds - 1


def measure(case: Case, folder: Path, device: str) -> Comparison:
    """Run one configuration in a child process, and compare."""
    settings = {**case.settings(), "output.runs_dir": folder, "output.name": "run"}
    assignments = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    assignments += ["--gpu", "none"] if device == "cpu" else []
    report = folder / "memory.json"
    child = subprocess.run(
        [sys.executable, __file__, "--child", str(report), "--no-ui", *assignments],
        env={**os.environ, "TUI_TRAINER_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
        check=False,
    )
    if child.returncode:
        raise SystemExit(f"{case.name}: the run ended with {child.returncode}\n{child.stdout}\n{child.stderr}")
    return compare(case.name, folder / "run", json.loads(report.read_text()))


def compare(name: str, run: Path, memory: dict[str, int]) -> Comparison:
    plan = json.loads((run / "plan.json").read_text())
    events = [from_line(line) for line in (run / "journal.jsonl").read_bytes().splitlines()]
    first = max(FIRST_STEPS, round(plan["total_steps"]["value"] * FIRST_SHARE))
    seen_at, predicted = prediction_after(events, first)
    finished = next(event for event in events if isinstance(event, RunFinished))
    steps = [event for event in events if isinstance(event, StepDone)]
    step_seconds = [event.step_seconds for event in steps]
    parts = {part["name"]: part["bytes"] for part in plan["memory_parts"]}
    on_card = plan["device"] == "cuda"
    return Comparison(
        name=name,
        activation_bytes=parts["activations"],
        predicted_bytes=sum(size for part, size in parts.items() if not on_card or part not in NOT_ALLOCATED),
        measured_bytes=steps[-1].peak_memory_bytes if on_card else memory["peak"] - memory["before"],
        planned_step_seconds=plan["step_seconds"]["value"],
        step_seconds=median(step_seconds[2:]),
        predicted_rest_seconds=predicted,
        rest_seconds=_seconds(finished.at) - _seconds(seen_at),
    )


def prediction_after(events: Sequence[Event], first: int) -> tuple[str, float]:
    """When a step was in the journal, and how long the state then said that the run would still take."""
    state = RunState()
    for event in events:
        state.apply(event)
        if isinstance(event, StepDone) and event.step == first:
            left = eta_seconds(state)
            assert left is not None
            return event.at, left
    raise SystemExit(f"the run never came to step {first}")


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def run_child(report: Path, arguments: list[str]) -> int:
    """The program itself, with its memory noted from the moment when everything is imported."""
    from tui_trainer.hardware.environment import prepare_environment

    prepare_environment()
    import torch
    from transformers import LlamaForCausalLM
    from transformers.generation import GenerationMixin

    from tui_trainer.cli import main
    from tui_trainer.training import run as training

    assert LlamaForCausalLM and GenerationMixin, "transformers imports them at first use"
    real_run, noted = training.run, {}

    def watched_run(*parts: Any) -> Any:
        square = torch.ones(256, 256)
        (square @ square).sum()  # so that the thread pools are there
        ctypes.CDLL(None).malloc_trim(0)  # so that the run cannot hide in what preparing the data left free
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
        noted["before"] = _resident_bytes("VmRSS")
        result = real_run(*parts)
        noted["peak"] = _resident_bytes("VmHWM")
        return result

    training.run = watched_run
    code = main(arguments)
    report.write_text(json.dumps(noted))
    return code


def _resident_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


HEADER = f"""\
{"":26}|        memory, MB                        | seconds of a step    | seconds of the rest
{"configuration":26}| activations predicted measured   error | planned     measured | predicted measured error"""


def row(done: Comparison) -> str:
    return (
        f"{done.name:26}| {done.activation_bytes / 1e6:11.0f} {done.predicted_bytes / 1e6:9.0f} "
        f"{done.measured_bytes / 1e6:8.0f} {done.memory_error:+7.0%} | "
        f"{done.planned_step_seconds or math.nan:7.3f}  {done.step_seconds:11.3f} | "
        f"{done.predicted_rest_seconds:9.1f} {done.rest_seconds:8.1f} {done.time_error:+5.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    print(HEADER)
    results = []
    for case in (case.larger(chosen.times) for case in CASES if chosen.only in case.name):
        case = replace(case, steps=chosen.steps or case.steps)
        with tempfile.TemporaryDirectory() as folder:
            results.append(measure(case, Path(folder), chosen.device))
        print(f"{row(results[-1])}   load {os.getloadavg()[0]:.1f}", flush=True)
        if chosen.json:
            chosen.json.write_text(json.dumps([asdict(done) for done in results], indent=1))
    memory = sum(abs(done.memory_error) <= MEMORY_TOLERANCE for done in results)
    time = sum(abs(done.time_error) <= TIME_TOLERANCE for done in results)
    print(f"memory: {memory} of {len(results)} within 20 %; time: {time} of {len(results)} within 25 %")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(run_child(Path(sys.argv[2]), sys.argv[3:]))
    main()
