"""Compute the loss of reward models: classifiers with one logit, which scores each answer.

The two documents of a pair are neighbouring rows of the batch, the chosen answer first.
"""

from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import NamedLoss
from tui_trainer.losses.preference import PAIRS, PREFERENCE, margin_of, right_pairs
from tui_trainer.methods.preference_losses import ACCURACY, MARGIN, REWARDS

CENTERING = "centering"


class RewardLoss(ClassificationLoss, NamedLoss):
    """The loss of Bradley-Terry, a mean over pairs: -log sigmoid(r_chosen - r_rejected - margin).

    With `centering`, this coefficient times (r_chosen + r_rejected)^2 is added, so that rewards stay near 0. Sources:
    InstructGPT, arXiv:2203.02155, equation 1; margins: Llama 2, arXiv:2307.09288, equation 2; centering:
    arXiv:2312.09244, equation 2."""

    def __init__(self, model: Any, *, centering: float = 0.0) -> None:
        super().__init__(model, "regression")
        self._centering = centering
        self.parts = dict.fromkeys((PREFERENCE, *([CENTERING] if centering else [])), PAIRS)
        self.scores = dict.fromkeys((ACCURACY, MARGIN, *REWARDS), PAIRS)

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        return {PAIRS: batch.sample_count}

    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:  # type: ignore[override]
        """Return the sums of the loss and of the scores over the pairs of a batch, whose labels are the margins."""
        rewards = self.logits(batch).view(-1, 2)
        margins = margin_of(rewards)
        sums = {PREFERENCE: -F.logsigmoid(margins - batch.labels).sum()}
        if self._centering:
            sums[CENTERING] = self._centering * rewards.sum(1).square().sum()
        sums |= {ACCURACY: right_pairs(margins.detach()), MARGIN: margins.detach().sum()}
        return sums | dict(zip(REWARDS, rewards.detach().sum(0), strict=True))
