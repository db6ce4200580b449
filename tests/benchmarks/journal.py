"""Time and memory to open and fold a journal of 100,000 steps.

python tests/benchmarks/journal.py [STEPS]
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from tui_trainer.runs.events import PhaseChanged, RunStarted, StepDone
from tui_trainer.runs.journal import JournalReader, JournalWriter
from tui_trainer.runs.state import apply_events
from tui_trainer.units import format_bytes

LIMIT_SECONDS = 2.0


def write(path: Path, steps: int) -> None:
    """A journal as training writes it: losses and norms with all their digits, seconds rounded."""
    chance = random.Random(1)
    with JournalWriter(path) as writer:
        writer.append(RunStarted(name="long", task="char_lm", device="cpu", pid=1, total_steps=steps))
        writer.append(PhaseChanged(phase="training"))
        for start in range(1, steps + 1, 10):
            writer.append(*(_step(step, chance) for step in range(start, start + 10)))


def _step(step: int, chance: random.Random) -> StepDone:
    seconds = round(chance.uniform(0.1, 0.2), 6)
    return StepDone(
        step=step,
        epoch=round(step / 165, 4),
        loss_sum=chance.uniform(3000, 5000),
        tokens=2048,
        samples=16,
        lr=chance.uniform(1e-4, 3e-3),
        grad_norm=chance.uniform(0.1, 2),
        step_seconds=seconds,
        data_seconds=round(seconds * 0.01, 6),
        forward_seconds=round(seconds * 0.33, 6),
        backward_seconds=round(seconds * 0.64, 6),
        optimizer_seconds=round(seconds * 0.02, 6),
        tokens_per_second=round(2048 / seconds, 1),
        samples_per_second=round(16 / seconds, 2),
        peak_memory_bytes=998_000_000 + step,
    )


def main() -> None:
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        write(path, steps)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        times = []
        for _ in range(5):
            started = perf_counter()
            state = apply_events(JournalReader(path).stream())
            times.append(perf_counter() - started)
        growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        assert len(state.steps) == steps
        print(
            f"{steps:,} steps, {format_bytes(path.stat().st_size)}: opened and folded in {min(times):.2f} s (best of 5)"
        )
        print(
            f"slowest {max(times):.2f} s; memory grew by {format_bytes(growth)}  (under {LIMIT_SECONDS:.0f} s required)"
        )
    sys.exit(max(times) > LIMIT_SECONDS)


if __name__ == "__main__":
    main()
