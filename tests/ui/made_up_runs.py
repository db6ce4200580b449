"""Runs that were never made, for pictures of the Runs screen: nothing in them depends on where the tests run."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from tui_trainer.launching.export import Choice
from tui_trainer.runs.comparison import ComparedRun, Comparison, CurvePoint, Difference
from tui_trainer.runs.overview import RunOverview

NOW = datetime(2026, 11, 20, 18, 30, tzinfo=UTC)
MIB = 2**20
_FOLDER = Path("/data/runs")


def made_up(name: str, status: str, step: int, loss: float | None, **more) -> RunOverview:
    curve = tuple(loss + 3 * math.exp(-n / 4) for n in range(24)) if loss else ()
    about = RunOverview(
        name=name, path=_FOLDER / name, status=status, task="char_lm", step=step, total_steps=500, epoch=step / 165,
        loss=loss, loss_curve=curve, eval_loss=loss and loss + 0.1, best=loss and loss + 0.1,
        started_at="2026-11-20T18:02:38.000Z", last_event_at="2026-11-20T18:04:00.000Z", size_bytes=35 * MIB,
        freed_bytes=34 * MIB,
    )  # fmt: skip
    return replace(about, **more)


RUNS = [
    made_up("chat-20261120-182700", "training", 210, 1.92, alive=True, task="chat", model="Qwen/Qwen2.5-0.5B",
            last_event_at="2026-11-20T18:29:59.500Z"),
    made_up("quickstart-20261120-180238", "finished", 500, 1.42),
    made_up("quickstart-20261119-091522", "interrupted", 120, 1.71, last_event_at="2026-11-19T09:17:00.000Z"),
    made_up("topics-bert-20261118-220103", "finished", 300, 0.31, task="sequence_classification",
            model="google-bert/bert-base-uncased", scores={"accuracy": 0.913, "macro_f1": 0.901}, total_steps=300,
            metric="accuracy", best=0.916, last_event_at="2026-11-18T22:40:00.000Z", size_bytes=1340 * MIB),
    made_up("too-far-20261117-101010", "failed", 17, math.nan, loss_curve=(4.1, math.nan), eval_loss=None, best=None,
            last_event_at="2026-11-17T10:11:00.000Z"),
    made_up("elsewhere-20261116-000000", "stopped", 250, 1.5, last_event_at="2027-01-01T00:00:00.000Z"),
    made_up("old", "half deleted", 0, None, path=_FOLDER / ".deleting-old", total_steps=0),
    made_up("thesis", "no run folder", 0, None, total_steps=0, size_bytes=None),
    made_up("away", "gone", 0, None),
]  # fmt: skip


def compared(one: RunOverview, final: float, seconds_per_step: float, eval_steps: int) -> ComparedRun:
    curve = [
        CurvePoint(step=n, tokens=2_048 * n, seconds=seconds_per_step * n, loss=final + 3 * math.exp(-n / 60))
        for n in range(5, one.step + 1, 5)
    ]
    held_out = [replace(point, loss=point.loss + 0.1) for point in curve if point.step % eval_steps == 0]
    return ComparedRun(
        name=one.name, path=one.path, status=one.status, task=one.task, step=one.step, total_steps=one.total_steps,
        loss=one.loss, eval_loss=one.eval_loss, best_eval_loss=one.eval_loss, best_eval_step=one.step, metric="loss",
        best=one.best, best_step=one.step, scores=one.scores, seconds=seconds_per_step * one.step,
        tokens=2_048 * one.step, tokens_per_second=2_048 / seconds_per_step, peak_memory_bytes=420 * MIB,
        parameters=818_000, trained_parameters=818_000, train_curve=tuple(curve), eval_curve=tuple(held_out),
    )  # fmt: skip


COMPARISON = Comparison(
    runs=(compared(RUNS[0], 1.9, 0.21, 50), compared(RUNS[1], 1.4, 0.125, 100), compared(RUNS[2], 1.6, 0.125, 60)),
    differences=(
        Difference(key="training.learning_rate", values=(2e-4, 3e-3, 1e-3)),
        Difference(key="data.path", values=("/data/conversations.jsonl", "sample:topics", "sample:topics")),
        Difference(key="plan.effective_batch_size", values=(8, 16, 16)),
    ),
)

CHOICES = tuple(
    Choice(
        name=name, title=title, needed_bytes=needed * MIB, refusal=refusal, is_there=name == "int8",
        expected_seconds=41.0 if name == "adapter" else None,
    )
    for name, title, needed, refusal in (
        ("adapter", "adapter, for peft", 4, ""),
        ("gguf", "GGUF, for llama.cpp", 2000, "llama.cpp's converter is not on this machine: "
         "`git clone --depth 1 https://github.com/ggml-org/llama.cpp`, or name its folder in LLAMA_CPP_DIR"),
        ("int8", "int8, for CPUs, by torchao", 2000, ""),
        ("merged", "whole model, adapter merged", 1000, ""),
        ("onnx", "ONNX, for ONNX Runtime", 2000, ""),
    )
)  # fmt: skip
CERTIFICATE_WORDS = (
    "reloaded in a fresh process and compared on 200 held-out rows:",
    "  logits differ by 2.1e-06 of the largest (allowed 1e-04)",
    "  held-out loss 1.4210 -> 1.4210",
    "  942.3 MiB -> 942.3 MiB, 31 -> 30 ms a row on the CPU",
)
