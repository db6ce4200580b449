"""Add to the next-token loss a router loss, which spreads tokens over the experts of a mixture.

The model's own function computes the router loss, for all routers together, from the tokens of one micro-batch without
padding. A step uses the mean over its micro-batches, weighted by their tokens. For a step of one micro-batch, this is
the loss of transformers with `output_router_logits`.

Source: Fedus et al., Switch Transformers, arXiv:2101.03961, section 2.2; `load_balancing_loss_func` of transformers.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor

from tui_trainer.errors import RunError
from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.losses.named_losses import LABELS, LossResult, NamedLoss
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.models.routers import BALANCE_FUNCTION, OUTPUT_LOGITS_ARGUMENT

NEXT_TOKEN, ROUTER = "next_token", "router_loss"
_TOKENS = "tokens"


class RouterLoss(NamedLoss):
    """The loss of the task and the router loss, for training. Evaluations use the loss of the task alone."""

    def __init__(self, loss: NextTokenLoss, model: Any, coefficient: float) -> None:
        self._loss, self._coefficient = loss, coefficient
        self._named_loss = loss if isinstance(loss, NamedLoss) else None
        task_parts = self._named_loss.parts if self._named_loss else {NEXT_TOKEN: LABELS}
        self.parts = {**task_parts, ROUTER: _TOKENS}
        self.scores = self._named_loss.scores if self._named_loss else {}
        self.terms = self._named_loss.terms if self._named_loss else {}
        base_model = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._names: dict[str, Any] = unwrap(type(base_model).forward).__globals__

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        task_counts = self._named_loss.counts(batch) if self._named_loss else {LABELS: batch.label_count}
        return {**task_counts, _TOKENS: batch.token_count}

    def terms_of(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        return self._named_loss.terms_of(batch) if self._named_loss else {}

    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """Return the sums of the task's loss, and the weighted router loss multiplied by `batch.token_count`.

        Raises RunError if the model has returned no router logits."""
        with self._balanced(_mask_BT(batch)) as router_losses:
            loss: LossResult = self._loss(replace(batch, inputs={**batch.inputs, OUTPUT_LOGITS_ARGUMENT: True}))
        if not router_losses or not isinstance(router_losses[-1], Tensor):
            hint = "set training.router_aux_loss_coef = 0 to train without a router loss"
            raise RunError(f"the model returned no router logits; {hint}")
        task_sums = {NEXT_TOKEN: loss} if isinstance(loss, Tensor) else loss
        device = next(iter(task_sums.values())).device
        return {**task_sums, ROUTER: self._coefficient * batch.token_count * router_losses[-1].to(device)}

    @contextmanager
    def _balanced(self, mask_BT: Tensor | None) -> Iterator[list[Any]]:
        """Return a context that yields a list, to which each forward pass appends the model's router loss.

        The model's loss function gets this mask, but its attention gets none: padding at the right needs no mask."""
        router_losses: list[Any] = []
        balance = self._names[BALANCE_FUNCTION]

        def balance_masked(*given: Any) -> Any:
            # The mask is the last argument in every family.
            router_losses.append(balance(*given[:-1], mask_BT))
            return router_losses[-1]

        self._names[BALANCE_FUNCTION] = balance_masked
        try:
            yield router_losses
        finally:
            self._names[BALANCE_FUNCTION] = balance


def _mask_BT(batch: MicroBatch) -> Tensor | None:
    """Return a mask that is true for tokens and false for padding; None if nothing is padded."""
    lengths_B = batch.row_lengths
    if not len(lengths_B):
        return None
    return torch.arange(batch.position_count // len(lengths_B), device=lengths_B.device) < lengths_B[:, None]
