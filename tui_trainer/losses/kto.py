"""Compute the loss of KTO over answers that are marked as desirable or undesirable.

A row of the batch has two documents: the prompt with its own answer, and the prompt with the answer to another prompt.
The loss is on the own answers. The others estimate how far the model is from the reference, over the whole effective
batch.

Source: Ethayarajh et al., KTO, arXiv:2402.01306, equation 7 (that of TRL, too).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLoss
from tui_trainer.losses.preference import TwoDocumentsLoss
from tui_trainer.methods.preference_losses import LOG_PROBABILITIES, REWARDS

LOSS_PART, KL = "kto", "kl"
_OTHER_GAIN = "gain_of_other_answers"
_ROWS, _DESIRABLE, _UNDESIRABLE = "rows", "desirable", "undesirable"


@dataclass(frozen=True, slots=True)
class MarkedAnswers:
    """The own answer of each row: its log-probability and the part that it has gained over the reference, in nats, fp32
    [rows], and whether it is desirable, bool [rows]."""

    log_probabilities: Tensor
    gains: Tensor
    are_desirable: Tensor


class KtoLoss(TwoDocumentsLoss, NamedLoss):
    """The loss of KTO, a mean over rows. `weights` multiply desirable and undesirable answers."""

    parts: Mapping[str, str] = {LOSS_PART: _ROWS}
    scores: Mapping[str, str] = {
        KL: _ROWS,
        **{name: count for names in (REWARDS, LOG_PROBABILITIES)
           for name, count in zip(names, (_DESIRABLE, _UNDESIRABLE), strict=True)},
    }  # fmt: skip
    terms: Mapping[str, str] = {_OTHER_GAIN: _ROWS}

    def __init__(self, model: Any, *, beta: float, weights: tuple[float, float], chunk_tokens: int = 0) -> None:
        super().__init__(model, chunk_tokens=chunk_tokens)
        self.beta, self._weights = beta, weights

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        desirable_rows = int(batch.host_row_labels.sum())
        return {
            _ROWS: batch.sample_count, _DESIRABLE: desirable_rows, _UNDESIRABLE: batch.sample_count - desirable_rows,
        }  # fmt: skip

    def terms_of(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        return {_OTHER_GAIN: (self.log_probabilities(batch)[0] - batch.row_values)[:, 1].sum()}

    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:  # type: ignore[override]
        """Return the sums of the loss and of the scores over the rows of a batch."""
        return self.sums(batch, self.answers(batch))

    def answers(self, batch: MicroBatch) -> MarkedAnswers:
        log_probabilities = self.log_probabilities(batch)[0][:, 0]
        gains = log_probabilities - batch.row_values[:, 0]
        return MarkedAnswers(log_probabilities, gains, batch.row_labels.bool())

    def sums(self, batch: MicroBatch, answers: MarkedAnswers) -> Mapping[str, Tensor]:
        kl = batch.terms[_OTHER_GAIN].clamp(min=0)
        surplus = self.beta * (answers.gains - kl)
        desirable_weight, undesirable_weight = self._weights
        # 1 - sigmoid(x) is sigmoid(-x).
        losses = torch.where(
            answers.are_desirable,
            desirable_weight * torch.sigmoid(-surplus),
            undesirable_weight * torch.sigmoid(surplus),
        )
        sums = {LOSS_PART: losses.sum(), KL: kl * batch.sample_count}
        values = (self.beta * answers.gains.detach(), answers.log_probabilities.detach())
        for names, value in zip((REWARDS, LOG_PROBABILITIES), values, strict=True):
            for name, is_counted in zip(names, (answers.are_desirable, ~answers.are_desirable), strict=True):
                sums[name] = (value * is_counted).sum()
        return sums
