"""Ten steps of a run under torch's profiler, with every point at which the host waits for the card.

    python -m tests.gpu.trace FIGURES.json [--steps 10] [--trace FILE.json.gz] [--eager] -- ARGUMENTS OF TUI-TRAINER

The run is the program's own. After some steps of warm-up the profiler starts in its thread, and torch warns of each
operation that waits (`torch.cuda.set_sync_debug_mode`); where a warning comes from is the innermost function of the
program. Waits that `tests/simulated_card/waits.py` does not list are given apart. Graphs that the compiler made are
counted for the start, each step, evaluation and text; with --eager they are not carried out.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections import Counter
from pathlib import Path
from time import perf_counter
from typing import Any

WARM_UP_STEPS = 5
# Calls of CUDA that return when the card has come so far, and operations of torch that read a number from it.
_WAITING = ("cudaStreamSynchronize", "cudaDeviceSynchronize", "cudaEventSynchronize", "cudaMemcpy", "aten::item",
            "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero")  # fmt: skip
_LARGEST = 12


class Watch:
    """Stands around the program's steps: profiles `steps` of them after the warm-up."""

    def __init__(self, steps: int, trace: Path | None) -> None:
        import torch

        self.first, self.last = WARM_UP_STEPS + 1, WARM_UP_STEPS + steps
        self.waits: Counter[str] = Counter()
        self.figures: dict[str, Any] = {}
        self._trace, self._torch = trace, torch
        self._on_card = torch.cuda.is_available()
        self._started = 0.0
        kinds = torch.profiler.ProfilerActivity
        self._profiler: Any = torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if self._on_card else [])])

    def install(self) -> None:
        from tui_trainer.training.session import Session

        take = Session.take_step

        def take_step(session: Session, step: int) -> None:
            if step == self.first:
                self._begin()
            take(session, step)
            if step == self.last:
                self._end()

        Session.take_step = take_step  # type: ignore[method-assign]

    def _begin(self) -> None:
        if self._on_card:
            self._torch.cuda.synchronize()
            warnings.simplefilter("always")
            warnings.showwarning = self._note  # type: ignore[assignment]
            self._torch.cuda.set_sync_debug_mode("warn")
        self._profiler.start()
        self._started = perf_counter()

    def _note(self, message: Warning | str, *_: Any) -> None:
        # Switched on, the mode says once of itself that it is a prototype.
        if "synchroniz" in str(message) and "prototype" not in str(message):
            self.waits[_where()] += 1

    def _end(self) -> None:
        if self._on_card:
            self._torch.cuda.set_sync_debug_mode("default")
            self._torch.cuda.synchronize()
        seconds = perf_counter() - self._started
        self._profiler.stop()
        if self._trace:
            self._profiler.export_chrome_trace(str(self._trace))
        self.figures = self._read(seconds)

    def _read(self, seconds: float) -> dict[str, Any]:
        rows = self._profiler.key_averages()
        calls = {row.key: row.count for row in rows if row.key in _WAITING}
        # A kernel's time stands in its own row, and again in that of the operation that started it.
        kernels = [row for row in rows if str(row.device_type).endswith("CUDA") and not row.is_user_annotation]
        busy = "self_device_time_total" if self._on_card else "self_cpu_time_total"
        largest = sorted(kernels if self._on_card else rows, key=lambda row: -getattr(row, busy))[:_LARGEST]
        device_seconds = sum(row.self_device_time_total for row in kernels) / 1e6
        listed = _listed()
        return {
            "steps": self.last - self.first + 1,
            "step_seconds": seconds / (self.last - self.first + 1),
            "device_busy_share": device_seconds / seconds if self._on_card else None,
            "synchronisations": dict(self.waits.most_common()),
            "unexpected": sorted(where for where in self.waits if where not in listed),
            "waiting_calls": calls,
            "largest": {row.key[:120]: round(getattr(row, busy) / 1e6, 6) for row in largest},
        }


def _where() -> str:
    """The innermost function of the program on this thread's stack, as `waits.py` writes it."""
    for frame in reversed(traceback.extract_stack()):
        if "/tui_trainer/" in frame.filename:
            return f"{frame.filename.rpartition('/tui_trainer/')[2]} {frame.name}"
    return "outside the program"


def _listed() -> set[str]:
    from tests.simulated_card.waits import WAITS

    return {function for _, function in WAITS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", type=Path)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--eager", action="store_true")
    # argparse takes what stands behind -- for its own.
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    chosen, arguments = parser.parse_args(sys.argv[1:at]), sys.argv[at + 1 :]

    from tui_trainer.hardware.environment import prepare_environment

    prepare_environment()
    watch = Watch(chosen.steps, chosen.trace)
    watch.install()
    from tests.compilations import counted_compilations
    from tui_trainer.cli import main as tui_trainer

    with counted_compilations(carried_out=not chosen.eager) as graphs:
        code = tui_trainer(["--no-ui", *arguments])
    if not watch.figures:
        print(f"the run ended with {code} before step {watch.last}", file=sys.stderr)
        return code or 1
    chosen.figures.write_text(json.dumps(watch.figures | {"graphs": graphs}, indent=1), encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
