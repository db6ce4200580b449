"""Head and cross entropy for some tokens at a time, so that the logits of a long batch are never all there.

Standard cross entropy keeps 12 bytes for each token and word of the vocabulary at its peak. Here the gradient of a
chunk is computed with its loss, in the forward pass, and only the gradients of the hidden states and of the head are
kept: three matmuls a chunk as in the plain form, no second pass. A chunk's logits are turned into their
gradient in place: 4 bytes for each token and word, and 4 more for the slope of a soft cap.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tui_trainer.models.logits import LogitTransform


def chunked_head_loss(
    hidden_Nh: Tensor,
    weight_Vh: Tensor,
    labels_N: Tensor,
    chunk_tokens: int,
    label_smoothing: float = 0.0,
    *,
    bias_V: Tensor | None = None,
    transform: LogitTransform | None = None,
) -> Tensor:
    """Sum of the cross entropy in nats over N labels; gradients go to the hidden states, the weight and the bias.

    `label_smoothing` as in torch's cross entropy: that share of each label is spread evenly over the vocabulary.
    `transform`: what becomes of the product before it is called logits.
    """
    if torch.is_autocast_enabled(hidden_Nh.device.type):
        dtype = torch.get_autocast_dtype(hidden_Nh.device.type)
        hidden_Nh, weight_Vh = hidden_Nh.to(dtype), weight_Vh.to(dtype)
    if not torch.is_grad_enabled():
        # A Function is told which arguments require a gradient, and not whether anybody will ask for it.
        hidden_Nh, weight_Vh = hidden_Nh.detach(), weight_Vh.detach()
        bias_V = None if bias_V is None else bias_V.detach()
    with torch.autocast(hidden_Nh.device.type, enabled=False):
        loss: Tensor = _ChunkedHeadLoss.apply(
            hidden_Nh, weight_Vh, bias_V, labels_N, chunk_tokens, label_smoothing, transform or LogitTransform()
        )
    return loss


class _ChunkedHeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        chunk_tokens: int,
        label_smoothing: float,
        transform: LogitTransform,
    ) -> Tensor:
        wants_hidden, wants_weight, wants_bias = ctx.needs_input_grad[:3]
        wants_any = wants_hidden or wants_weight or wants_bias
        loss = torch.zeros((), dtype=torch.float32, device=hidden_Nh.device)
        hidden_grad = torch.empty_like(hidden_Nh) if wants_hidden else None
        # Sums over many chunks lose bits in 16-bit numbers.
        weight_grad = torch.zeros_like(weight_Vh, dtype=torch.float32) if wants_weight else None
        bias_grad = torch.zeros_like(bias_V, dtype=torch.float32) if wants_bias and bias_V is not None else None
        for start in range(0, len(hidden_Nh), chunk_tokens):
            chunk = slice(start, start + chunk_tokens)
            hidden, labels = hidden_Nh[chunk], labels_N[chunk, None]
            logits = (hidden @ weight_Vh.T).float()
            if bias_V is not None:
                logits += bias_V
            slope = transform_product(logits, transform, with_slope=wants_any)
            chunk_loss, shares = _loss(logits, labels, label_smoothing)
            loss += chunk_loss
            # The next chunk's logits take the place of these, and do not come beside them.
            del logits
            if not wants_any:
                del shares
                continue
            grad = shares.scatter_add_(-1, labels, torch.full_like(labels, label_smoothing - 1, dtype=shares.dtype))
            if label_smoothing:
                grad -= label_smoothing / grad.shape[-1]
            if slope is not None:
                grad *= slope
                del slope
            if bias_grad is not None:
                bias_grad += grad.sum(dim=0)
            grad = grad.to(hidden.dtype)
            if hidden_grad is not None:
                torch.mm(grad, weight_Vh, out=hidden_grad[chunk])
            if weight_grad is not None:
                weight_grad += grad.T @ hidden
            del shares, grad
        ctx.save_for_backward(hidden_grad, weight_grad, bias_grad)
        ctx.dtypes = hidden_Nh.dtype, weight_Vh.dtype, None if bias_V is None else bias_V.dtype
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        scale, dtypes = grads[0], ctx.dtypes  # type: ignore[attr-defined]
        hidden_grad, weight_grad, bias_grad = ctx.saved_tensors  # type: ignore[attr-defined]
        return (
            None if hidden_grad is None else hidden_grad * scale.to(dtypes[0]),
            None if weight_grad is None else (weight_grad * scale).to(dtypes[1]),
            None if bias_grad is None else (bias_grad * scale).to(dtypes[2]),
            *(None,) * 4,
        )


def transform_product(
    logits_NV: Tensor, transform: LogitTransform, *, with_slope: bool = False
) -> Tensor | float | None:
    """Changes a product into logits, in place; gives the derivative of the one by the other, None where it is 1."""
    scale, cap = transform.scale, transform.soft_cap
    if cap is None:
        if scale == 1:
            return None
        logits_NV *= scale
        return scale
    logits_NV.mul_(scale / cap).tanh_()
    slope = logits_NV.square().neg_().add_(1).mul_(scale) if with_slope else None
    logits_NV *= cap
    return slope


def _loss(logits_NV: Tensor, labels_N1: Tensor, label_smoothing: float) -> tuple[Tensor, Tensor]:
    """The sum of the cross entropy, and the softmax, which takes the place of the logits."""
    logits_NV -= logits_NV.amax(dim=-1, keepdim=True)
    loss = (label_smoothing - 1) * logits_NV.gather(-1, labels_N1).sum()
    if label_smoothing:
        loss -= label_smoothing * logits_NV.mean(dim=-1).sum()
    sums = logits_NV.exp_().sum(dim=-1, keepdim=True)
    return loss + sums.log().sum(), logits_NV.div_(sums)
