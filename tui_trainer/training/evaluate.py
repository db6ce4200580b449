"""Held-out loss, with the same definition as in training: a sum and a count; and what else the task measures."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import torch

from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.tasks.contract import Scores
from tui_trainer.training.components import Components
from tui_trainer.training.sample import answering


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The loss summed over `tokens` held-out labels."""

    loss_sum: float
    tokens: int
    seconds: float
    scores: Scores | None = None

    @property
    def loss(self) -> float:
        """Mean over the labels; nats where they are tokens or classes."""
        return self.loss_sum / self.tokens

    @property
    def values(self) -> dict[str, float]:
        return dict(self.scores.values) if self.scores else {}

    @property
    def table_rows(self) -> Mapping[str, Sequence[float]]:
        return self.scores.table_rows if self.scores else {}


def evaluate(
    components: Components,
    batches: Iterable[MicroBatch],
    go_on: Callable[[int], bool] = lambda rows: True,
) -> Evaluation | None:
    """Measure without touching weights, gradients or random state.

    `go_on` is told how many rows were read so far; when it says no, the evaluation is given up and there is no result.
    """
    started, rows, tokens = perf_counter(), 0, 0
    total = torch.zeros((), dtype=torch.float64, device=components.device)
    scorer = components.task.scorer(components.config, components.data, components.loss)
    observe = scorer.observe if scorer else components.loss
    components.model.eval()
    try:
        with torch.inference_mode(), components.mixed_precision.autocast():
            for batch in batches:
                total += observe(batch.to(components.device)).double()
                tokens += batch.label_count
                rows += batch.samples
                if not go_on(rows):
                    return None
    finally:
        components.model.train()
    return Evaluation(
        loss_sum=float(total),
        tokens=tokens,
        seconds=perf_counter() - started,
        scores=scorer.scores() if scorer else None,
    )


def answer_scores(components: Components, rows: Rows, chosen: Sequence[int]) -> dict[str, float]:
    """Scores of what the model writes for some of the chosen rows; {} where the task does not score answers."""
    few = [chosen[place] for place in evenly_spaced(len(chosen), components.config.evaluation.generate_rows)]
    if not few:
        return {}
    with answering(components, components.config.training.seed):
        examples = [rows.example(index) for index in few]
        return dict(components.task.answer_scores(components.config, components.model, components.tokenizer, examples))
