"""Head and cross entropy for some tokens at a time, so that the logits of a long batch are never all there.

Standard cross entropy keeps 12 bytes for each token and word of the vocabulary at its peak. A loss that is a sum has
its gradient computed with it, chunk by chunk in the forward pass, and only the gradients of the hidden states and of
the head are kept: three matmuls a chunk as in the plain form, no second pass. Losses by label, of which the caller
makes something whose gradient is known later, have their logits computed once more in the backward pass: four matmuls,
and nothing is kept but the hidden states.

A chunk's logits are turned into their gradient in place: by torch's operations in fp32, 4 bytes for each token and
word, and 4 more for the slope of a soft cap; by a kernel (`fused_cross_entropy.py`) in the dtype of the product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tui_trainer.losses.fused_cross_entropy import CrossEntropy
from tui_trainer.models.modules import LogitTransform

# p - y in fp16 would be 0 below 6e-8. What no loss scale has reached yet is that much larger, and in the end smaller.
FP16_LIFT = 256.0
_AS_THEY_ARE = LogitTransform()
Three = tuple[Tensor | None, Tensor | None, Tensor | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadLoss:
    """How logits are made of hidden states, and losses of logits.

    `label_smoothing` as in torch's cross entropy: that share of each label is spread evenly over the vocabulary.
    `transform`: what becomes of the product before it is called logits. `kernel`: computes losses and gradients of a
    chunk; None: torch's operations do.
    """

    chunk_tokens: int
    label_smoothing: float = 0.0
    transform: LogitTransform = _AS_THEY_ARE
    kernel: CrossEntropy | None = None

    def sum(
        self,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        labels_N: Tensor,
        *,
        bias_V: Tensor | None = None,
        weights_N: Tensor | None = None,
    ) -> Tensor:
        """The cross entropy in nats, summed over N labels, each times its weight; gradients go to the hidden states,
        the head's weight and its bias, and are made in the forward pass."""
        return self._apply(_Sum, hidden_Nh, weight_Vh, bias_V, labels_N, weights_N)

    def by_label(
        self, hidden_Nh: Tensor, weight_Vh: Tensor, labels_N: Tensor, *, bias_V: Tensor | None = None
    ) -> Tensor:
        """The cross entropy in nats of each label, fp32 [N]; the backward pass computes the logits again."""
        return self._apply(_ByLabel, hidden_Nh, weight_Vh, bias_V, labels_N, None)

    def _apply(
        self, function: Any, hidden_Nh: Tensor, weight_Vh: Tensor, bias_V: Tensor | None, *labels: Any
    ) -> Tensor:
        if torch.is_autocast_enabled(hidden_Nh.device.type):
            dtype = torch.get_autocast_dtype(hidden_Nh.device.type)
            hidden_Nh, weight_Vh = hidden_Nh.to(dtype), weight_Vh.to(dtype)
        if not torch.is_grad_enabled():
            # A Function is told which arguments require a gradient, and not whether anybody will ask for it.
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
        how: HeadLoss,
    ) -> Tensor:
        chunks = _Chunks(how, hidden_Nh, weight_Vh, bias_V, labels_N, ctx.needs_input_grad[:3], weights_N)
        loss = torch.zeros((), dtype=torch.float32, device=hidden_Nh.device)
        for chunk in chunks.slices:
            if how.kernel is None and weights_N is None:
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
        sums = zip(ctx.saved_tensors, dtypes, strict=True)  # type: ignore[attr-defined]
        return *(None if x is None else _times(x, scale, dtype) for x, dtype in sums), *(None,) * 3


class _ByLabel(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        _: None,
        how: HeadLoss,
    ) -> Tensor:
        chunks = _Chunks(how, hidden_Nh, weight_Vh, bias_V, labels_N, (False,) * 3)
        ctx.save_for_backward(hidden_Nh, weight_Vh, bias_V, labels_N)
        ctx.how = how
        return torch.cat([chunks.run(chunk, by_label=True) for chunk in chunks.slices])

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor | None, ...]:
        given, how = ctx.saved_tensors, ctx.how  # type: ignore[attr-defined]
        needs = ctx.needs_input_grad[:3]  # type: ignore[attr-defined]
        hidden_Nh, weight_Vh, bias_V, labels_N = given
        chunks = _Chunks(how, hidden_Nh, weight_Vh, bias_V, labels_N, needs, grads[0])
        for chunk in chunks.slices:
            chunks.run(chunk, by_label=True)
        found = (None if x is None else x.to(of.dtype) for x, of in zip(chunks.gradients, given[:3], strict=True))
        return *found, *(None,) * 3


def _times(x: Tensor, scale: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return the product, computed in fp32 and rounded once, without a copy of `x` in fp32.

    `scale` is not rounded to the dtype of `x`: 1/labels would be off by up to 0.4 % in bf16, and may be 0 in fp16.
    """
    return torch.mul(x, scale.view((1,) * x.dim()), out=torch.empty_like(x, dtype=dtype))


class _Chunks:
    """Logits, losses and the sums of gradients, chunk by chunk. `factors_N`: by which each label's gradient is
    multiplied; 16-bit gradients are rounded behind it where torch's operations compute them. `lift`: all gradients are
    so many times as large."""

    def __init__(
        self,
        how: HeadLoss,
        hidden_Nh: Tensor,
        weight_Vh: Tensor,
        bias_V: Tensor | None,
        labels_N: Tensor,
        needs: Sequence[bool],
        factors_N: Tensor | None = None,
    ) -> None:
        self._how, self._hidden, self._weight, self._bias, self._labels = how, hidden_Nh, weight_Vh, bias_V, labels_N
        self._factors = None if factors_N is None else factors_N.float()
        # Without labels there is one chunk of none, whose gradients are zeros: other processes wait for some.
        starts = range(0, max(len(hidden_Nh), 1), how.chunk_tokens)
        self.slices = [slice(start, start + how.chunk_tokens) for start in starts]
        self._needs_hidden, self._needs_weight, self._needs_bias = needs
        self._needs_any = any(needs)
        self._hidden_grad = torch.empty_like(hidden_Nh) if self._needs_hidden else None
        self._weight_grad: Tensor | None = None
        self._bias_grad: Tensor | None = None
        self.lift = FP16_LIFT if hidden_Nh.dtype == torch.float16 and factors_N is None else 1.0

    @property
    def gradients(self) -> Three:
        """Of the hidden states, of the weight and of the bias; None where there is none."""
        return self._hidden_grad, self._weight_grad, self._bias_grad

    def run(self, chunk: slice, *, by_label: bool) -> Tensor:
        """The losses of a chunk's labels, or their sum; gradients are added to what there is."""
        if self._how.kernel is not None:
            return self._run_kernel(chunk, self._how.kernel)
        smoothing, labels = self._how.label_smoothing, self._labels[chunk, None]
        logits = (self._hidden[chunk] @ self._weight.T).float()
        if self._bias is not None:
            logits += self._bias
        slope = transform_product(logits, self._how.transform, with_slope=self._needs_any)
        factor: Tensor | float = self.lift if self._factors is None else self._factors[chunk, None]
        losses, shares = _loss(logits, labels, smoothing, by_label=by_label, factor=factor)
        # The next chunk's logits take the place of these, and do not come beside them.
        del logits
        if not self._needs_any:
            return losses
        of_label = factor * (smoothing - 1)
        if not isinstance(of_label, Tensor):
            of_label = torch.full_like(labels, of_label, dtype=shares.dtype)
        grad = shares.scatter_add_(-1, labels, of_label)
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
        hidden, labels, transform = self._hidden[chunk], self._labels[chunk], self._how.transform
        # The scale goes into the product, before it is rounded.
        logits = _product(hidden, self._weight.T, transform.scale, self._bias)
        lift = FP16_LIFT if hidden.dtype == torch.float16 else 1.0
        losses = kernel(
            logits,
            labels,
            label_smoothing=self._how.label_smoothing,
            soft_cap=transform.soft_cap,
            gradient_scale=lift if self._needs_any else None,
        )
        if self._needs_any:
            factors = None if self._factors is None else self._factors[chunk, None] / lift
            if self._needs_bias:
                rows = logits if factors is None else logits * factors
                self._add_to_bias(transform.scale * rows.sum(dim=0, dtype=torch.float32))
            self._add(chunk, logits, factors, transform.scale)
        return losses

    def _add(self, chunk: slice, grad_NV: Tensor, factors_N1: Tensor | None = None, scale: float = 1.0) -> None:
        """What a gradient of the logits, or of the scaled product, gives to the hidden states and the weight. Its rows
        are multiplied by their factors where they are as short as the hidden states."""
        hidden = self._hidden[chunk]
        if self._hidden_grad is not None:
            _product(grad_NV, self._weight, scale, out=self._hidden_grad[chunk])
            if factors_N1 is not None:
                self._hidden_grad[chunk].mul_(factors_N1)
        if self._needs_weight:
            hidden = hidden if factors_N1 is None else hidden * factors_N1.to(hidden.dtype)
            found = _product(grad_NV.T, hidden, scale)
            if len(self.slices) > 1:
                # Sums over many chunks lose bits in 16-bit numbers.
                found = found.float() if self._weight_grad is None else self._weight_grad.add_(found)
            self._weight_grad = found

    def _add_to_bias(self, found: Tensor) -> None:
        self._bias_grad = found if self._bias_grad is None else self._bias_grad.add_(found)


def _product(one: Tensor, other: Tensor, scale: float, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """scale x (one @ other + bias), rounded once."""
    if bias is not None:
        return torch.addmm(bias.to(one.dtype), one, other, beta=scale, alpha=scale)
    if scale == 1:
        return torch.mm(one, other, out=out)
    out = one.new_empty((len(one), other.shape[1])) if out is None else out
    return torch.addmm(out, one, other, beta=0, alpha=scale, out=out)


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


def _loss(
    logits_NV: Tensor, labels_N1: Tensor, label_smoothing: float, *, by_label: bool, factor: Tensor | float
) -> tuple[Tensor, Tensor]:
    """The cross entropy of each label or their sum, and the softmax times a factor, which takes the place of the
    logits."""

    def reduced(x: Tensor) -> Tensor:
        return x.flatten() if by_label else x.sum()

    logits_NV -= logits_NV.amax(dim=-1, keepdim=True)
    loss = (label_smoothing - 1) * reduced(logits_NV.gather(-1, labels_N1))
    if label_smoothing:
        loss -= label_smoothing * reduced(logits_NV.mean(dim=-1))
    sums = logits_NV.exp_().sum(dim=-1, keepdim=True)
    loss += reduced(sums.log())
    one = isinstance(factor, float) and factor == 1
    return loss, logits_NV.div_(sums) if one else logits_NV.mul_(factor / sums)
