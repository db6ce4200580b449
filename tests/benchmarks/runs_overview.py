"""CPU seconds to list runs: while no summary stands beside a journal, by a new process when they do, and again when
nothing or one journal has changed.

python tests/benchmarks/runs_overview.py [RUNS] [STEPS]

Every tenth journal has ten times as many steps, every fourth run was interrupted, one journal is ahead of the clock.
"""

from __future__ import annotations

import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from time import process_time

from tests.benchmarks.journal import write
from tui_trainer.lines.plan_and_events import run_lines
from tui_trainer.runs.events import EvalDone, RunFinished, RunStarted, to_line
from tui_trainer.runs.folder import RunFolder
from tui_trainer.runs.overview import Overviews
from tui_trainer.runs.registry import add_to_index
from tui_trainer.units import format_bytes

LIMIT_SECONDS = 0.5


def make_runs(folder: Path, count: int, steps: int) -> None:
    """Folders and journals as runs leave them. Journals of equal length are copies of each other."""
    blocks: dict[int, bytes] = {}
    for number in range(count):
        length = steps * (10 if number % 10 == 0 else 1)
        if length not in blocks:
            write(folder / f"{length}.jsonl", length)
            blocks[length] = (folder / f"{length}.jsonl").read_bytes()
        run = RunFolder.create(folder / "runs", f"run-{number}")
        at = "2999-01-01T00:00:00.000Z" if number == 1 else "2026-11-20T13:45:00.000Z"
        start = RunStarted(at=at, name=run.name, task="char_lm", device="cpu", pid=1, total_steps=length)
        held_out = EvalDone(step=length, loss_sum=2e4, tokens=10_000, loss=2.0, seconds=1.0, scheduled=True, best=True)
        end = RunFinished(at=at, step=length, reason="done", loss=1.9, eval_loss=2.0, seconds=9.0)
        last = [held_out] if number % 4 == 0 else [held_out, end]
        # The first line of `write` is a start as well.
        body = blocks[length].partition(b"\n")[2]
        run.journal.write_bytes(
            to_line(start).encode() + b"\n" + body + "".join(to_line(e) + "\n" for e in last).encode()
        )
        run.config.write_text("schema_version = 1\n")
        add_to_index(run.root)


def seconds_of(overviews: Overviews) -> float:
    started = process_time()
    overviews.read()
    return process_time() - started


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3000
    with tempfile.TemporaryDirectory() as name:
        os.environ["TUI_TRAINER_HOME"] = f"{name}/home"
        make_runs(Path(name), count, steps)
        total = sum(path.stat().st_size for path in Path(name).glob("runs/*/journal.jsonl"))
        without, overviews = seconds_of(Overviews()), Overviews()
        first, again = seconds_of(overviews), seconds_of(overviews)
        with (Path(name) / "runs/run-7/journal.jsonl").open("ab") as journal:
            journal.write(b"\n")
        one_changed = seconds_of(overviews)
        started = process_time()
        found = overviews.read()
        for one in found:
            overviews.measure(one.path)
        sizes = process_time() - started
        assert len(found) == count and len(run_lines(overviews.read(), 200, datetime.now(UTC))) == count + 1
    print(f"{count} runs, journals of {format_bytes(total)} together; CPU seconds")
    print(f"no summaries {without:.3f}  first {first:.3f}  again {again:.3f}", end="  ")
    print(f"one journal has grown {one_changed:.3f}  all sizes {sizes:.3f}")
    print(f"(under {LIMIT_SECONDS} s required for the first)")
    sys.exit(first > LIMIT_SECONDS)


if __name__ == "__main__":
    main()
