"""The position of a run: everything apart from tensors that is needed to resume it exactly."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from tui_trainer.errors import CheckpointError
from tui_trainer.planning.fused_kernels import Kernels
from tui_trainer.runs.state import WINDOW_STEPS, training_loss
from tui_trainer.training.step import StepReport


@dataclass(slots=True)
class Position:
    """Counters and results of a run after `step`. Seconds count training only, and losses are in nats per token."""

    step: int = 0
    training_seconds: float = 0.0
    epoch_loss_sum: float = 0.0
    epoch_tokens: int = 0
    epoch_input_tokens: int = 0
    epoch_samples: int = 0
    epoch_seconds: float = 0.0
    evaluated_step: int = 0
    eval_loss: float | None = None
    best_eval_loss: float | None = None
    best_metric: float | None = None
    best_step: int = 0
    scores: dict[str, float] = field(default_factory=dict)
    best_scores: dict[str, float] = field(default_factory=dict)
    evaluations_without_improvement: int = 0
    stopped_early: bool = False
    kernels: Kernels = "none"
    """Fused kernels with which the run was computed so far."""
    adapters_fused: bool = False
    kept_rows: list[dict[str, Any]] = field(default_factory=list)
    """Rows of `evaluation.gate_suite` that the model answered right before the first step."""
    recent: list[tuple[float, int]] = field(default_factory=list)
    """(loss sum in nats, labelled tokens) of each of the last steps."""

    def count(self, report: StepReport, loss_sum: float, seconds: float) -> None:
        self.recent = [*self.recent[1 - WINDOW_STEPS :], (loss_sum, report.token_count)]
        self.training_seconds += seconds
        self.epoch_loss_sum += loss_sum
        self.epoch_tokens += report.token_count
        self.epoch_input_tokens += report.input_tokens
        self.epoch_samples += report.samples
        self.epoch_seconds += seconds

    def start_epoch(self) -> None:
        self.epoch_loss_sum, self.epoch_seconds = 0.0, 0.0
        self.epoch_tokens, self.epoch_input_tokens, self.epoch_samples = 0, 0, 0

    @property
    def recent_loss(self) -> float | None:
        """Smoothed training loss of the last steps, in nats per token; None before the first step."""
        sums, counts = zip(*self.recent, strict=True) if self.recent else ((), ())
        return training_loss(sums, counts, self.step)

    def judge(
        self, eval_loss: float, metric: float, *, threshold: float, scores: dict[str, float] | None = None
    ) -> bool:
        """Record a scheduled evaluation, and return whether it is the best so far.

        It is the best if `metric` is finite and exceeds the best one by more than `threshold`.
        """
        self.evaluated_step, self.eval_loss, self.scores = self.step, eval_loss, scores or {}
        best_before = self.best_metric
        if math.isfinite(metric) and (best_before is None or metric > best_before + threshold):
            self.best_eval_loss, self.best_metric, self.best_step = eval_loss, metric, self.step
            self.best_scores = self.scores
            self.evaluations_without_improvement = 0
            return True
        self.evaluations_without_improvement += 1
        return False

    def forget_best(self) -> None:
        """Reset the best evaluation, because its weights are lost."""
        self.best_eval_loss = self.best_metric = None
        self.best_step = self.evaluations_without_improvement = 0
        self.best_scores = {}

    def skip_evaluation(self, eval_loss: float | None, scores: dict[str, float]) -> None:
        """Record an incomplete scheduled evaluation. Early stopping ignores it."""
        self.evaluated_step, self.eval_loss, self.scores = self.step, eval_loss, scores

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Position:
        """Return the position from the values of `to_json`. Raises CheckpointError if a field is missing or unknown."""
        # Older checkpoints lack these fields.
        values = {"kernels": "none", "adapters_fused": False, "kept_rows": [], **values}
        if set(values) != {field.name for field in fields(cls)}:
            raise CheckpointError("the position in the checkpoint was written by another version")
        return cls(**{**values, "recent": [tuple(pair) for pair in values["recent"]]})
