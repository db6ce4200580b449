"""Compute the held-out loss and the scores of the task, and write text samples."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TypeVar

import torch
from torch import Tensor

from tui_trainer.data.preparing.token_rows import Rows, TokenRow, evenly_spaced
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLoss, NamedLossSums, no_terms
from tui_trainer.tasks.contract import Scores
from tui_trainer.tasks.parts.free_answers import KEPT
from tui_trainer.tasks.parts.suite import SuiteRow
from tui_trainer.training import varlen
from tui_trainer.training.compiled import uncompiled
from tui_trainer.training.components import Components

# Text samples during training.


def write_text(components: Components, row: TokenRow, *, seed: int, new_tokens: int) -> tuple[str, str]:
    """Return (prompt, generated text) of a row, both formatted as the task shows rows."""
    config, data, model = components.config, components.data, components.model
    with generation_context(components, seed):
        return components.task.sample(config, data, model, components.tokenizer, row, new_tokens=new_tokens)


@contextmanager
def generation_context(components: Components, seed: int) -> Iterator[None]:
    """Return a context in which the model can generate. It changes neither weights nor the global random state."""
    gpus = [components.device] if components.device.type == "cuda" else []
    components.model.eval()
    try:
        with (
            torch.random.fork_rng(devices=gpus),
            components.reading(),
            _any_kernels(),
            uncompiled(components.model),
            varlen.with_masks(components.model),
        ):
            torch.manual_seed(seed)
            yield
    finally:
        components.model.train()


@contextmanager
def _any_kernels() -> Iterator[None]:
    """Return a context that allows nondeterministic kernels, such as sums for `top_p`. No weight depends on them."""
    was_strict = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was_strict)


T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Evaluation:
    """Result of an evaluation: the loss summed over `tokens` held-out labels, and the scores."""

    loss_sum: float
    tokens: int
    seconds: float
    scores: Scores = field(default_factory=lambda: Scores(values={}))

    @property
    def loss(self) -> float:
        """Mean loss per label, in nats if the labels are tokens or classes."""
        return self.loss_sum / self.tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedSums:
    """Result of one process for its own rows: sums and counts keyed by name, and tensors from which scores follow."""

    values: dict[str, float]
    counts: dict[str, int]
    seconds: float
    seen: list[tuple[torch.Tensor, ...]] = field(default_factory=list)


def evaluate(
    components: Components, batches: Iterable[MicroBatch], go_on: Callable[[int], bool] = lambda rows: True
) -> Evaluation | None:
    """Evaluate the model on `batches` in one process. Weights, gradients and random state do not change.

    `go_on` gets the number of rows so far. If it returns False, the evaluation stops and None is returned.
    """
    observation = observe(components, batches, go_on)
    return combine_results(components, [observation]) if observation else None


class EvaluationGivenUp(Exception):
    """Raised when a process is stopped during the passes of an evaluation."""


def passes_of_all(
    components: Components, items: Iterable[T], spare: Callable[[], T] | None, is_stopped: Callable[[], bool]
) -> Iterator[tuple[T, bool]]:
    """Yield (pass, whether it is from `items`, the passes of this process).

    If the model is sharded, all processes must make equally many passes: after its `items`, a process gets passes
    from `spare`. Raises EvaluationGivenUp if a process was stopped.
    """
    remaining_items, splits = iter(items), components.collectives.splits_weights
    while True:
        item, has_rows, stops = next(remaining_items, None), 1, int(is_stopped())
        if splits:
            has_rows, stops = components.ranks.maximum(int(item is not None), stops)
        if stops:
            raise EvaluationGivenUp
        if item is not None:
            yield item, True
        elif splits and has_rows and spare:
            yield spare(), False
        else:
            return


def observe(
    components: Components,
    batches: Iterable[MicroBatch],
    go_on: Callable[[int], bool] = lambda rows: True,
    spare: Callable[[], MicroBatch] | None = None,
    terms: Mapping[str, Tensor] | None = None,
    *,
    finds_terms: bool = False,
) -> ObservedSums | None:
    """Return the result of one process for its own rows; None if `go_on` returned False.

    If the model is sharded, a process without more rows computes batches from `spare`, whose results are dropped. Some
    losses need means over all rows: a first call with `finds_terms` computes their sums, `terms_of_all` combines these
    over the processes, and a second call gets the means as `terms`.
    """
    loss, started_at, rows, is_stopped = components.loss, perf_counter(), 0, False
    scorer = None if finds_terms else components.task.scorer(components.config, components.data, loss)
    forward, sums = loss, NamedLossSums.of(loss)
    if finds_terms:
        assert isinstance(loss, NamedLoss)
        forward, sums, terms = loss.terms_of, NamedLossSums.of_terms(loss), {}
    terms = no_terms(loss, components.device) if terms is None else terms

    def is_over() -> bool:
        return is_stopped

    components.model.eval()
    try:
        with components.reading():
            for item, is_own in passes_of_all(components, batches, spare, is_over):
                batch = replace(item.to(components.device), terms=terms)
                if not is_own:
                    forward(batch)
                    continue
                sums.count([batch])
                sums.add(scorer.observe(batch) if scorer else forward(batch))
                rows += batch.sample_count
                is_stopped = not go_on(rows)
    except EvaluationGivenUp:
        return None
    finally:
        components.model.train()
    sum_values = torch.stack(list(sums.values.values())).tolist() if sums.values else []
    score_inputs = scorer.seen if scorer else []
    if components.ranks.world_size > 1:
        score_inputs = [tuple(tensor.cpu() for tensor in inputs) for inputs in score_inputs]
    values = dict(zip(sums.values, sum_values, strict=True))
    return ObservedSums(values=values, counts=sums.counts, seconds=perf_counter() - started_at, seen=score_inputs)


def terms_of_all(components: Components, parts: Sequence[ObservedSums]) -> dict[str, Tensor]:
    """Return the means over all rows that `observe` takes as `terms`, from the results of all processes."""
    assert isinstance(components.loss, NamedLoss)
    return _added(NamedLossSums.of_terms(components.loss), parts, components.device).means()


def _added(sums: NamedLossSums, parts: Sequence[ObservedSums], device: torch.device) -> NamedLossSums:
    for part in parts:
        sums.add({name: torch.tensor(value, dtype=torch.float64, device=device) for name, value in part.values.items()})
        for name in sums.counts:
            sums.counts[name] += part.counts[name]
    return sums


def combine_results(components: Components, parts: Sequence[ObservedSums]) -> Evaluation:
    """Return the evaluation that the results of all processes add up to."""
    sums = _added(NamedLossSums.of(components.loss), parts, torch.device("cpu"))
    scorer = components.task.scorer(components.config, components.data, components.loss)
    if scorer:
        scorer.seen = [inputs for part in parts for inputs in part.seen]
    scores = scorer.scores() if scorer else Scores(values={})
    if isinstance(components.loss, NamedLoss):
        scores = replace(scores, values={**sums.reported_means(), **scores.values})
    seconds = max(part.seconds for part in parts)
    return Evaluation(loss_sum=float(sums.loss_sum), tokens=sums.label_count, seconds=seconds, scores=scores)


def answer_scores(
    components: Components, rows: Rows, chosen: Sequence[int], kept_rows: Sequence[SuiteRow]
) -> dict[str, float]:
    """Generate answers for some of the chosen rows and for `kept_rows`, which must stay right, and return their scores;
    {} if the task has no such scores."""
    row_count = components.task.answer_rows(components.config)
    answer_rows = [chosen[index] for index in evenly_spaced(len(chosen), row_count)]
    scores: dict[str, float] = {}
    if answer_rows:
        with generation_context(components, components.config.training.seed):
            examples = [rows.example(index) for index in answer_rows]
            model, tokenizer = components.model, components.tokenizer
            scores |= components.task.answer_scores(components.config, model, tokenizer, examples)
    if kept_rows:
        scores[KEPT] = len(right_rows(components, kept_rows)) / len(kept_rows)
    return scores


def right_rows(components: Components, rows: Sequence[SuiteRow]) -> list[SuiteRow]:
    """Return the rows of a suite that the model answers right."""
    with generation_context(components, components.config.training.seed):
        model, tokenizer = components.model, components.tokenizer
        replies = components.task.suite_replies(components.config, model, tokenizer, rows)
    return [row for row, reply in zip(rows, replies, strict=True) if not row.fault(reply)]
