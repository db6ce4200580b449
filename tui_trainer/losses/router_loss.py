"""The loss that spreads tokens over the experts of a mixture, beside that of the next token.

It is what the model's own class computes for `output_router_logits`: of all its routers together, from the tokens of
one micro-batch, without padding. A step has the mean over its micro-batches, by their tokens; with one micro-batch that
is the loss of transformers.

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
from tui_trainer.losses.next_token import NextTokenLoss
from tui_trainer.losses.several_parts import LABELS, NamedLoss
from tui_trainer.models.routers import BALANCE, OUTPUT

NEXT_TOKEN, ROUTER = "next_token", "router_loss"
_TOKENS = "tokens"


class RouterLoss(NamedLoss):
    """Of training alone: what is held out is measured by the loss of the next token."""

    parts: Mapping[str, str] = {NEXT_TOKEN: LABELS, ROUTER: _TOKENS}

    def __init__(self, loss: NextTokenLoss, model: Any, coefficient: float) -> None:
        self._loss, self._coefficient = loss, coefficient
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._names: dict[str, Any] = unwrap(type(inner).forward).__globals__

    def counts(self, batch: MicroBatch) -> Mapping[str, int]:
        return {LABELS: batch.label_count, _TOKENS: batch.tokens}

    def __call__(self, batch: MicroBatch) -> Mapping[str, Tensor]:
        """Nats, and the weighted loss of the routers times `batch.tokens`."""
        with self._balanced(_mask_BT(batch)) as found:
            nats = self._loss(replace(batch, inputs={**batch.inputs, OUTPUT: True}))
        if not found or not isinstance(found[-1], Tensor):
            hint = "set training.router_aux_loss_coef = 0 to train without a router loss"
            raise RunError(f"the model returned no router logits; {hint}")
        return {NEXT_TOKEN: nats, ROUTER: self._coefficient * batch.tokens * found[-1].to(nats.device)}

    @contextmanager
    def _balanced(self, mask_BT: Tensor | None) -> Iterator[list[Any]]:
        """Around a forward pass: what the model's own function makes of its router logits, with this mask. The model is
        given none, as its attention needs none for padding at the right."""
        found: list[Any] = []
        balance = self._names[BALANCE]

        def masked(*given: Any) -> Any:
            # The mask is the last argument in every family.
            found.append(balance(*given[:-1], mask_BT))
            return found[-1]

        self._names[BALANCE] = masked
        try:
            yield found
        finally:
            self._names[BALANCE] = balance


def _mask_BT(batch: MicroBatch) -> Tensor | None:
    """Return where there is a token; None if nothing is padded."""
    lengths_B = batch.row_lengths
    if not len(lengths_B):
        return None
    return torch.arange(batch.positions // len(lengths_B), device=lengths_B.device) < lengths_B[:, None]
