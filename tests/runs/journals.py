"""Run folders with journals, for tests of what reads them."""

from __future__ import annotations

from pathlib import Path

from tui_trainer.runs import events as e
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.runs.registry import add_to_index

AT = "2026-11-20T13:45:00.000Z"
PLANNED = e.PlanMade(
    total_steps=100, steps_per_epoch=10, effective_batch_size=8, per_device_train_batch_size=8,
    gradient_accumulation_steps=1, parameters=1_000_000, memory_bytes=1, disk_bytes=1, duration_seconds=1.0,
    trained_parameters=10_000,
)  # fmt: skip


def start(total_steps: int = 5_000, resumed: int | None = None) -> e.RunStarted:
    return e.RunStarted(
        at=AT, name="a", task="chat", device="cpu", pid=1, total_steps=total_steps, resumed_from_step=resumed
    )


def step_done(step: int, loss: float = 2.0) -> e.StepDone:
    return e.StepDone(
        at=AT, step=step, epoch=step / 100, loss_sum=100 * loss, tokens=100, samples=1, lr=1e-4, grad_norm=1.0,
        step_seconds=0.5, data_seconds=0.1, forward_seconds=0.1, backward_seconds=0.1, optimizer_seconds=0.1,
        tokens_per_second=400.0, samples_per_second=2.0, peak_memory_bytes=1000 + step, input_tokens=200,
    )  # fmt: skip


def steps(first: int, last: int) -> list[e.StepDone]:
    """Return steps whose losses fall from 5 by a thousandth each."""
    return [step_done(step, 5 - step / 1000) for step in range(first, last + 1)]


def held_out(step: int, loss: float, *, best: bool = True, **scores: float) -> e.EvalDone:
    return e.EvalDone(
        step=step, loss_sum=loss, tokens=1, loss=loss, seconds=1.0, scheduled=True, best=best, scores=scores
    )


def end(step: int = 5_000, reason: str = "done", eval_loss: float | None = 1.25) -> e.RunFinished:
    return e.RunFinished(at=AT, step=step, reason=reason, loss=1.5, eval_loss=eval_loss, seconds=9.0)


def read_all(journal: Path) -> list[e.Event]:
    """Return all events of a journal; none if it does not exist."""
    return JournalReader(journal).read_new()


def run_of(parent: Path, name: str, *events: e.Event) -> RunFolder:
    """Create a run with these events in its journal and add it to the list of runs."""
    folder = RunFolder.create(parent, name)
    folder.config.write_text("schema_version = 1\n")
    with JournalWriter(folder.journal) as writer:
        writer.append(*events)
    assert add_to_index(folder.root) is None
    return folder
