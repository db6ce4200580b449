"""Losses of classifiers: cross entropy of the class of a row or of each word (at one token of the word), binary cross
entropy of each class for rows with several labels, and the squared error of a number.

Each loss is a sum over `batch.label_count` labels: B rows, N words, or B x C yes-or-no labels for several classes.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tui_trainer.losses.micro_batch import MicroBatch, skip_mask_checks
from tui_trainer.models.heads import CALIBRATION


class ClassificationLoss:
    """Loss of whole rows. A call returns the differentiable sum of the loss over the labels of a batch.

    Shapes: logits_BC in the model's dtype. Labels are int64 [B], float32 [B, C] of 0 and 1 for several labels a row, or
    float32 [B] for a number, whose logits have C = 1."""

    def __init__(self, model: Any, problem_type: str, *, weights: Sequence[float] = (), smoothing: float = 0.0) -> None:
        """Make the loss of a problem type of transformers.

        `weights` has one factor for each class; for several labels per row it multiplies labels that are 1. `smoothing`
        is the share of a label that is spread over all classes, or over 0 and 1. Evaluations do not use smoothing."""
        self._model, self._kind, self._smoothing = model, problem_type, smoothing
        device = next(model.parameters()).device
        self._weights = torch.tensor(weights, dtype=torch.float32, device=device) if len(weights) else None
        base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
        # A decoder would otherwise keep keys and values for a next token, which a classifier does not generate.
        can_cache = "use_cache" in inspect.signature(base_model.forward).parameters
        self._more = {"use_cache": False} if can_cache else {}

    @property
    def calibration(self) -> dict[str, Any] | None:
        """Calibration in the config of a finished model; None in training."""
        return getattr(self._model.config, CALIBRATION, None)

    def __call__(self, batch: MicroBatch) -> Tensor:
        return self.of_logits(self.logits(batch), batch.labels)

    def logits(self, batch: MicroBatch) -> Tensor:
        """Return the model's logits, float32 [B, C]."""
        with skip_mask_checks(batch):
            logits_BC: Tensor = self._model(**batch.inputs, **self._more).logits
        return logits_BC.float()

    @torch.no_grad()
    def divide_logits(self, divisor: float, batch: MicroBatch) -> bool:
        """Divide the weights of the last linear layer, and so all logits. Return False, with the weights unchanged, if
        the model does not end in a trained linear layer, which the logits of `batch` show."""
        logits_BC = self.logits(batch)
        for name, layer in reversed(list(self._model.named_modules())):
            is_linear = isinstance(layer, nn.Linear) and layer.out_features == logits_BC.shape[-1]
            # peft keeps a copy of a trained head as it was before training.
            if not is_linear or not layer.weight.requires_grad or "original_module" in name:
                continue
            stored_weights = [(weight, weight.clone()) for weight in layer.parameters()]
            for weight, _ in stored_weights:
                weight.div_(2)
            torch.clear_autocast_cache()  # it has 16-bit copies of the weights
            is_last = torch.allclose(2 * self.logits(batch), logits_BC, rtol=1e-3, atol=1e-5)
            for weight, stored_weight in stored_weights:
                weight.copy_(stored_weight / (divisor if is_last else 1))
            if is_last:
                return True
        return False

    def of_logits(self, logits_BC: Tensor, labels: Tensor) -> Tensor:
        if self._weights is not None:
            # A model that is sharded or kept on the host was on the CPU when this loss was made.
            self._weights = self._weights.to(logits_BC.device)
        if self._kind == "regression":
            return F.mse_loss(logits_BC.squeeze(-1), labels, reduction="sum")
        smoothing = self._smoothing if self._model.training else 0.0
        if self._kind == "multi_label_classification":
            targets_BC = labels * (1 - smoothing) + smoothing / 2
            return F.binary_cross_entropy_with_logits(logits_BC, targets_BC, pos_weight=self._weights, reduction="sum")
        return F.cross_entropy(logits_BC, labels, weight=self._weights, label_smoothing=smoothing, reduction="sum")


class TokenLabelLoss(ClassificationLoss):
    def __init__(self, model: Any, *, weights: Sequence[float] = (), smoothing: float = 0.0) -> None:
        super().__init__(model, "single_label_classification", weights=weights, smoothing=smoothing)

    def logits(self, batch: MicroBatch) -> Tensor:
        """Return the model's logits at the tokens that have a label, float32 [N, C]."""
        return super().logits(batch).flatten(0, 1).index_select(0, batch.label_positions)
