"""Compute head and cross entropy for chunks of tokens, so that a long batch never has all of its logits in memory.

Standard cross entropy takes 12 bytes for each token and vocabulary entry at its peak. `HeadLoss.sum` computes the loss
and its gradient chunk by chunk in the forward pass, and keeps only the gradients of the hidden states and of the head:
three matmuls per chunk, as without chunks. `HeadLoss.label_losses` is for callers whose loss is a function of the
losses of labels, so that gradients are known only later. It keeps only the hidden states, and computes logits again in
the backward pass: four matmuls per chunk.

The logits of a chunk are overwritten with their gradient: by torch's operations in fp32 (4 bytes for each token and
vocabulary entry, and 4 more with a soft cap), or by a kernel (`fused_cross_entropy.py`) in the dtype of the logits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tui_trainer.losses.fused_cross_entropy import CrossEntropy
from tui_trainer.models.modules import LogitTransform

# Gradients of fp16 logits below 6e-8 would become 0, because the loss scale is applied only later. They are multiplied
# by this factor, and divided by it in the backward pass.
FP16_LIFT = 256.0
_NO_TRANSFORM = LogitTransform()
HeadGradients = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadLoss:
    """Head and cross entropy, computed for `chunk_tokens` labels at a time."""

    chunk_tokens: int
    label_smoothing: float = 0.0
    """Share (0 to 1) of each label that is spread evenly over the vocabulary, as in torch's cross entropy."""
    transform: LogitTransform = _NO_TRANSFORM
    """Scale and soft cap that turn the product of hidden states and weight into logits."""
    kernel: CrossEntropy | None = None
    """Kernel for the losses and gradients of a chunk; None for torch's operations."""

    def sum(
        self,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        labels_N: Tensor,
        *,
        bias_V: Tensor | None = None,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """Return the cross entropy in nats, summed over N labels. `weights_N` multiplies the loss of each label.

        The forward pass already computes the gradients of hidden states, weight and bias."""
        return self._apply(_Sum, hidden_Nh, weight_Vh, bias_V, labels_N, weights_N)

    def label_losses(
        self, hidden_Nh: Tensor, weight_Vh: Tensor, labels_N: Tensor, *, bias_V: Tensor | None = None
    ) -> Tensor:
        """Return the cross entropy of each label in nats, fp32 [N]. The backward pass computes the logits again."""
        return self._apply(_ByLabel, hidden_Nh, weight_Vh, bias_V, labels_N, None)

    def _apply(
        self, function: Any, hidden_Nh: Tensor, weight_Vh: Tensor, bias_V: Tensor | None, *labels: Any
    ) -> Tensor:
        if torch.is_autocast_enabled(hidden_Nh.device.type):
            dtype = torch.get_autocast_dtype(hidden_Nh.device.type)
            hidden_Nh, weight_Vh = hidden_Nh.to(dtype), weight_Vh.to(dtype)
        if not torch.is_grad_enabled():
            # An autograd function sees which arguments require a gradient, but not that gradients are switched off.
            hidden_Nh, weight_Vh = hidden_Nh.detach(), weight_Vh.detach()
            bias_V = None if bias_V is None else bias_V.detach()
        with torch.autocast(hidden_Nh.device.type, enabled=False):
            loss: Tensor = function.apply(hidden_Nh, weight_Vh, bias_V, *labels, self)
        return loss


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        weights_N: Tensor | None,
        head_loss: HeadLoss,
    ) -> Tensor:
        chunks = _Chunks(head_loss, hidden_Nh, weight_Vh, bias_V, labels_N, ctx.needs_input_grad[:3], weights_N)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_Nh.device)
        for chunk in chunks.slices:
            if head_loss.kernel is None and weights_N is None:
                loss += chunks.run(chunk, by_label=False)
            else:
                losses = chunks.run(chunk, by_label=True)
                loss += losses.sum() if weights_N is None else losses @ weights_N[chunk].float()
        ctx.save_for_backward(*chunks.gradients)
        ctx.dtypes = hidden_Nh.dtype, weight_Vh.dtype, None if bias_V is None else bias_V.dtype
        ctx.lift = chunks.lift
        return loss

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (scale,), dtypes = grads, ctx.dtypes  # type: ignore[attr-defined]
        if (lift := ctx.lift) != 1:  # type: ignore[attr-defined]
            scale = scale / lift
        gradients_with_dtypes = zip(ctx.saved_tensors, dtypes, strict=True)  # type: ignore[attr-defined]
        return *(None if x is None else _times(x, scale, dtype) for x, dtype in gradients_with_dtypes), *(None,) * 3


class _ByLabel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        _: None,
        head_loss: HeadLoss,
    ) -> Tensor:
        chunks = _Chunks(head_loss, hidden_Nh, weight_Vh, bias_V, labels_N, (False,) * 3)
        ctx.save_for_backward(hidden_Nh, weight_Vh, bias_V, labels_N)
        ctx.head_loss = head_loss
        return torch.cat([chunks.run(chunk, by_label=True) for chunk in chunks.slices])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        saved_tensors, head_loss = ctx.saved_tensors, ctx.head_loss  # type: ignore[attr-defined]
        needs_gradients = ctx.needs_input_grad[:3]  # type: ignore[attr-defined]
        hidden_Nh, weight_Vh, bias_V, labels_N = saved_tensors
        chunks = _Chunks(head_loss, hidden_Nh, weight_Vh, bias_V, labels_N, needs_gradients, grads[0])
        for chunk in chunks.slices:
            chunks.run(chunk, by_label=True)
        gradients_with_inputs = zip(chunks.gradients, saved_tensors[:3], strict=True)
        return *(None if grad is None else grad.to(x.dtype) for grad, x in gradients_with_inputs), *(None,) * 3


def _times(x: Tensor, scale: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return `x * scale` in `dtype`, computed in fp32 and rounded once, without a copy of `x` in fp32.

    `scale` is not rounded to the dtype of `x`: 1/labels would be off by up to 0.4 % in bf16, and may be 0 in fp16."""
    return torch.mul(x, scale.view((1,) * x.dim()), out=torch.empty_like(x, dtype=dtype))


class _Chunks:
    """Losses and their summed gradients, computed chunk by chunk.

    `factors_N` multiplies the gradient of each label. All gradients are `lift` times too large, so that small ones do
    not become 0 in fp16; the caller divides by `lift`."""

    def __init__(
        self,
        head_loss: HeadLoss,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        needs: Sequence[bool],
        factors_N: Tensor | None = None,
    ) -> None:
        self._head_loss, self._labels = head_loss, labels_N
        self._hidden, self._weight, self._bias = hidden_Nh, weight_Vh, bias_V
        self._factors = None if factors_N is None else factors_N.float()
        # Without labels there is one empty chunk with gradients of zero, because other processes wait for gradients.
        starts = range(0, max(len(hidden_Nh), 1), head_loss.chunk_tokens)
        self.slices = [slice(start, start + head_loss.chunk_tokens) for start in starts]
        self._needs_hidden, self._needs_weight, self._needs_bias = needs
        self._needs_any = any(needs)
        self._hidden_grad = torch.empty_like(hidden_Nh) if self._needs_hidden else None
        self._weight_grad: Tensor | None = None
        self._bias_grad: Tensor | None = None
        self.lift = FP16_LIFT if hidden_Nh.dtype == torch.float16 and factors_N is None else 1.0

    @property
    def gradients(self) -> HeadGradients:
        """(gradient of hidden states, of weight, of bias), each None if it is not needed."""
        return self._hidden_grad, self._weight_grad, self._bias_grad

    def run(self, chunk: slice, *, by_label: bool) -> Tensor:
        """Return the loss of each label of a chunk, or their sum. Add the gradients of the chunk to the sums."""
        if self._head_loss.kernel is not None:
            return self._run_kernel(chunk, self._head_loss.kernel)
        smoothing, labels = self._head_loss.label_smoothing, self._labels[chunk, None]
        logits = (self._hidden[chunk] @ self._weight.T).float()
        if self._bias is not None:
            logits += self._bias
        slope = transform_product(logits, self._head_loss.transform, with_slope=self._needs_any)
        factor: Tensor | float = self.lift if self._factors is None else self._factors[chunk, None]
        losses, shares = _loss(logits, labels, smoothing, by_label=by_label, factor=factor)
        # The logits of the next chunk reuse this memory.
        del logits
        if not self._needs_any:
            return losses
        label_factor = factor * (smoothing - 1)
        if not isinstance(label_factor, Tensor):
            label_factor = torch.full_like(labels, label_factor, dtype=shares.dtype)
        grad = shares.scatter_add_(-1, labels, label_factor)
        if smoothing:
            grad -= factor * smoothing / grad.shape[-1]
        if slope is not None:
            grad *= slope
            del slope
        if self._needs_bias:
            self._add_to_bias(grad.sum(dim=0))
        grad = grad.to(self._hidden.dtype)
        del shares
        self._add(chunk, grad)
        return losses

    def _run_kernel(self, chunk: slice, kernel: CrossEntropy) -> Tensor:
        hidden, labels, transform = self._hidden[chunk], self._labels[chunk], self._head_loss.transform
        # The scale is applied before the product is rounded.
        logits = _product(hidden, self._weight.T, transform.scale, self._bias)
        lift = FP16_LIFT if hidden.dtype == torch.float16 else 1.0
        smoothing, scale = self._head_loss.label_smoothing, lift if self._needs_any else None
        losses = kernel(logits, labels, label_smoothing=smoothing, soft_cap=transform.soft_cap, gradient_scale=scale)
        if self._needs_any:
            factors = None if self._factors is None else self._factors[chunk, None] / lift
            if self._needs_bias:
                logit_grads = logits if factors is None else logits * factors
                self._add_to_bias(transform.scale * logit_grads.sum(dim=0, dtype=torch.float32))
            self._add(chunk, logits, factors, transform.scale)
        return losses

    def _add(self, chunk: slice, grad_NV: Tensor, factors_N1: Tensor | None = None, scale: float = 1.0) -> None:
        """Add a chunk, whose logits have the gradient `grad_NV`, to the gradients of hidden states and weight.

        `factors_N1` multiplies rows of hidden states, because these are shorter than rows of logits."""
        hidden = self._hidden[chunk]
        if self._hidden_grad is not None:
            _product(grad_NV, self._weight, scale, out=self._hidden_grad[chunk])
            if factors_N1 is not None:
                self._hidden_grad[chunk].mul_(factors_N1)
        if self._needs_weight:
            hidden = hidden if factors_N1 is None else hidden * factors_N1.to(hidden.dtype)
            weight_grad = _product(grad_NV.T, hidden, scale)
            if len(self.slices) > 1:
                # Sums over many chunks are in fp32, because 16-bit sums lose bits.
                earlier_grad = self._weight_grad
                weight_grad = weight_grad.float() if earlier_grad is None else earlier_grad.add_(weight_grad)
            self._weight_grad = weight_grad

    def _add_to_bias(self, bias_grad: Tensor) -> None:
        self._bias_grad = bias_grad if self._bias_grad is None else self._bias_grad.add_(bias_grad)


def _product(x: Tensor, y: Tensor, scale: float, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """Return `scale * (x @ y + bias)`, rounded once."""
    if bias is not None:
        return torch.addmm(bias.to(x.dtype), x, y, beta=scale, alpha=scale)
    if scale == 1:
        return torch.mm(x, y, out=out)
    out = x.new_empty((len(x), y.shape[1])) if out is None else out
    return torch.addmm(out, x, y, beta=0, alpha=scale, out=out)


def transform_product(
    logits_NV: Tensor, transform: LogitTransform, *, with_slope: bool = False
) -> Tensor | float | None:
    """Scale and cap `logits_NV` in place. Return the derivative of the result by the input; None if it is 1."""
    scale, soft_cap = transform.scale, transform.soft_cap
    if soft_cap is None:
        if scale == 1:
            return None
        logits_NV *= scale
        return scale
    logits_NV.mul_(scale / soft_cap).tanh_()
    slope = logits_NV.square().neg_().add_(1).mul_(scale) if with_slope else None
    logits_NV *= soft_cap
    return slope


def _loss(
    logits_NV: Tensor, labels_N1: Tensor, label_smoothing: float, *, by_label: bool, factor: Tensor | float
) -> tuple[Tensor, Tensor]:
    """Return (cross entropy of each label, or their sum; `factor` times the softmax, which overwrites the logits)."""

    def reduce_losses(x: Tensor) -> Tensor:
        return x.flatten() if by_label else x.sum()

    logits_NV -= logits_NV.amax(dim=-1, keepdim=True)
    loss = (label_smoothing - 1) * reduce_losses(logits_NV.gather(-1, labels_N1))
    if label_smoothing:
        loss -= label_smoothing * reduce_losses(logits_NV.mean(dim=-1))
    exp_sums = logits_NV.exp_().sum(dim=-1, keepdim=True)
    loss += reduce_losses(exp_sums.log())
    is_unscaled = isinstance(factor, float) and factor == 1
    return loss, logits_NV.div_(exp_sums) if is_unscaled else logits_NV.mul_(factor / exp_sums)
