"""Predicted against measured: peak memory and time of a step over 30 configurations of five families.

    python tests/benchmarks/memory_grid.py [--device cuda] [--only PART OF A NAME] [--json FILE]

Each configuration is a child process with a small model of random weights, built from its config and trained by the
program's own parts (loss, step, optimiser, adapters) for some steps, an evaluation between them. On a CPU resident
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from tui_trainer.models.shape import ModelShape, shape_of
from tui_trainer.planning.calibration import keep_calibration, read_calibration
from tui_trainer.planning.duration import step_time, training_flops
from tui_trainer.planning.memory import memory_parts
from tui_trainer.planning.regime import Dtype, Precision, Regime

TOLERANCES, TIME_TOLERANCE = (0.10, 0.20), 0.15
THREADS = 1
STEPS, EVALUATE_AFTER, CALIBRATION_STEPS = 8, 2, slice(2, 5)
NOT_ALLOCATED = ("pieces", "context")
DOCUMENTS_A_ROW = 4


@dataclass(frozen=True, kw_only=True)
class Case:
    """One configuration. A micro-batch is `rows` of `row_tokens`; `rank` 0: all weights are trained."""

    family: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int | None = None
    head_size: int | None = None
    mlp: int | None = None
    vocabulary: int = 8192
    rows: int
    row_tokens: int
    eval_rows: int | None = None
    accumulation: int = 1
    rank: int = 0
    targets: str = "all-linear"
    precision: Precision = "fp32"
    weights: Dtype = "float32"
    checkpointing: bool = False
    packed: bool = False
    chunk: int = 0
    labels: int = 0
    """Tokens of a pass that have a label, as where short documents are padded; 0: all."""

    @property
    def name(self) -> str:
        """`llama 6x384 8x64 lora16 bf16 ckpt packed`: layers x width, rows x tokens."""
        words = [self.family, f"{self.layers}x{self.hidden}", f"{self.rows}x{self.row_tokens}"]
        words += [f"lora{self.rank}" if self.rank else "full", self.precision]
        words += ["w16"] if self.weights != "float32" else []
        words += ["ckpt"] if self.checkpointing else []
        words += ["packed"] if self.packed else []
        words += [f"chunk{self.chunk}"] if self.chunk else []
        words += [f"labels{self.labels}"] if self.labels else []
        words += [f"acc{self.accumulation}"] if self.accumulation > 1 else []
        return " ".join(words)

    def config(self) -> dict[str, Any]:
        """The fields of config.json."""
        mlp = self.mlp or -(-self.hidden * 8 // 3 // 32) * 32
        common = {"model_type": self.family, "vocab_size": self.vocabulary, "bos_token_id": None, "eos_token_id": None}
        if self.family == "gpt2":
            names = {"n_embd": self.hidden, "n_layer": self.layers, "n_head": self.heads, "n_inner": mlp}
            return {**common, **names, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
        return {
            **common,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads or self.heads,
            "head_dim": self.head_size or self.hidden // self.heads,
            "intermediate_size": mlp,
            "max_position_embeddings": max(1024, self.row_tokens),
            "tie_word_embeddings": self.family in ("qwen2", "gemma"),
        }

    def shape(self) -> ModelShape:
        return shape_of(self.config())

    def regime(self, device: str) -> Regime:
        names = sorted({linear.name for linear in self.shape().linears if not linear.is_head})
        targets = tuple(names if self.targets == "all-linear" else self.targets.split(","))
        return Regime(
            device="cuda" if device == "cuda" else "cpu",
            precision=self.precision,
            weights=self.weights,
            method="lora" if self.rank else "full",
            lora_rank=self.rank,
            lora_targets=targets if self.rank else (),
            gradient_checkpointing=self.checkpointing,
            packed=self.packed,
            loss_chunk_tokens=self.chunk,
        )

    def tiny(self) -> Case:
        return replace(self, hidden=64, layers=1, heads=2, kv_heads=2, head_size=None, mlp=96, vocabulary=64, rows=1,
                       row_tokens=16, eval_rows=1, accumulation=1, labels=0, chunk=8 if self.chunk else 0)  # fmt: skip


HALF: dict[str, Any] = {"precision": "bf16", "weights": "bfloat16"}
CASES = (
    Case(family="llama", hidden=256, layers=6, heads=4, rows=4, row_tokens=256),
    Case(family="llama", hidden=512, layers=6, heads=8, rows=8, row_tokens=64, vocabulary=16384),
    Case(family="llama", hidden=384, layers=8, heads=6, kv_heads=2, rows=2, row_tokens=512),
    Case(family="llama", hidden=640, layers=4, heads=10, rows=2, row_tokens=128, vocabulary=32000),
    Case(family="llama", hidden=512, layers=8, heads=8, rows=4, row_tokens=256, rank=16),
    Case(family="llama", hidden=768, layers=6, heads=12, rows=2, row_tokens=128, rank=8, targets="q_proj,v_proj"),
    Case(family="llama", hidden=512, layers=8, heads=8, rows=4, row_tokens=128, precision="bf16"),
    Case(family="llama", hidden=512, layers=6, heads=8, rows=4, row_tokens=256, **HALF),
    Case(family="llama", hidden=768, layers=8, heads=12, kv_heads=4, rows=2, row_tokens=256, rank=16, **HALF),
    Case(family="llama", hidden=512, layers=10, heads=8, rows=4, row_tokens=256, checkpointing=True),
    Case(family="llama", hidden=512, layers=8, heads=8, rows=4, row_tokens=256, rank=16, checkpointing=True, **HALF),
    Case(family="llama", hidden=384, layers=6, heads=6, rows=4, row_tokens=256, packed=True),
    Case(family="llama", hidden=384, layers=6, heads=6, rows=2, row_tokens=128, accumulation=4),
    Case(family="llama", hidden=512, layers=6, heads=8, rows=2, row_tokens=128, accumulation=4, **HALF),
    Case(family="llama", hidden=384, layers=4, heads=6, rows=8, row_tokens=128, vocabulary=32000, chunk=256),
    Case(family="llama", hidden=384, layers=4, heads=6, rows=2, row_tokens=128, eval_rows=32),
    Case(family="qwen2", hidden=448, layers=6, heads=7, kv_heads=1, mlp=1216, rows=4, row_tokens=128),
    Case(family="qwen2", hidden=512, layers=8, heads=8, kv_heads=2, rows=2, row_tokens=256, rank=32, packed=True),
    Case(family="qwen2", hidden=512, layers=8, heads=8, kv_heads=2, rows=4, row_tokens=128, rank=16, **HALF),
    Case(family="qwen2", hidden=512, layers=6, heads=8, kv_heads=2, rows=4, row_tokens=256, precision="bf16",
         checkpointing=True),
    Case(family="gemma", hidden=512, layers=4, heads=4, kv_heads=1, head_size=128, mlp=2048, rows=4, row_tokens=128),
    Case(family="gemma", hidden=384, layers=6, heads=4, kv_heads=1, head_size=96, mlp=1536, vocabulary=16384, rows=4,
         row_tokens=128, rank=16, **HALF),
    Case(family="gemma", hidden=512, layers=6, heads=8, kv_heads=1, mlp=2048, rows=2, row_tokens=256, rank=16,
         checkpointing=True),
    Case(family="phi", hidden=512, layers=6, heads=8, mlp=2048, rows=2, row_tokens=256),
    Case(family="phi", hidden=512, layers=6, heads=8, mlp=2048, rows=4, row_tokens=128, rank=16),
    Case(family="phi", hidden=384, layers=8, heads=6, mlp=1536, rows=4, row_tokens=128, precision="bf16"),
    Case(family="gpt2", hidden=512, layers=8, heads=8, mlp=2048, rows=4, row_tokens=64),
    Case(family="gpt2", hidden=384, layers=6, heads=6, mlp=1536, rows=4, row_tokens=256, rank=16),
    Case(family="gpt2", hidden=256, layers=4, heads=4, mlp=1024, rows=8, row_tokens=128, vocabulary=32000, labels=320),
    Case(family="gpt2", hidden=512, layers=6, heads=8, mlp=2048, rows=2, row_tokens=256, precision="bf16",
         packed=True),
)  # fmt: skip


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


def compare(case: Case, device: str, state_folder: Path) -> Comparison:
    """Run one configuration in a child process, and compare."""
    done = run_in_child(case, device)
    shape, regime = case.shape(), case.regime(device)
    parts = memory_parts(shape, regime, micro_batch=case.rows, eval_batch=case.eval_rows or case.rows,
                         row_tokens=case.row_tokens, accumulation=case.accumulation, most_labels=case.labels,
                         most_eval_labels=case.labels)  # fmt: skip
    counted = {part.name: part.bytes for part in parts if device == "cpu" or part.name not in NOT_ALLOCATED}
    tokens = case.rows * case.row_tokens * case.accumulation
    flops = training_flops(shape, regime, tokens=tokens, row_tokens=case.row_tokens)
    guess = step_time(flops, shape.hidden_size, read_calibration(state_folder, "none", THREADS, "", flops), regime)
    first, rest = done["seconds"][CALIBRATION_STEPS], done["seconds"][CALIBRATION_STEPS.stop :]
    keep_calibration(state_folder, "this", THREADS, case.name, step_seconds=median(first), flops=flops)
    known = read_calibration(state_folder, "this", THREADS, case.name, flops)
    predicted = step_time(flops, shape.hidden_size, known, regime).seconds
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
        sys.exit(f"{case.name}: the child ended with {child.returncode}\n{child.stderr[-3000:]}")
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
    options.add_argument("--json", type=Path)
    options.add_argument("--child")
    chosen = options.parse_args()
    if chosen.child:
        from memory_grid_child import run

        print(json.dumps(run(Case(**json.loads(chosen.child)), chosen.device)))
        return
    os.environ["OPENBLAS_NUM_THREADS"] = str(THREADS)  # numpy's rate is for as many threads as train
    print(HEADER)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for case in (case for case in CASES if chosen.only in case.name):
            results.append(compare(case, chosen.device, Path(folder)))
            print(f"{row(results[-1])}   load {os.getloadavg()[0]:.1f}", flush=True)
    summary(results)
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(done) for done in results], indent=1))


def summary(results: list[Comparison]) -> None:
    for tolerance in TOLERANCES:
        within = sum(abs(done.memory_error) <= tolerance for done in results)
        print(f"memory: {within} of {len(results)} within {tolerance:.0%} ({within / len(results):.0%})")
    timely = sum(abs(done.time_error) <= TIME_TOLERANCE for done in results)
    print(f"time after calibration: {timely} of {len(results)} within {TIME_TOLERANCE:.0%}")


if __name__ == "__main__":
    main()
