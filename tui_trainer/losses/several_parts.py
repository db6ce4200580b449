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
"""What a loss gives for a batch: the sum of its one part, or those of all parts and scores by name."""
LossSum = Callable[[MicroBatch], Found]


class NamedLoss(ABC):
    """A loss of several parts: the sum of them, each divided by its count over the whole effective batch.

    `parts`, `scores` and `terms` name sums, and the count that each is divided by. Counts are known on the host, before
    the first forward pass; sums are 0-dim tensors, of which nothing waits for the device.
    """

    parts: Mapping[str, str]
    """By the count of the first the loss is a mean where several steps are taken together."""
    scores: Mapping[str, str] = {}
    """What is reported beside the loss."""
    terms: Mapping[str, str] = {}
    """Means over the whole effective batch that the loss needs: found without gradients before the first backward pass
    of a step, they are in `batch.terms`. Of held-out rows they are means over all of them."""

    @abstractmethod
    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        """Of one batch, by name."""

    @abstractmethod
    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """The sums of all parts, with the graph behind them, and of all scores."""

    def terms_of(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """The sums of all terms. Called without gradients."""
        return {}


class Sums:
    """What some forward passes add up to: `counts` on the host, `values` on the device, fp64."""

    def __init__(
        self, parts: Mapping[str, str], others: Mapping[str, str], count: Callable[[MicroBatch], Mapping[str, int]]
    ) -> None:
        """`parts` and `others` name sums, and the count of each; `count` has those of a batch."""
        self.parts, self._divided_by, self._count = parts, {**parts, **others}, count
        self.counts: dict[str, int] = dict.fromkeys(self._divided_by.values(), 0)
        self.values: dict[str, Tensor] = {}

    @classmethod
    def of(cls, loss: object) -> "Sums":
        """Of a loss, with the counts of its terms; a plain one has one part."""
        if isinstance(loss, NamedLoss):
            return cls(loss.parts, {**loss.scores, **loss.terms}, loss.counts)
        return cls({LOSS: LABELS}, {}, lambda batch: {LABELS: batch.label_count})

    @classmethod
    def of_terms(cls, loss: NamedLoss) -> "Sums":
        return cls(loss.terms, {}, loss.counts)

    def count(self, batches: Iterable[MicroBatch]) -> None:
        """Take their counts in: idle ones have none."""
        for batch in batches:
            if not batch.is_idle:
                found = self._count(batch)
                for name in self.counts:
                    self.counts[name] += found[name]

    def add(self, found: Found) -> None:
        for name, value in by_name(found).items():
            value = value.detach().double()
            self.values[name] = self.values[name] + value if name in self.values else value

    def loss(self, found: Found, processes: int = 1) -> Tensor:
        """What is minimised of one batch: its share of each part by that part's count. With `processes`, of whose
        gradients the mean is taken, so many times as much. A part of which there is none is 0."""
        sums = by_name(found)
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
        """The loss times `label_count`; of a plain loss its sum."""
        if not self.has_names:
            return self.values[LOSS]
        scaled = [self.values[name] * (self.label_count / (self.divisor(name) or 1)) for name in self.parts]
        return reduce(torch.add, scaled)

    def means(self) -> dict[str, Tensor]:
        """Of each sum by its count, fp32."""
        return {name: (value / (self.divisor(name) or 1)).float() for name, value in self.values.items()}

    def divisor(self, name: str) -> int:
        """The count of a sum."""
        return self.counts[self._divided_by[name]]


def by_name(found: Found) -> Mapping[str, Tensor]:
    return {LOSS: found} if isinstance(found, Tensor) else found


def idle_sums(found: Found) -> Found:
    """A gradient of 0: a process without rows in a step takes part in the sum with it."""
    return found * 0.0 if isinstance(found, Tensor) else {name: value * 0.0 for name, value in found.items()}


def no_terms(loss: object, device: torch.device) -> dict[str, Tensor]:
    """Terms of 0, where a pass is only tried."""
    return {name: torch.zeros((), device=device) for name in loss.terms} if isinstance(loss, NamedLoss) else {}
