"""One configuration of `memory_grid.py`, trained by the program's own parts. torch lives here."""

from __future__ import annotations

import ctypes
import gc
import warnings
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch
from memory_grid import EVALUATE_AFTER, STEPS, THREADS
from memory_grid_cases import CLASSES, Case
from transformers import AutoConfig

from tui_trainer.config.sections import TrainingSection, TuningSection
from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models.heads import auto_class
from tui_trainer.models.targets import head_modules
from tui_trainer.training.clock import Clock
from tui_trainer.training.components import checkpoint_activations
from tui_trainer.training.optimizer import RunOptimizer
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.step import take_step
from tui_trainer.tuning import find_method

DOCUMENTS_A_ROW = 4
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def run(case: Case, name: str) -> dict[str, Any]:
    """Peak bytes above what the libraries take, and the seconds of each step."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(THREADS)
    device = torch.device(name)
    train(case.tiny(), device)
    gc.collect()
    before = start_counting(device)
    seconds = train(case, device)
    return {"peak_bytes": peak_bytes(device) - before, "seconds": seconds}


def train(case: Case, device: torch.device) -> list[float]:
    """Some steps with an evaluation between them; the seconds of each step, on a CPU those of one busy thread."""
    now = perf_counter if device.type == "cuda" else process_time
    torch.manual_seed(0)
    model = build(case, device)
    mixed_precision, clock = MixedPrecision(case.precision, device), Clock(device)
    optimizer = RunOptimizer(model, TrainingSection(), lr=1e-4)
    loss = loss_of(case, model)
    window = [batch_of(case, case.rows).to(device) for _ in range(case.accumulation)]
    held_out = batch_of(case, case.eval_rows or case.rows).to(device)
    seconds = []
    for step in range(STEPS):
        wait(device)
        started = now()
        take_step(lambda: window, loss, optimizer, mixed_precision, clock, lr=1e-4, max_grad_norm=1.0)
        wait(device)
        seconds.append(now() - started)
        if step + 1 == EVALUATE_AFTER:
            evaluate(model, loss, mixed_precision, held_out)
    return seconds


def build(case: Case, device: torch.device) -> Any:
    fields = case.config()
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    attention = {"attn_implementation": "eager"} if case.eager else {}
    model = auto_class(case.head).from_config(config, **attention).to(DTYPES[case.weights])
    model.to(device)
    saved = ",".join(head_modules(case.shape())) if case.rank else ""
    tuning = TuningSection(method="lora" if case.rank else "full", r=case.rank or 1, target_modules=case.targets,
                           modules_to_save=saved,
                           lora_dropout=case.lora_dropout)  # fmt: skip
    adapted = find_method(tuning.method).apply(model, tuning, seed=0, autocast=case.precision != "fp32")
    if case.checkpointing:
        checkpoint_activations(adapted)
    return adapted.train()


def loss_of(case: Case, model: Any) -> Any:
    if case.head == "sequence_classification":
        return ClassificationLoss(model, "single_label_classification")
    return NextTokenLoss(model, chunk_tokens=case.chunk)


def batch_of(case: Case, rows: int) -> MicroBatch:
    """Random tokens, all with a label or the first `case.labels` of them; behind an encoder those of answers have one.

    An encoder's first row is padded to the length of the others.
    """
    shape = (rows, case.row_tokens)
    ids_BT = torch.randint(0, case.vocabulary, shape, generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids_BT}
    if case.packed:
        inputs["position_ids"] = (torch.arange(case.row_tokens) % (case.row_tokens // DOCUMENTS_A_ROW)).repeat(rows, 1)
    if case.head != "causal_lm":
        inputs["attention_mask"] = torch.ones_like(ids_BT)
        inputs["attention_mask"][0, case.row_tokens // 2 :] = 0
    if case.head == "sequence_classification":
        labels = torch.arange(rows) % CLASSES
        return MicroBatch(
            inputs=inputs, labels=labels, label_positions=labels[:0], sample_count=rows, token_count=ids_BT.numel()
        )
    if case.answer:
        ids_BT = inputs["decoder_input_ids"] = ids_BT[:, : case.answer]
    count = case.labels or ids_BT.numel()
    labels, places = ids_BT.flatten()[:count], torch.arange(count)
    return MicroBatch(inputs=inputs, labels=labels, label_positions=places, sample_count=rows, token_count=count)


def evaluate(model: Any, loss: NextTokenLoss, mixed_precision: MixedPrecision, batch: MicroBatch) -> None:
    model.eval()
    with torch.inference_mode(), mixed_precision.autocast():
        float(loss(batch))
    model.train()


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def start_counting(device: torch.device) -> int:
    """Forget the peak so far; the bytes that are there now."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return int(torch.cuda.memory_allocated(device))
    ctypes.CDLL(None).malloc_trim(0)  # so that the model cannot hide in what the tiny one left free
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts anew
    return resident_bytes("VmRSS")


def peak_bytes(device: torch.device) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else resident_bytes("VmHWM")


def resident_bytes(field: str) -> int:
    lines: Sequence[str] = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
