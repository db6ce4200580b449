"""Inputs and result of one run, and the names of the parts of a rehearsal, without importing torch."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tui_trainer.data.preparing.cache import PreparedData
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks.contract import Baselines
from tui_trainer.training.checkpoint_folder import CheckpointFolder

EndReason = Literal["done", "early stopping", "stopped"]
ReportProblem = Callable[[str, str, str], None]
"""Callback that reports a deviation from the plan: its kind, a message and its consequence."""
StartMeter = Callable[[str, int, str], Callable[[int], bool]]
"""Function that starts a progress display for work before the first step, from the work's name, total amount and unit.
It returns a callback that takes the amount done so far, and returns whether to continue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Inputs of a run: the exact plan, prepared data, run folder, and the checkpoint to resume (None for a new run)."""

    plan: Plan
    data: PreparedData
    folder: RunFolder
    checkpoint: CheckpointFolder | None
    baselines: Baselines | None
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """Reason why a run ended, and the median seconds of its last steps (None for too few steps).

    `peak_memory_bytes` can be compared with the plan. It is None if the run was resumed, ended early, or used smaller
    passes than planned.
    """

    reason: EndReason
    step_seconds: float | None
    peak_memory_bytes: int | None = None


# Parts of a rehearsal, in order.
LOADING, WORST, TYPICAL, EVALUATION = "loading", "largest micro-batch", "typical steps", "largest evaluation batch"
CHECKPOINT, FINAL, SAMPLE = "checkpoint", "final model", "sample"
REHEARSAL_PARTS = (WORST, TYPICAL, EVALUATION, CHECKPOINT, FINAL, SAMPLE)
