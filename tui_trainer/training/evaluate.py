"""Held-out loss, with the same definition as in training: a sum and a count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import perf_counter

import torch
from torch import nn

from tui_trainer.training.step import LossSum, MicroBatch


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
    model: nn.Module,
    loss_sum: LossSum,
    batches: Iterable[MicroBatch],
    go_on: Callable[[int], bool] = lambda rows: True,
) -> Evaluation | None:
    """Measure without touching weights, gradients or random state.

    `go_on` is told how many rows were read so far; when it says no, the evaluation is given up and there is no result.
    """
    started, rows, tokens = perf_counter(), 0, 0
    total = torch.zeros((), dtype=torch.float64)
    model.eval()
    try:
        with torch.inference_mode():
            for batch in batches:
                total += loss_sum(batch.input_ids, batch.labels).double()
                tokens += batch.label_tokens
                rows += len(batch.input_ids)
                if not go_on(rows):
                    return None
    finally:
        model.train()
    return Evaluation(loss_sum=float(total), tokens=tokens, seconds=perf_counter() - started)
