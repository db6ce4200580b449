"""Held-out loss, with the same definition as in training: a sum and a count; and what else the task measures."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeVar

import torch

from tui_trainer.data.preparing.token_rows import Rows, TokenRow, evenly_spaced
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.several_parts import NamedLoss, Sums
from tui_trainer.tasks.contract import Scores
from tui_trainer.training.compiled import uncompiled
from tui_trainer.training.components import Components

# Texts that the model writes on the way, so that a person sees what it has learnt.


def write_text(components: Components, row: TokenRow, *, seed: int, new_tokens: int) -> tuple[str, str]:
    """(what was given, what the model makes of it), as its task shows a row."""
    config, data, model = components.config, components.data, components.model
    with answering(components, seed):
        return components.task.sample(config, data, model, components.tokenizer, row, new_tokens=new_tokens)


@contextmanager
def answering(components: Components, seed: int) -> Iterator[None]:
    """The model writes. The global random state is the same before and after, and no weight is touched."""
    gpus = [components.device] if components.device.type == "cuda" else []
    components.model.eval()
    try:
        with (
            torch.random.fork_rng(devices=gpus),
            components.together.reading(),
            components.mixed_precision.autocast(),
            _any_kernels(),
            uncompiled(components.model),
        ):
            torch.manual_seed(seed)
            yield
    finally:
        components.model.train()


@contextmanager
def _any_kernels() -> Iterator[None]:
    """Sampling may use kernels that have no deterministic form (sums for `top_p`); no weight depends on them."""
    strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(strict)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """The loss summed over `tokens` held-out labels, and what else was measured."""

    loss_sum: float
    tokens: int
    seconds: float
    scores: Scores = field(default_factory=lambda: Scores(values={}))

    @property
    def loss(self) -> float:
        """Mean over the labels; nats where they are tokens or classes."""
        return self.loss_sum / self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """What one process has found in its own rows: sums and counts by name, and what scores are made of."""

    values: dict[str, float]
    counts: dict[str, int]
    seconds: float
    seen: list[tuple[torch.Tensor, ...]] = field(default_factory=list)


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
) -> Observed | None:
    """Return what one of several processes finds in its own rows; None if the evaluation was given up.

    Where each process has a part of the model, all make as many forward passes: `spare` makes those of a process that
    has no more rows, which are only computed.
    """
    loss, started, rows, is_stopped = components.loss, perf_counter(), 0, False
    scorer = components.task.scorer(components.config, components.data, loss)
    forward, sums = scorer.observe if scorer else loss, Sums.of(loss)
    left, splits = iter(batches), components.together.splits_weights
    components.model.eval()
    try:
        with components.together.reading(), components.mixed_precision.autocast():
            while True:
                batch, has_rows, stops = next(left, None), 1, int(is_stopped)
                if splits:
                    has_rows, stops = components.ranks.highest(int(batch is not None), stops)
                if stops:
                    return None
                if batch is not None:
                    batch = batch.to(components.device)
                    sums.count([batch])
                    sums.add(forward(batch))
                    rows += batch.samples
                    is_stopped = not go_on(rows)
                elif splits and has_rows and spare:
                    loss(spare().to(components.device))
                else:
                    break
    finally:
        components.model.train()
    read = torch.stack(list(sums.values.values())).tolist() if sums.values else []
    seen = scorer.seen if scorer else []
    if components.ranks.count > 1:
        seen = [tuple(tensor.cpu() for tensor in one) for one in seen]
    values = dict(zip(sums.values, read, strict=True))
    return Observed(values=values, counts=sums.counts, seconds=perf_counter() - started, seen=seen)


def concluded(components: Components, parts: Sequence[Observed]) -> Evaluation:
    """What all processes have found together."""
    sums = Sums.of(components.loss)
    for part in parts:
        sums.add({name: torch.tensor(value, dtype=torch.float64) for name, value in part.values.items()})
        for name in sums.counts:
            sums.counts[name] += part.counts[name]
    scorer = components.task.scorer(components.config, components.data, components.loss)
    if scorer:
        scorer.seen = [one for part in parts for one in part.seen]
    scores = scorer.scores() if scorer else Scores(values={})
    if isinstance(components.loss, NamedLoss):
        scores = replace(scores, values={**{name: float(mean) for name, mean in sums.means().items()}, **scores.values})
    return Evaluation(
        loss_sum=float(sums.loss_sum),
        tokens=sums.label_count,
        seconds=max(part.seconds for part in parts),
        scores=scores,
    )


def answer_scores(components: Components, rows: Rows, chosen: Sequence[int]) -> dict[str, float]:
    """Scores of what the model writes for some of the chosen rows; {} where the task does not score answers."""
    few = [chosen[place] for place in evenly_spaced(len(chosen), components.config.evaluation.generate_rows)]
    if not few:
        return {}
    with answering(components, components.config.training.seed):
        examples = [rows.example(index) for index in few]
        return dict(components.task.answer_scores(components.config, components.model, components.tokenizer, examples))
