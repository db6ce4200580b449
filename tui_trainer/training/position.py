"""Where a run is: the little state, beside tensors, that an exact resume needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from tui_trainer.errors import CheckpointError
from tui_trainer.training.step import StepReport


@dataclass(slots=True)
class Position:
    """Counters of a run after `step`. Seconds count training only; losses are nats per token."""

    step: int = 0
    training_seconds: float = 0.0
    epoch_loss_sum: float = 0.0
    epoch_tokens: int = 0
    epoch_samples: int = 0
    epoch_seconds: float = 0.0
    evaluated_step: int = 0
    eval_loss: float | None = None
    best_eval_loss: float | None = None
    best_step: int = 0
    evaluations_without_improvement: int = 0
    stopped_early: bool = False

    def count(self, report: StepReport, loss_sum: float) -> None:
        """Add one finished step to the sums of its epoch."""
        self.training_seconds += report.step_seconds
        self.epoch_loss_sum += loss_sum
        self.epoch_tokens += report.tokens
        self.epoch_samples += report.samples
        self.epoch_seconds += report.step_seconds

    def start_epoch(self) -> None:
        self.epoch_loss_sum, self.epoch_tokens, self.epoch_samples, self.epoch_seconds = 0.0, 0, 0, 0.0

    def judge(self, eval_loss: float, *, threshold: float) -> bool:
        """Take in a scheduled evaluation; whether it is the best so far."""
        self.evaluated_step, self.eval_loss = self.step, eval_loss
        if self.best_eval_loss is None or eval_loss < self.best_eval_loss - threshold:
            self.best_eval_loss, self.best_step = eval_loss, self.step
            self.evaluations_without_improvement = 0
            return True
        self.evaluations_without_improvement += 1
        return False

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Position:
        """Raises CheckpointError when a field is missing or unknown."""
        if set(values) != {field.name for field in fields(cls)}:
            raise CheckpointError("the position in the checkpoint was written by another version")
        return cls(**values)
