"""Cross entropy of the next token, summed over the labels that count.

The head sees only the places that have a label: what is padding, a prompt or the end of a document costs no logits.
That is done in front of the head itself, so whatever the model does to its logits afterwards (scales, soft caps) stays.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tui_trainer.losses.chunked_head import chunked_head_loss, has_plain_head
from tui_trainer.losses.micro_batch import MicroBatch


class NextTokenLoss:
    """`loss(batch)`: nats summed over `batch.label_count` labels, with the graph behind it."""

    def __init__(self, model: Any, *, chunk_tokens: int = 0, label_smoothing: float = 0.0) -> None:
        """`chunk_tokens` > 0: head and loss for so many labels at a time, where the model's head is a plain product.

        `label_smoothing`: that share of each label is spread evenly over the vocabulary while the model trains; what
        is held out is measured without it. Source: Szegedy et al., arXiv:1512.00567, section 7.
        """
        self._model = model
        self._head: nn.Module = model.get_output_embeddings()
        self._chunk_tokens = chunk_tokens if has_plain_head(model) else 0
        self._label_smoothing = label_smoothing
        self._batch: MicroBatch | None = None
        self._hidden: Tensor | None = None

    def __call__(self, batch: MicroBatch) -> Tensor:
        self._batch = batch
        smoothing = self._label_smoothing if self._model.training else 0.0
        # Not for the model's whole life: it would hold this loss, which holds the model. Text samples need all places.
        hook = self._head.register_forward_pre_hook(self._select)
        try:
            logits_NV = self._model(**batch.inputs, use_cache=False).logits
            if self._hidden is not None:
                weight_Vh: Any = self._head.weight
                return chunked_head_loss(self._hidden, weight_Vh, batch.labels, self._chunk_tokens, smoothing)
        finally:
            hook.remove()
            self._batch = self._hidden = None
        logits_NV = logits_NV.flatten(0, -2).float()
        return F.cross_entropy(logits_NV, batch.labels, reduction="sum", label_smoothing=smoothing)

    def _select(self, _head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Before the head: only the places with a label."""
        assert self._batch is not None, "the hook is there while a batch is"
        hidden_Nh, places = args[0].flatten(0, -2), self._batch.places
        if len(places) < len(hidden_Nh):
            hidden_Nh = hidden_Nh.index_select(0, places)
        if self._chunk_tokens and len(hidden_Nh) > self._chunk_tokens:
            # The head itself then computes one row only, which nobody reads.
            self._hidden = hidden_Nh
            hidden_Nh = hidden_Nh[:1].detach()
        return (hidden_Nh, *args[1:])
