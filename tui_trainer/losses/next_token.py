"""Compute the cross entropy of the next token, summed over the labels that count.

The head computes only positions that have a label, so padding, prompts and ends of documents cost no logits. Positions
are selected right before the head, so the model still scales or caps its logits. If logits are computed in chunks, this
module scales and caps them, as `models/modules.py` describes for each model.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tui_trainer.data.batching.collate import IGNORE, round_up_coarsely
from tui_trainer.losses.chunked_head import HeadLoss, transform_product
from tui_trainer.losses.fused_cross_entropy import CrossEntropy, reason_against
from tui_trainer.losses.micro_batch import MicroBatch, skip_mask_checks
from tui_trainer.models.modules import LogitTransform, logit_transform, uses_chunks
from tui_trainer.models.towers import language_config

# Allowed difference as a share of the largest logit. 16-bit matmuls round to a 256th, and models round again later.
_MOST_DIFFERENCE = 0.02


class NextTokenLoss:
    """Loss of language models. A call returns differentiable nats, summed over `batch.label_count` labels."""

    def __init__(self, model: Any, *, chunk_tokens: int = 0, label_smoothing: float = 0.0) -> None:
        """Make the loss, which computes `chunk_tokens` labels at a time (0: all) if `logit_transform` knows the model.

        `label_smoothing` is the share of each label that is spread over the vocabulary. Evaluations do not use it.
        Source: Szegedy et al., arXiv:1512.00567, section 7."""
        self._model = model
        self._head: nn.Module = model.get_output_embeddings()
        transform = logit_transform(language_config(model.config).to_dict())
        self._transform = transform or LogitTransform()
        self.chunk_tokens = chunk_tokens if transform and type(_layer_of(self._head)) is nn.Linear else 0
        """Number of labels whose logits are in memory at one time; 0 for all labels of a batch."""
        self.always_in_chunks = False
        """Whether batches that fit into one chunk are also computed in chunks, so that all passes run the same code."""
        self.kernel: CrossEntropy | None = None
        """Kernel that computes the losses of chunks; None for torch's operations."""
        self._label_smoothing = label_smoothing
        self._batch: MicroBatch | None = None
        self._hidden: Tensor | None = None

    def __call__(self, batch: MicroBatch) -> Tensor:
        return self._losses(batch, "sum")

    def label_losses(self, batch: MicroBatch) -> Tensor:
        """Return the loss of each label in nats, fp32 [N]. The backward pass computes the logits of chunks again."""
        return self._losses(batch, "none")

    def _losses(self, batch: MicroBatch, reduction: Literal["sum", "none"]) -> Tensor:
        self._batch = batch
        smoothing = self._label_smoothing if self._model.training else 0.0
        # The hook is removed after each pass: it keeps this loss and the model alive, and samples need all logits.
        hook = self._head.register_forward_pre_hook(self._select)
        try:
            with skip_mask_checks(batch):
                logits_NV = self._model(**batch.inputs, use_cache=False).logits
            if self._hidden is not None:
                return self._in_chunks(self._hidden, batch.labels, smoothing, reduction)
        finally:
            hook.remove()
            self._batch = self._hidden = None
        logits_NV, labels = logits_NV.flatten(0, -2).float(), batch.labels
        if padding := len(logits_NV) - len(labels):
            labels = F.pad(labels, (0, padding), value=IGNORE)
        losses = F.cross_entropy(logits_NV, labels, reduction=reduction, label_smoothing=smoothing)
        return losses[: len(batch.labels)] if padding and reduction == "none" else losses

    def chunks_match_model(self, batch: MicroBatch) -> bool:
        """Return whether logits computed in a chunk equal the model's own, at one position of a batch.

        If they do not, all logits are computed at once from now on."""
        products: list[Tensor] = []
        hooks = (
            self._head.register_forward_pre_hook(lambda _, args: (args[0].flatten(0, -2)[:1], *args[1:])),
            self._head.register_forward_hook(lambda _head, _args, product: products.append(product.detach())),
        )
        try:
            with torch.no_grad(), skip_mask_checks(batch):
                model_logits = self._model(**batch.inputs, use_cache=False).logits.flatten().float()
        finally:
            for hook in hooks:
                hook.remove()
        head_logits = products[0].flatten().float().clone()
        if (added_bias := self._added_bias) is not None:
            head_logits += added_bias
        transform_product(head_logits, self._transform)
        is_same = head_logits.shape == model_logits.shape and bool(
            (head_logits - model_logits).abs().max() <= _MOST_DIFFERENCE * model_logits.abs().max()
        )
        self.chunk_tokens = self.chunk_tokens if is_same else 0
        return is_same

    def use_kernel(self, kernel: CrossEntropy, device: torch.device, dtype: torch.dtype) -> str:
        """Use the kernel from now on if its results agree with this loss; otherwise return how they differ.

        Raises any error of the kernel."""
        class_count, soft_cap = _layer_of(self._head).out_features, self._transform.soft_cap
        reason = reason_against(
            kernel, device, dtype, class_count, label_smoothing=self._label_smoothing, soft_cap=soft_cap
        )
        self.kernel = None if reason else kernel
        return reason

    def _in_chunks(self, hidden_Nh: Tensor, labels_N: Tensor, smoothing: float, reduction: str) -> Tensor:
        layer = _layer_of(self._head)
        biases = [bias for bias in (layer.bias, self._added_bias) if bias is not None]
        head_loss = HeadLoss(
            chunk_tokens=self.chunk_tokens, label_smoothing=smoothing, transform=self._transform, kernel=self.kernel
        )
        bias_V = sum(biases[1:], biases[0]) if biases else None
        loss_function = head_loss.sum if reduction == "sum" else head_loss.label_losses
        return loss_function(hidden_Nh, _weight_of(self._head), labels_N, bias_V=bias_V)

    @property
    def _added_bias(self) -> Tensor | None:
        """Return the bias that BART adds to the logits after the head; None for other models."""
        bias: Tensor | None = getattr(self._model, "final_logits_bias", None)
        return None if bias is None else bias.flatten()

    def _select(self, _head: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Select the head's input at labelled positions; in 16 bits on a CPU, a `round_up_coarsely` number of them."""
        assert self._batch is not None, "the hook is there while a batch is"
        hidden_Nh, places = args[0].flatten(0, -2), self._batch.label_positions
        is_forced = self.always_in_chunks or self.kernel is not None
        is_chunked = uses_chunks(len(places), self.chunk_tokens) or (self.chunk_tokens and is_forced)
        if len(places) < len(hidden_Nh):
            if not is_chunked and hidden_Nh.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
                # The first position fills the rest. Its additional logits have no label.
                places = F.pad(places, (0, round_up_coarsely(len(places), len(hidden_Nh)) - len(places)))
            hidden_Nh = hidden_Nh.index_select(0, places)
        if is_chunked:
            # The head itself then computes only one row, which is not used.
            self._hidden = hidden_Nh
            hidden_Nh = hidden_Nh[:1].detach()
        return (hidden_Nh, *args[1:])


def _layer_of(head: Any) -> Any:
    """Return the linear layer of the head inside peft's wrappers.

    If peft trains the whole head, it is the trained copy. If only some rows train, it is the frozen layer."""
    if (adapter := getattr(head, "token_adapter", None)) is not None:
        return adapter.get_base_layer()
    saved_modules = getattr(head, "modules_to_save", None)
    return head if saved_modules is None else saved_modules[head.active_adapters[0]]


def _weight_of(head: Any) -> Tensor:
    """Return the weight of the head. If only some rows train, it contains their trained values."""
    adapter = getattr(head, "token_adapter", None)
    weight: Tensor = _layer_of(head).weight if adapter is None else adapter.get_merged_weights(adapter.active_adapters)
    return weight
