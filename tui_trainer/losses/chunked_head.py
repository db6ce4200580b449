"""Head and cross entropy for some tokens at a time, so that the logits of a long batch are never all there.

Standard cross entropy keeps 12 bytes for each token and word of the vocabulary at its peak. Here the gradient of a
chunk is computed with its loss, in the forward pass, and only the gradients of the hidden states and of the head's
weight are kept: three matrix products a chunk as in the plain form, no second pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

# What a model's config says about logits that are changed after the head.
_CHANGED_LOGITS = (
    "final_logit_softcapping",
    "logits_soft_cap",
    "output_logit_soft_cap",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
)


def has_plain_head(model: Any) -> bool:
    """Whether the logits are the product of hidden states and one weight matrix, and nothing else."""
    head, config = model.get_output_embeddings(), model.config.get_text_config()
    # BART adds one number to each logit after the head; in most files all of them are 0.
    added = getattr(model, "final_logits_bias", None)
    if added is not None and bool(added.any()):
        return False
    changed = any(getattr(config, name, None) not in (None, 1, 1.0) for name in _CHANGED_LOGITS)
    return type(head) is nn.Linear and head.bias is None and not changed


def chunked_head_loss(
    hidden_Nh: Tensor, weight_Vh: Tensor, labels_N: Tensor, chunk_tokens: int, label_smoothing: float = 0.0
) -> Tensor:
    """Sum of the cross entropy in nats over N labels; gradients go to the hidden states and to the weight.

    `label_smoothing` as in torch's cross entropy: that share of each label is spread evenly over the vocabulary.
    """
    if torch.is_autocast_enabled(hidden_Nh.device.type):
        dtype = torch.get_autocast_dtype(hidden_Nh.device.type)
        hidden_Nh, weight_Vh = hidden_Nh.to(dtype), weight_Vh.to(dtype)
    if not torch.is_grad_enabled():
        # A Function is told which arguments require a gradient, and not whether anybody will ask for it.
        hidden_Nh, weight_Vh = hidden_Nh.detach(), weight_Vh.detach()
    with torch.autocast(hidden_Nh.device.type, enabled=False):
        loss: Tensor = _ChunkedHeadLoss.apply(hidden_Nh, weight_Vh, labels_N, chunk_tokens, label_smoothing)
    return loss


class _ChunkedHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden_Nh: Tensor, weight_Vh: Tensor, labels_N: Tensor, chunk_tokens: int, label_smoothing: float
    ) -> Tensor:
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        loss = torch.zeros((), dtype=torch.float32, device=hidden_Nh.device)
        hidden_grad = torch.empty_like(hidden_Nh) if wants_hidden else None
        # Sums over many chunks lose bits in 16-bit numbers.
        weight_grad = torch.zeros_like(weight_Vh, dtype=torch.float32) if wants_weight else None
        for start in range(0, len(hidden_Nh), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            hidden, labels = hidden_Nh[chunk], labels_N[chunk, None]
            logits = (hidden @ weight_Vh.T).float()
            log_normaliser = logits.logsumexp(dim=-1, keepdim=True)
            loss += (log_normaliser - (1 - label_smoothing) * logits.gather(-1, labels)).sum()
            if label_smoothing:
                loss -= label_smoothing * logits.mean(dim=-1).sum()
            if hidden_grad is None and weight_grad is None:
                continue
            grad = logits.sub_(log_normaliser).exp_()
            grad.scatter_add_(-1, labels, torch.full_like(labels, label_smoothing - 1, dtype=grad.dtype))
            if label_smoothing:
                grad -= label_smoothing / grad.shape[-1]
            grad = grad.to(hidden.dtype)
            if hidden_grad is not None:
                torch.mm(grad, weight_Vh, out=hidden_grad[chunk])
            if weight_grad is not None:
                weight_grad += grad.T @ hidden
        ctx.save_for_backward(hidden_grad, weight_grad)
        ctx.weight_dtype = weight_Vh.dtype
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        hidden_grad, weight_grad = ctx.saved_tensors  # type: ignore[attr-defined]
        scale = grads[0]
        return (
            None if hidden_grad is None else hidden_grad * scale.to(hidden_grad.dtype),
            None if weight_grad is None else (weight_grad * scale).to(ctx.weight_dtype),  # type: ignore[attr-defined]
            None,
            None,
            None,
        )
