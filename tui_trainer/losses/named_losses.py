"""Losses with several named parts, each a sum with its own count, and sums that are only reported.

A plain loss has one part: it is a function that returns the sum over the labels of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

import torch
from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch

LOSS, LABELS = "loss", "labels"
LossResult = Tensor | Mapping[str, Tensor]
"""Result of a loss for one batch: the sum of its only part, or the sums of all parts and scores, keyed by name."""
LossSum = Callable[[MicroBatch], LossResult]


class NamedLoss(ABC):
    """A loss that is the sum of its parts, each divided by its count over the whole effective batch.

    `parts`, `scores` and `terms` map the name of a sum to the name of the count that divides it. Counts are known on
    the host before the first forward pass. Sums are 0-dim tensors on the device."""

    parts: Mapping[str, str]
    """Sums that are minimised. A mean over several steps weighs each step by the count of the first part."""
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
        self, parts: Mapping[str, str], other_sums: Mapping[str, str], count: Callable[[MicroBatch], Mapping[str, int]]
    ) -> None:
        """Start with totals of 0. `parts` and `other_sums` map sums to counts, and `count` returns those of a batch."""
        self.parts, self._divisor_names, self._count = parts, {**parts, **other_sums}, count
        self.counts: dict[str, int] = dict.fromkeys(self._divisor_names.values(), 0)
        self.values: dict[str, Tensor] = {}

    @classmethod
    def of(cls, loss: object) -> "NamedLossSums":
        """Return empty totals for the parts, scores and terms of a loss. A plain loss has one part."""
        if isinstance(loss, NamedLoss):
            return cls(loss.parts, {**loss.scores, **loss.terms}, loss.counts)
        return cls({LOSS: LABELS}, {}, lambda batch: {LABELS: batch.label_count})

    @classmethod
    def of_terms(cls, loss: NamedLoss) -> "NamedLossSums":
        return cls(loss.terms, {}, loss.counts)

    def count(self, batches: Iterable[MicroBatch]) -> None:
        """Add the counts of batches. Idle batches count nothing."""
        for batch in batches:
            if not batch.is_idle:
                batch_counts = self._count(batch)
                for name in self.counts:
                    self.counts[name] += batch_counts[name]

    def add(self, result: LossResult) -> None:
        for name, value in sums_by_name(result).items():
            value = value.detach().double()
            self.values[name] = self.values[name] + value if name in self.values else value

    def loss(self, result: LossResult, processes: int = 1) -> Tensor:
        """Return what one batch adds to the loss: the sum of its parts, each divided by that part's total count.

        `processes` multiplies it, for strategies that average gradients over processes. A part whose count is 0 adds 0.
        """
        sums = sums_by_name(result)
        return reduce(torch.add, [sums[name] / ((self.divisor(name) or 1) / processes) for name in self.parts])

    @property
    def has_names(self) -> bool:
        """Whether the loss is not plain: it has named parts or scores."""
        return list(self._divisor_names) != [LOSS]

    @property
    def label_count(self) -> int:
        """Total count of the first part."""
        return self.divisor(next(iter(self.parts)))

    @property
    def loss_sum(self) -> Tensor:
        """Total loss multiplied by `label_count`, as a 0-dim tensor. For a plain loss this is its sum."""
        if not self.has_names:
            return self.values[LOSS]
        scaled_losses = [self.values[name] * (self.label_count / (self.divisor(name) or 1)) for name in self.parts]
        return reduce(torch.add, scaled_losses)

    def means(self) -> dict[str, Tensor]:
        """Return each sum divided by its count, in fp32."""
        return {name: (value / (self.divisor(name) or 1)).float() for name, value in self.values.items()}

    @property
    def reported(self) -> dict[str, Tensor]:
        """The sums that are reported beside the loss: all but a part that is the whole loss."""
        return {name: value for name, value in self.values.items() if len(self.parts) > 1 or name not in self.parts}

    def reported_means(self) -> dict[str, float]:
        """Return the mean of each reported sum whose count is above 0. Waits for the device."""
        means = self.means()
        return {name: float(means[name]) for name in self.reported if self.divisor(name)}

    def divisor(self, name: str) -> int:
        """Return the total count by which the sum of this name is divided."""
        return self.counts[self._divisor_names[name]]


def sums_by_name(result: LossResult) -> Mapping[str, Tensor]:
    return {LOSS: result} if isinstance(result, Tensor) else result


def idle_sums(result: LossResult) -> LossResult:
    """Return the sums multiplied by 0, so that gradients are 0, for a process without rows in a step."""
    return result * 0.0 if isinstance(result, Tensor) else {name: value * 0.0 for name, value in result.items()}


def no_terms(loss: object, device: torch.device) -> dict[str, Tensor]:
    """Return zeros for the terms of a loss, for passes whose results are not used."""
    return {name: torch.zeros((), device=device) for name in loss.terms} if isinstance(loss, NamedLoss) else {}
