"""Compute losses over pairs of answers to one prompt: DPO and its variants, SimPO, ORPO and CPO.

Each loss is a function of the log-probabilities of the two answers. A row of the batch has two documents: the prompt
with the chosen answer, and the prompt with the rejected one. Only the answers have labels.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLoss
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.methods.preference_losses import ACCURACY, LOG_PROBABILITIES, MARGIN, PREFERENCE_LOSSES, REWARDS

PREFERENCE, LIKELIHOOD = "preference", "likelihood"
PAIRS, _CHOSEN_TOKENS = "pairs", "chosen_tokens"
# Two passes over the same row may add its log-probabilities in another order. Smaller margins are rounding errors.
EQUAL_NATS = 1e-4


@dataclass(frozen=True, slots=True)
class Pairs:
    """Log-probabilities of the two answers of each pair, in nats: fp32 [pairs, 2], the chosen answer first.

    `log_probabilities` are sums over the tokens of an answer, `reference` those of the model before training (zeros if
    the loss has no reference), and `token_counts` the numbers of tokens.
    """

    log_probabilities: Tensor
    reference: Tensor
    token_counts: Tensor

    @property
    def gains(self) -> Tensor:
        """Log-probability that each answer has gained over the reference, in nats."""
        return self.log_probabilities - self.reference

    @property
    def mean_gains(self) -> Tensor:
        """`gains` divided by the number of tokens, in nats per token."""
        return self.gains / self.token_counts


@dataclass(frozen=True, slots=True)
class LossSettings:
    """Settings of the losses: `task.beta`, `task.simpo_gamma` and `task.label_smoothing`."""

    beta: float
    simpo_gamma: float = 0.0
    label_smoothing: float = 0.0


def margin_of(answers: Tensor) -> Tensor:
    """Return the value of the chosen answer minus that of the rejected one, for each pair."""
    return answers[:, 0] - answers[:, 1]


def right_pairs(margins: Tensor) -> Tensor:
    """Return the number of pairs with a positive margin. A margin of 0 counts as half right, like a guess."""
    return (margins > EQUAL_NATS).float().sum() + 0.5 * (margins.abs() <= EQUAL_NATS).float().sum()


def _dpo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return the loss of DPO (arXiv:2305.18290, equation 7)."""
    return -F.logsigmoid(settings.beta * margin_of(pairs.gains))


def _robust_dpo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return DPO's loss, corrected for a share of swapped pairs, `label_smoothing` (arXiv:2403.00409, equation 12)."""
    logits, swapped = settings.beta * margin_of(pairs.gains), settings.label_smoothing
    return (swapped * F.logsigmoid(-logits) - (1 - swapped) * F.logsigmoid(logits)) / (1 - 2 * swapped)


def _normalized_dpo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return DPO's loss of mean log-probabilities (Tulu 3, arXiv:2411.15124, equation 6)."""
    return -F.logsigmoid(settings.beta * margin_of(pairs.mean_gains))


def _ipo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return the loss of IPO (arXiv:2310.12036, equation 17), of mean log-probabilities.

    The paper has sums. Its authors recommended means later, and TRL uses means as well.
    """
    return (margin_of(pairs.mean_gains) - 1 / (2 * settings.beta)) ** 2


def _simpo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return the loss of SimPO (arXiv:2405.14734, equation 6)."""
    return -F.logsigmoid(settings.beta * margin_of(pairs.mean_gains) - settings.simpo_gamma)


def _orpo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return ORPO's loss of the odds ratio, times beta, the paper's lambda (arXiv:2403.07691, equations 6 and 7)."""
    means = pairs.mean_gains
    log_odds = means - _log_of_complement(means)
    return -settings.beta * F.logsigmoid(margin_of(log_odds))


def _cpo(pairs: Pairs, settings: LossSettings) -> Tensor:
    """Return the preference loss of CPO (arXiv:2401.08417, equation 5)."""
    return -F.logsigmoid(settings.beta * margin_of(pairs.log_probabilities))


_LOSSES: Mapping[str, Callable[[Pairs, LossSettings], Tensor]] = {
    "sigmoid": _dpo,
    "ipo": _ipo,
    "robust": _robust_dpo,
    "sigmoid_norm": _normalized_dpo,
    "simpo": _simpo,
    "orpo": _orpo,
    "cpo": _cpo,
}
# Losses whose rewards are those of mean log-probabilities.
_OF_MEANS = ("ipo", "sigmoid_norm", "simpo", "orpo")


class TwoDocumentsLoss(NextTokenLoss):
    """Base class of losses on the log-probabilities of two documents in each row."""

    def log_probabilities(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return the log-probability of the answer in each document in nats, summed over its labelled tokens, and their
        number.

        Both are fp32 [rows, 2].
        """
        losses = self.label_losses(batch).float()
        zeros = torch.zeros(len(batch.document_labels), device=losses.device)
        nats = zeros.index_add(0, batch.documents, losses)
        token_counts = zeros.index_add(0, batch.documents, torch.ones_like(losses))
        return -nats.view(-1, 2), token_counts.view(-1, 2)

    def reference_values(self, batch: MicroBatch) -> Tensor:
        """Return the log-probabilities of both answers of each row, for the pass before training: fp32 [rows, 2]."""
        return self.log_probabilities(batch)[0]


class PreferenceLoss(TwoDocumentsLoss, NamedLoss):
    """A preference loss, a mean over pairs. With `sft_weight`, the cross entropy of the chosen answers is added to it,
    a mean over their tokens multiplied by this weight."""

    def __init__(
        self,
        model: Any,
        loss_type: str,
        settings: LossSettings,
        *,
        sft_weight: float = 0.0,
        chunk_tokens: int = 0,
    ) -> None:
        super().__init__(model, chunk_tokens=chunk_tokens)
        self._loss, self._settings = _LOSSES[loss_type], settings
        self._rewards_means = loss_type in _OF_MEANS
        self._has_reference, self._sft_weight = PREFERENCE_LOSSES[loss_type].has_reference, sft_weight
        self.parts = {PREFERENCE: PAIRS} | ({LIKELIHOOD: _CHOSEN_TOKENS} if sft_weight else {})
        self.scores = dict.fromkeys((ACCURACY, MARGIN, *REWARDS, *LOG_PROBABILITIES), PAIRS)

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        return {PAIRS: batch.sample_count, _CHOSEN_TOKENS: int(batch.document_labels[::2].sum())}

    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:  # type: ignore[override]
        """Return the sums of the preference loss and of the scores over the pairs of a batch."""
        log_probabilities, token_counts = self.log_probabilities(batch)
        reference = batch.row_values if self._has_reference else torch.zeros_like(log_probabilities)
        pairs = Pairs(log_probabilities, reference, token_counts)
        gains = (pairs.mean_gains if self._rewards_means else pairs.gains).detach()
        margins = margin_of(gains)
        sums = {PREFERENCE: self._loss(pairs, self._settings).sum()}
        if self._sft_weight:
            sums[LIKELIHOOD] = -self._sft_weight * log_probabilities[:, 0].sum()
        rewards = self._settings.beta * gains
        sums |= {ACCURACY: right_pairs(margins), MARGIN: self._settings.beta * margins.sum()}
        for position, names in enumerate(zip(REWARDS, LOG_PROBABILITIES, strict=True)):
            sums |= dict(zip(names, (rewards[:, position].sum(), log_probabilities[:, position].sum()), strict=True))
        return sums


def _log_of_complement(log_probabilities: Tensor) -> Tensor:
    """Return log(1 - p) of log p < 0, without cancellation (Mächler, "Accurately computing log(1 - exp(-|a|))")."""
    log_probabilities = log_probabilities.clamp(max=-1e-6)
    near_one = torch.log(-torch.expm1(log_probabilities))
    return torch.where(log_probabilities > -math.log(2), near_one, torch.log1p(-torch.exp(log_probabilities)))
