"""The training loop against a bare one: same rows, model, threads and optimizer, alternating every few steps.

    python tests/benchmarks/overhead.py [PAIRS]

Both loops are alive at once, the project's in its worker thread as always, and take turns of a few steps: a pair is one
turn of each, so that what else happens on the machine hits both. Prints the ratio of the bare loop's time to the
project's (1 is no overhead), its spread over the pairs, and what the journal costs per step.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter
from typing import Any

from tui_trainer.hardware.environment import prepare_environment

os.environ["HF_HUB_OFFLINE"] = "1"
prepare_environment()  # for both loops, as the program does
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.runs.journals import read_all
from tui_trainer.config.load import Request
from tui_trainer.launching.open_run import load_config, open_new
from tui_trainer.launching.run_lifecycle import RunThread
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.runs.events import StepDone
from tui_trainer.runs.journal import JournalWriter
from tui_trainer.training.session import Session

TURN_STEPS = 8


def bare_loop(batches: list[Any], shape: LlamaConfig, threads: int) -> Iterator[float]:
    """What a person would write by hand. Yields after each step."""
    torch.set_num_threads(threads)
    torch.manual_seed(42)
    model = LlamaForCausalLM(shape)
    model.train()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-3, betas=(0.9, 0.95), fused=True)
    parameters = list(model.parameters())
    while True:
        for ids, labels in batches:
            logits = model(input_ids=ids, use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            yield loss.item()


class Turns:
    """Lets the worker thread do TURN_STEPS steps at a time, and times them with everything between the steps."""

    def __init__(self) -> None:
        self.mine, self.other = threading.Semaphore(0), threading.Semaphore(0)
        self.session: Session | None = None
        self.seconds: list[float] = []
        self._started = 0.0

    def install(self) -> None:
        take = Session.take_step

        def take_step(session: Session, step: int) -> None:
            take(session, step)
            if step % TURN_STEPS == 0:
                self.seconds.append(perf_counter() - self._started)
                self.session = session
                self.other.release()
                self.mine.acquire()
                self._started = perf_counter()

        Session.take_step = take_step  # type: ignore[method-assign]


def _padded(batch: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels [B, T] of a pass, as a hand-written loop has them."""
    ids: torch.Tensor = batch.inputs["input_ids"]
    labels = torch.full((ids.numel(),), -100).index_copy(0, batch.label_positions, batch.labels)
    return ids, labels.view_as(ids)


def measure(pairs: int, folder: Path) -> tuple[list[float], list[float], Path]:
    """Seconds of each turn of the bare loop and of the project's, after two turns of warm-up each; and the journal."""
    os.environ["TUI_TRAINER_HOME"] = str(folder / "home")
    steps = (pairs + 3) * TURN_STEPS
    settings = {"training.max_steps": steps, "evaluation.eval_steps": 0, "checkpoint.save_steps": 0}
    settings |= {"logging.sample_steps": 0, "output.runs_dir": folder / "runs", "output.name": "bench"}
    run = open_new(load_config(Request(assignments=tuple(f"{key}={value}" for key, value in settings.items()))))
    turns, bare_seconds = Turns(), []
    turns.install()
    thread = RunThread(run)
    thread.start()
    turns.other.acquire()
    assert turns.session is not None
    session = turns.session
    batches = [_padded(b) for step in range(1, 100) for b in session.batches.micro_batches_of(step)]
    bare = bare_loop(batches, session.components.model.config, session.plan.threads.value)
    for _ in range(pairs + 2):
        started = perf_counter()
        for _ in range(TURN_STEPS):
            next(bare)
        bare_seconds.append(perf_counter() - started)
        turns.mine.release()
        turns.other.acquire()
    turns.mine.release()
    thread.join()
    return bare_seconds[2:], turns.seconds[3:], run.folder.journal


def journal_microseconds(journal: Path, group: int = 10) -> float:
    """What writing one step costs, in groups as in training."""
    steps = [event for event in read_all(journal) if isinstance(event, StepDone)][:group]
    with tempfile.TemporaryDirectory() as folder, JournalWriter(Path(folder) / "journal.jsonl") as writer:
        started = perf_counter()
        for _ in range(300):
            writer.append(*steps)
        return (perf_counter() - started) / 300 / len(steps) * 1e6


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    with tempfile.TemporaryDirectory() as folder:
        bare, ours, journal = measure(pairs, Path(folder))
        journal_cost = journal_microseconds(journal)
    ratios = sorted(a / b for a, b in zip(bare, ours, strict=True))
    low, _, high = quantiles(ratios, n=4)
    step_ms = median(ours) / TURN_STEPS * 1000
    print(f"{len(ratios)} pairs of {TURN_STEPS} steps, quickstart recipe, {step_ms:.1f} ms a step")
    print(f"bare loop / tui-trainer: median {median(ratios):.3f}, middle half {low:.3f} to {high:.3f}, ")
    print(f"                         all {ratios[0]:.3f} to {ratios[-1]:.3f}  (0.95 required, 0.98 sought)")
    print(f"journal: {journal_cost:.1f} microseconds a step, {journal_cost / step_ms / 10:.3f} % of a step")
    sys.exit(median(ratios) < 0.95)


if __name__ == "__main__":
    main()
