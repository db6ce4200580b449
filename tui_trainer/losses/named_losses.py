"""Losses of named parts, each a sum with a count of its own, and sums that are only reported.

A plain loss is a function of a batch: one part, the sum over the labels that count.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch

LOSS, LABELS = "loss", "labels"
Found = Tensor | Mapping[str, Tensor]
"""Result of a loss for one batch: the sum of its only part, or the sums of all parts and scores, keyed by name."""
LossSum = Callable[[MicroBatch], Found]


class NamedLoss(ABC):
    """A loss of several parts: the sum of them, each divided by its count over the whole effective batch.

    `parts`, `scores` and `terms` map the name of a sum to the name of the count that divides it. Counts are known on
    the host before the first forward pass. Sums are 0-dim tensors on the device, and nothing waits for them.
    """

    parts: Mapping[str, str]
    """Sums that are minimised. The count of the first one weighs a step in means over several steps."""
    scores: Mapping[str, str] = {}
    """Sums that are only reported."""
    terms: Mapping[str, str] = {}
    """Sums whose means over the whole effective batch the loss needs. They are computed without gradients before the
    first backward pass of a step, and are then in `batch.terms`. In an evaluation they are means over all rows."""

    @abstractmethod
    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        """Return the counts of one batch, keyed by name."""

    @abstractmethod
    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """Return the differentiable sums of all parts, and the sums of all scores."""

    def terms_of(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """Return the sums of all terms. It is called without gradients."""
        return {}


class NamedLossSums:
    """Totals of several forward passes: `counts` on the host, `values` on the device in fp64."""

    def __init__(
        self, parts: Mapping[str, str], others: Mapping[str, str], count: Callable[[MicroBatch], Mapping[str, int]]
    ) -> None:
        """Start with totals of 0. `parts` and `others` map sums to their counts; `count` returns those of a batch."""
        self.parts, self._divided_by, self._count = parts, {**parts, **others}, count
        self.counts: dict[str, int] = dict.fromkeys(self._divided_by.values(), 0)
        self.values: dict[str, Tensor] = {}

    @classmethod
    def of(cls, loss: object) -> "NamedLossSums":
        """Return the totals of a loss, with the counts of its terms. A plain loss has one part."""
        if isinstance(loss, NamedLoss):
            return cls(loss.parts, {**loss.scores, **loss.terms}, loss.counts)
        return cls({LOSS: LABELS}, {}, lambda batch: {LABELS: batch.label_count})

    @classmethod
    def of_terms(cls, loss: NamedLoss) -> "NamedLossSums":
        return cls(loss.terms, {}, loss.counts)

    def count(self, batches: Iterable[MicroBatch]) -> None:
        """Add the counts of batches. Idle batches have none."""
        for batch in batches:
            if not batch.is_idle:
                batch_counts = self._count(batch)
                for name in self.counts:
                    self.counts[name] += batch_counts[name]

    def add(self, result: Found) -> None:
        for name, value in by_name(result).items():
            value = value.detach().double()
            self.values[name] = self.values[name] + value if name in self.values else value

    def loss(self, result: Found, processes: int = 1) -> Tensor:
        """Return what one batch adds to the loss: the sum of its parts, each divided by that part's total count.

        It is multiplied by `processes` where the mean of their gradients is taken. A part whose count is 0 adds 0.
        """
        sums = by_name(result)
        return reduce(torch.add, [sums[name] / ((self.divisor(name) or 1) / processes) for name in self.parts])

    @property
    def has_names(self) -> bool:
        """Whether there is more than the sum of a plain loss."""
        return list(self._divided_by) != [LOSS]

    @property
    def label_count(self) -> int:
        """The count of the first part."""
        return self.divisor(next(iter(self.parts)))

    @property
    def loss_sum(self) -> Tensor:
        """Loss multiplied by `label_count`; for a plain loss its sum."""
        if not self.has_names:
            return self.values[LOSS]
        scaled = [self.values[name] * (self.label_count / (self.divisor(name) or 1)) for name in self.parts]
        return reduce(torch.add, scaled)

    def means(self) -> dict[str, Tensor]:
        """Return each sum divided by its count, in fp32."""
        return {name: (value / (self.divisor(name) or 1)).float() for name, value in self.values.items()}

    def divisor(self, name: str) -> int:
        """Return the total count that divides the sum of this name."""
        return self.counts[self._divided_by[name]]


def by_name(result: Found) -> Mapping[str, Tensor]:
    return {LOSS: result} if isinstance(result, Tensor) else result


def idle_sums(result: Found) -> Found:
    """Return sums of 0 whose gradients are 0, for a process that has no rows in a step."""
    return result * 0.0 if isinstance(result, Tensor) else {name: value * 0.0 for name, value in result.items()}


def no_terms(loss: object, device: torch.device) -> dict[str, Tensor]:
    """Return terms of 0, for passes whose results are not used."""
    return {name: torch.zeros((), device=device) for name in loss.terms} if isinstance(loss, NamedLoss) else {}
