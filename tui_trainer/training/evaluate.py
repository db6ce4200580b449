"""Held-out loss, with the same definition as in training: a sum and a count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

import torch

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.learner import Learner


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Nats summed over `tokens` held-out labels."""

    loss_sum: float
    tokens: int
    seconds: float

    @property
    def loss(self) -> float:
        """Mean nats per token."""
        return self.loss_sum / self.tokens


def evaluate(
    learner: Learner,
    batches: Iterable[MicroBatch],
    go_on: Callable[[int], bool] = lambda rows: True,
) -> Evaluation | None:
    """Measure without touching weights, gradients or random state.

    `go_on` is told how many rows were read so far; when it says no, the evaluation is given up and there is no result.
    """
    started, rows, tokens = perf_counter(), 0, 0
    total = torch.zeros((), dtype=torch.float64, device=learner.device)
    learner.model.eval()
    try:
        with torch.inference_mode(), learner.numbers.autocast():
            for batch in batches:
                total += learner.loss(batch.to(learner.device)).double()
                tokens += batch.label_tokens
                rows += batch.samples
                if not go_on(rows):
                    return None
    finally:
        learner.model.train()
    return Evaluation(loss_sum=float(total), tokens=tokens, seconds=perf_counter() - started)
