"""Cross entropy of a class for each word, on the token that stands for it, summed over the labels that count."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from tui_trainer.losses.classification import ClassificationLoss
from tui_trainer.losses.micro_batch import MicroBatch


class TokenLabelLoss(ClassificationLoss):
    """`loss(batch)`: nats summed over `batch.label_count` labels, with the graph behind it."""

    def __init__(self, model: Any, *, weights: Sequence[float] = (), smoothing: float = 0.0) -> None:
        super().__init__(model, "single_label_classification", weights=weights, smoothing=smoothing)

    def logits(self, batch: MicroBatch) -> Tensor:
        """float32 [N, C]: of the tokens that have a label."""
        return super().logits(batch).flatten(0, 1).index_select(0, batch.places)
