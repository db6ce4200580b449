"""Predicted against measured: memory and time of configurations whose activations differ by more than 20 times.

    python tests/benchmarks/estimates.py            the table; about five minutes
    python tests/benchmarks/estimates.py -k NAME    one configuration

Each configuration is a real run of the program in a child process, with a state folder of its own, so that nothing is
known about the machine beforehand. Predictions are those of the run's own plan.json and RunState. The child notes the
resident memory when torch, transformers and their threads are there, and the highest from then to the end of the run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from statistics import median
from typing import Any

MB = 1e6
MEMORY_TOLERANCE, TIME_TOLERANCE = 0.20, 0.25
FIRST_STEPS = 10
FIRST_SHARE = 0.05
TEXT_CHARACTERS = 400_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration: width, layers, heads, rows x tokens of a micro-batch, and what is special about it."""

    name: str
    hidden_size: int
    layers: int
    heads: int
    key_value_heads: int = 0
    row_tokens: int
    micro_batch: int
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
            "training.per_device_train_batch_size": self.micro_batch,
            "training.effective_batch_size": self.micro_batch * self.accumulation,
            "training.max_steps": self.steps,
        }


CASES = (
    Case(name="short rows, micro-batch 16", hidden_size=128, layers=4, heads=4, row_tokens=128, micro_batch=16, steps=200),
    Case(name="accumulation 4", hidden_size=256, layers=4, heads=4, row_tokens=128, micro_batch=4, accumulation=4, steps=60),
    Case(name="37 M weights, 128 tokens", hidden_size=512, layers=12, heads=8, row_tokens=64, micro_batch=2, steps=60),
    Case(name="shared key/value heads", hidden_size=256, layers=6, heads=8, key_value_heads=2, row_tokens=128, micro_batch=32, steps=30),
    Case(name="dropout, rows of 256", hidden_size=192, layers=4, heads=6, row_tokens=256, micro_batch=16, dropout=0.1, steps=40),
    Case(name="rows of 512", hidden_size=256, layers=3, heads=4, row_tokens=512, micro_batch=8, steps=30),
    Case(name="micro-batch 64", hidden_size=128, layers=8, heads=4, row_tokens=256, micro_batch=64, steps=20),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was predicted for one run and what it did. Bytes and seconds."""

    name: str
    activation_bytes: int
    predicted_bytes: int
    measured_bytes: int
    planned_step_seconds: float
    step_seconds: float
    predicted_rest_seconds: float
    rest_seconds: float
    detail: dict

    @property
    def memory_error(self) -> float:
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def time_error(self) -> float:
        return self.predicted_rest_seconds / self.rest_seconds - 1


def measure(case: Case, folder: Path) -> Outcome:
    """Run one configuration in a child process, and compare."""
    report = folder / "memory.json"
    assignments = [f"{key}={value}" for key, value in {**case.settings(), "output.runs_dir": folder, "output.name": "run"}.items()]
    arguments = ["--no-ui", *(part for assignment in assignments for part in ("--set", assignment))]
    child = subprocess.run(
        [sys.executable, __file__, "--child", str(report), *arguments],
        env={**os.environ, "TUI_TRAINER_HOME": str(folder / "home")},
        capture_output=True,
        text=True,
    )
    if child.returncode:
        raise SystemExit(f"{case.name}: the run ended with {child.returncode}\n{child.stdout}\n{child.stderr}")
    return compare(case.name, folder / "run", json.loads(report.read_text()))


def compare(name: str, run: Path, memory: dict[str, int]) -> Outcome:
    from tui_trainer.runs.events import RunFinished, StepDone, from_line
    from tui_trainer.runs.state import RunState

    plan = json.loads((run / "plan.json").read_text())
    events = [from_line(line) for line in (run / "journal.jsonl").read_text().splitlines()]
    first = max(FIRST_STEPS, round(plan["total_steps"]["value"] * FIRST_SHARE))
    state = RunState()
    for event in events:
        state.apply(event)
        if isinstance(event, StepDone) and event.step == first:
            seen = event
            predicted_rest = state.eta_seconds
    end = next(event for event in events if isinstance(event, RunFinished))
    parts = {part["name"]: part["bytes"] for part in plan["memory_parts"]}
    measured_steps = [event.step_seconds for event in events if isinstance(event, StepDone)]
    return Outcome(
        name=name,
        activation_bytes=parts["activations"],
        predicted_bytes=plan["memory_bytes"]["value"],
        measured_bytes=memory["peak_bytes"] - memory["before_bytes"],
        planned_step_seconds=plan["step_seconds"]["value"],
        step_seconds=median(measured_steps[2:]),
        predicted_rest_seconds=predicted_rest,
        rest_seconds=_time(end.at) - _time(seen.at),
        detail=dict(memory=memory,parts=parts,flops=plan["step_flops"],reason=plan["step_seconds"]["reason"],
            mean_first=sum(measured_steps[2:first])/(first-2), steps_rest=sum(measured_steps[first:]),
            evals=[round(e.seconds,2) for e in state.evals], saves=[(round(e.seconds,2),e.bytes) for e in state.checkpoints],data=(state.data.rows,state.data.eval_rows)),
    )


def _time(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def run_child(report: Path, arguments: list[str]) -> int:
    """The program itself, with its memory noted from the moment when everything is imported."""
    import torch
    from transformers import LlamaForCausalLM
    from transformers.generation import GenerationMixin

    from tui_trainer.cli import main
    from tui_trainer.training import run as training

    import threading,time
    real_run, noted = training.run, {}
    def sample():
        best=0
        while True:
            s=_status(); a=s['RssAnon']+s['RssFile']
            if a>best: best=a; noted.update(anon=s['RssAnon'],file=s['RssFile'])
            time.sleep(.01)

    def watched_run(*args: Any) -> Any:
        a = torch.ones(256, 256)
        (a @ a).sum()  # the thread pools are there
        _trim()
        Path("/proc/self/clear_refs").write_text("5")
        noted["before_bytes"] = _resident("VmRSS")
        s=_status(); noted.update(anon0=s['RssAnon'],file0=s['RssFile'])
        threading.Thread(target=sample,daemon=True).start()
        result = real_run(*args)
        noted["peak_bytes"] = _resident("VmHWM")
        return result

    training.run = watched_run
    code = main(arguments)
    report.write_text(json.dumps(noted))
    return code


def _trim():
    """Give back what preparing the data left free, so that the run cannot hide in it."""
    import ctypes

    ctypes.CDLL(None).malloc_trim(0)


def _status():
    r={}
    for line in Path("/proc/self/status").read_text().splitlines():
        k,_,v=line.partition(":")
        if k.startswith(("Rss","Vm")): r[k]=int(v.split()[0])*1024
    return r


def _resident(field: str) -> int:
    return _status()[field]

if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        sys.exit(run_child(Path(sys.argv[2]), sys.argv[3:]))
    for case in CASES:
        if len(sys.argv)>1 and sys.argv[1] not in case.name: continue
        with tempfile.TemporaryDirectory(dir="/tmp/est") as t:
            import time
            t0=time.time()
            o=measure(case,Path(t))
        print(f"{o.name}: act {o.activation_bytes/MB:.1f} pred {o.predicted_bytes/MB:.1f} meas {o.measured_bytes/MB:.1f} err {o.memory_error:+.0%} plan step {o.planned_step_seconds:.3f} step {o.step_seconds:.3f} rest {o.predicted_rest_seconds:.1f}/{o.rest_seconds:.1f} {o.time_error:+.0%} took {time.time()-t0:.0f}")
        print('   ',{k:(round(v/1e6,1)) for k,v in o.detail['memory'].items()},{k:(round(v/1e6,1)) for k,v in o.detail['parts'].items()})
        print('   ',{k:v for k,v in o.detail.items() if k not in('memory','parts')}, flush=True)
