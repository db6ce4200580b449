"""Runs as RunStates, folded from events that were made up: what is not said is as in a run that nothing ails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from tui_trainer.runs import events as e
from tui_trainer.runs.state import RunState, apply_events

MIB, GIB = 2**20, 2**30
BEGAN = datetime(2026, 11, 20, 12, tzinfo=UTC)
PLAN = {
    "total_steps": 200, "steps_per_epoch": 100, "effective_batch_size": 16, "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 1, "parameters": 818_000, "memory_bytes": 200 * MIB, "disk_bytes": 40 * MIB,
    "duration_seconds": 40.0, "eval_rows": 292, "eval_every_steps": 40, "save_every_steps": 40,
    "sample_every_steps": 50, "precision": "fp32", "best_precision": "fp32", "packing": False,
    "group_by_length": False, "torch_compile": False, "loader_workers": 0, "logging_steps": 10,
    "empty_cache_steps": 0, "learning_rate": 3e-3, "usual_learning_rate": 1e-3, "most_learning_rate": 1e-2,
    "gradient_checkpointing": False, "tuning_method": "full", "warmup_steps": 10, "max_grad_norm": 1.0, "seed": 42,
}  # fmt: skip
STEP = {
    "data_seconds": 0.002, "forward_seconds": 0.06, "backward_seconds": 0.12, "optimizer_seconds": 0.018,
    "tokens": 2048, "input_tokens": 2048, "positions": 2048, "samples": 16, "grad_norm": 0.7,
    "peak_memory_bytes": 900 * MIB,
}  # fmt: skip
READING = {
    "process_memory_bytes": 900 * MIB, "process_cpu_share": 0.9, "machine_cpu_share": 0.93, "usable_cores": 2.0,
    "core_wait_share": 0.02, "disk_read_bytes": 0, "io_stall_share": 0.01, "memory_available_bytes": 20 * GIB,
}  # fmt: skip
CARD = {
    "index": 0, "utilization_share": 0.95, "memory_used_bytes": 20 * GIB, "memory_bytes": 80 * GIB,
    "process_memory_bytes": 20 * GIB, "clock_share": 0.98, "slowed_by": "",
}  # fmt: skip
At = Callable[[int], object]


def falling(step: int) -> float:
    """A loss that falls from 4.6 towards 1.5."""
    return 1.5 + 3.1 * 0.98**step


def run_events(
    *,
    steps: int = 200,
    device: str = "cpu",
    threads: int | None = 2,
    loss: Callable[[int], float] = falling,
    step: dict[str, object | At] | None = None,
    plan: dict[str, object] | None = None,
    reading: dict[str, object | At] | None = None,
    card: dict[str, object | At] | None = None,
    between: dict[str, float] | None = None,
    ranks: Sequence[float] = (),
    told: Sequence[e.Event] = (),
    data_rows: int = 0,
    eval_seconds: float = 0.2,
    eval_loss: Callable[[int], float] = falling,
    save_seconds: float = 0.03,
    sample_seconds: float = 0.2,
    is_over: bool = True,
    eval_scores: Callable[[int], dict[str, float]] = lambda step: {},
) -> list[e.Event]:
    """A reading comes after every 25 steps, five seconds apart; values that are functions are asked for each step.
    `ranks`: seconds of a step that each process spends in communication; `told`: events before the first step;
    `data_rows`: rows in the data, 0: the journal does not say."""
    planned = e.PlanMade(**{**PLAN, **(plan or {})})
    events: list[e.Event] = [
        e.RunStarted(name="made-up", task="char_lm", device=device, pid=1, total_steps=planned.total_steps),
        *([prepared(data_rows)] if data_rows else []),
        planned,
        *told,
        e.LibrariesLoaded(resident_bytes=600 * MIB, threads=threads),
        e.PhaseChanged(phase="training"),
    ]
    for n in range(1, steps + 1):
        parts = {**STEP, **{key: _at(value, n) for key, value in (step or {}).items()}}
        seconds = sum(parts[key] for key in parts if key.endswith("_seconds"))
        lr = parts.pop("lr", planned.learning_rate)
        events.append(e.StepDone(
            step=n, epoch=n / 100, loss_sum=loss(n) * parts["tokens"], lr=lr, step_seconds=seconds,
            tokens_per_second=1.0, samples_per_second=1.0, **parts,
        ))  # fmt: skip
        if n % 25 == 0:
            events += _beside(n, reading or {}, card, between or {})
            events += [e.RanksTimed(step=n, communication_seconds=list(ranks))] if ranks else []
        last = n == planned.total_steps
        if last or (planned.eval_every_steps and n % planned.eval_every_steps == 0):
            held_out = eval_loss(n)
            events.append(e.EvalDone(
                step=n, loss_sum=held_out, tokens=1, loss=held_out, seconds=eval_seconds, scheduled=True, best=True,
                scores=eval_scores(n),
            ))  # fmt: skip
        if last or (planned.save_every_steps and n % planned.save_every_steps == 0):
            events.append(e.CheckpointSaved(
                step=n, path=f"checkpoints/step-{n}", bytes=10 * MIB, seconds=save_seconds, reason="scheduled"
            ))  # fmt: skip
        if planned.sample_every_steps and n % planned.sample_every_steps == 0:
            events.append(e.TextSampled(step=n, prompt="a", text="b", seconds=sample_seconds))
    if is_over:
        events.append(e.RunFinished(step=steps, reason="done", loss=1.5, eval_loss=1.5, seconds=40.0))
    return events


def prepared(rows: int) -> e.DataPrepared:
    return e.DataPrepared(
        from_cache=True, rows=rows, eval_rows=0, tokens=128 * rows, eval_tokens=0, documents=rows, eval_documents=0,
        vocabulary=100, seconds=0.1, choices=100,
    )  # fmt: skip


def _beside(n: int, reading: dict, card: dict | None, between: dict[str, float]) -> Sequence[e.Event]:
    values = {**READING, **{key: _at(value, n) for key, value in reading.items()}}
    cards = [] if card is None else [e.GpuReading(**{**CARD, **{key: _at(value, n) for key, value in card.items()}})]
    at = (BEGAN + timedelta(seconds=n / 5)).isoformat()
    waits = {"journal_seconds": 0.001, "empty_cache_seconds": 0.0, "other_seconds": 0.001, **between}
    return [
        e.GaugesRead(at=at, step=n, gpus=cards, **values),
        e.BetweenSteps(step=n, steps=25, **{key: 25 * value for key, value in waits.items()}),
    ]


def _at(value: object, step: int) -> object:
    return value(step) if callable(value) else value


def made_up(**more: object) -> RunState:
    return apply_events(run_events(**more))
