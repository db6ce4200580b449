"""What a run is given."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from tui_trainer.data.preparing.cache import PreparedData
from tui_trainer.planning.plan import Plan
from tui_trainer.runs.folder import RunFolder
from tui_trainer.tasks.contract import Baselines
from tui_trainer.training.checkpoint_folder import CheckpointFolder

Reason = Literal["done", "early stopping", "stopped"]
ReportProblem = Callable[[str, str, str], None]
"""Callback for what is not as planned: its kind, a message, and what follows from it."""
Meter = Callable[[str, int, str], Callable[[int], bool]]
"""For long work before the first step: what, how much there is, its unit; what it gives is told how much is done, and
answers whether to go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The exact plan, the prepared data, the run's folder, and the checkpoint to go on from (None: from the start)."""

    plan: Plan
    data: PreparedData
    folder: RunFolder
    checkpoint: CheckpointFolder | None
    baselines: Baselines | None
    versions: dict[str, str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """How a run came to its end, and the median seconds of its last steps (None: too few to say).

    `peak_memory_bytes` as the plan counts; None where it is not that of a whole run with the passes of its plan.
    """

    reason: Reason
    step_seconds: float | None
    peak_memory_bytes: int | None = None


# What is rehearsed, in its order. No torch: who asks for it has none.

LOADING, WORST, TYPICAL, EVALUATION = "loading", "largest micro-batch", "typical steps", "largest evaluation batch"
CHECKPOINT, FINAL, SAMPLE = "checkpoint", "final model", "sample"
PARTS = (WORST, TYPICAL, EVALUATION, CHECKPOINT, FINAL, SAMPLE)
