"""Held-out loss, with the same definition as in training: a sum and a count; and what else the task measures."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from tui_trainer.data.preparing.token_rows import Rows, evenly_spaced
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.tasks.contract import Scores
from tui_trainer.training.components import Components
from tui_trainer.training.sample import answering


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The loss summed over `tokens` held-out labels. One of several processes has `seen` what scores are made of."""

    loss_sum: float
    tokens: int
    seconds: float
    scores: Scores = field(default_factory=lambda: Scores(values={}))
    seen: list[tuple[torch.Tensor, ...]] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """Mean over the labels; nats where they are tokens or classes."""
        return self.loss_sum / self.tokens


def evaluate(
    components: Components,
    batches: Iterable[MicroBatch],
    go_on: Callable[[int], bool] = lambda rows: True,
) -> Evaluation | None:
    """Measure without touching weights, gradients or random state.

    `go_on` is told how many rows were read so far; when it says no, the evaluation is given up and there is no result.
    """
    observed = observe(components, batches, go_on)
    return concluded(components, [observed]) if observed else None


def observe(
    components: Components,
    batches: Iterable[MicroBatch],
    go_on: Callable[[int], bool] = lambda rows: True,
    spare: Callable[[], MicroBatch] | None = None,
) -> Evaluation | None:
    """The part of `evaluate` that each of several processes does with its own rows. Where each has a part of the model,
    all make as many forward passes: `spare` makes those of a process that has no more rows.
    """
    started, rows, tokens, left, is_stopped = perf_counter(), 0, 0, iter(batches), 0
    total = torch.zeros((), dtype=torch.float64, device=components.device)
    scorer = components.task.scorer(components.config, components.data, components.loss)
    forward = scorer.observe if scorer else components.loss
    components.model.eval()
    try:
        with components.together.reading(), components.mixed_precision.autocast():
            while True:
                batch, has_rows = next(left, None), 1
                if components.together.splits_weights:
                    has_rows, is_stopped = components.ranks.highest(int(batch is not None), int(is_stopped))
                if is_stopped:
                    return None
                if batch is None:
                    if not (components.together.splits_weights and has_rows and spare):
                        break
                    components.loss(spare().to(components.device))
                    continue
                total += forward(batch.to(components.device)).double()
                tokens += batch.label_count
                rows += batch.samples
                is_stopped = int(not go_on(rows))
    finally:
        components.model.train()
    seen = scorer.seen if scorer else []
    if components.ranks.count > 1:
        seen = [tuple(tensor.cpu() for tensor in one) for one in seen]
    return Evaluation(loss_sum=float(total), tokens=tokens, seconds=perf_counter() - started, seen=seen)


def concluded(components: Components, parts: Sequence[Evaluation]) -> Evaluation:
    """What all processes have found together."""
    scorer = components.task.scorer(components.config, components.data, components.loss)
    if scorer:
        scorer.seen = [one for part in parts for one in part.seen]
    return Evaluation(
        loss_sum=sum(part.loss_sum for part in parts),
        tokens=sum(part.tokens for part in parts),
        seconds=max(part.seconds for part in parts),
        scores=scorer.scores() if scorer else Scores(values={}),
    )


def answer_scores(components: Components, rows: Rows, chosen: Sequence[int]) -> dict[str, float]:
    """Scores of what the model writes for some of the chosen rows; {} where the task does not score answers."""
    few = [chosen[place] for place in evenly_spaced(len(chosen), components.config.evaluation.generate_rows)]
    if not few:
        return {}
    with answering(components, components.config.training.seed):
        examples = [rows.example(index) for index in few]
        return dict(components.task.answer_scores(components.config, components.model, components.tokenizer, examples))
