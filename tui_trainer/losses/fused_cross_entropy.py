"""Compute cross entropy in one kernel of Liger, which reads logits twice and overwrites them with their gradient.

torch's operations pass eight times over logits in fp32. Only Liger's kernel is used, not its autograd functions:
LigerCrossEntropyFunction rounds losses to the dtype of the logits. LigerFusedLinearCrossEntropyFunction supports
neither weights of labels nor scales of logits, and computes few tokens at a time if the vocabulary is large.
"""

from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from tui_trainer.data.batching.collate import IGNORE
from tui_trainer.hardware.gpu_models import BLACKWELL_FROM

_MODULE = "liger_kernel.ops.cross_entropy"
# Source: liger_kernel/ops/cross_entropy.py of 0.8.5, `cross_entropy_forward`.
_LARGEST_BLOCK = 32768
# Largest relative error of a loss, and largest error of a gradient beyond its rounding to 16 bits.
_MOST_LOSS_ERROR, _MOST_GRADIENT_ERROR = 1e-6, 1e-6
_CHECKED_LABELS = 8


class CrossEntropy(Protocol):
    """Kernel that returns the loss of each label in nats, fp32 [N].

    It overwrites `logits_NV`, whose rows must be contiguous, with `gradient_scale` times the gradient of the summed
    losses. If `gradient_scale` is None, no gradient is computed. `soft_cap` has the meaning of `LogitTransform`."""

    def __call__(
        self,
        logits_NV: Tensor,
        labels_N: Tensor,
        *,
        label_smoothing: float,
        soft_cap: float | None,
        gradient_scale: float | None,
    ) -> Tensor: ...


def find_kernel() -> CrossEntropy:
    """Return Liger's kernel. Raises ImportError or AttributeError if the installed library does not have it."""
    kernel = import_module(_MODULE).liger_cross_entropy_kernel
    parameter_names = frozenset(kernel.arg_names)

    def cross_entropy(
        logits_NV: Tensor,
        labels_N: Tensor,
        *,
        label_smoothing: float,
        soft_cap: float | None,
        gradient_scale: float | None,
    ) -> Tensor:
        label_count, vocabulary = len(logits_NV), logits_NV.shape[1]
        losses = logits_NV.new_empty(label_count, dtype=torch.float32)
        scale = gradient_scale or 1.0
        settings: dict[str, Any] = {
            "X_ptr": logits_NV, "X_stride": logits_NV.stride(0), "Y_ptr": labels_N, "Y_stride": labels_N.stride(0),
            "loss_ptr": losses, "loss_stride": 1, "n_cols": vocabulary,
            # Loss and gradient of a mean over 1 / scale labels are scaled before they are rounded.
            "reduction": "mean", "n_non_ignore": 1 / scale, "ignore_index": IGNORE,
            "label_smoothing": label_smoothing, "softcap": soft_cap, "HAS_SOFTCAPPING": soft_cap is not None,
            "HAS_GRADIENTS": gradient_scale is not None,
            "BLOCK_SIZE": min(_LARGEST_BLOCK, 1 << (vocabulary - 1).bit_length()),
        }  # fmt: skip
        # These are switched off: class weights, the squared normaliser, and the share of correct tokens.
        unused_settings = {
            "weight_ptr": None, "HAS_WEIGHT": False, "sum_non_ignore_weight": 1.0, "weight_sum": 0.0,
            "lse_square_scale": 0.0, "z_loss_ptr": None, "RETURN_Z_LOSS": False,
            "token_accuracy_ptr": None, "token_accuracy_stride": 0, "RETURN_TOKEN_ACCURACY": False,
            "predicted_tokens_ptr": None, "predicted_tokens_stride": 0, "RETURN_PREDICTED_TOKENS": False,
        }  # fmt: skip
        settings |= {name: value for name, value in unused_settings.items() if name in parameter_names}
        if label_count:
            kernel[(label_count,)](**settings, num_warps=_warps(logits_NV))
        return losses / scale

    return cross_entropy


def _warps(logits: Tensor) -> int:
    """Return the fastest number of warps per block. Source: Liger's `cross_entropy_forward` of 0.8.5."""
    if torch.version.hip:
        return 16
    is_blackwell = logits.is_cuda and torch.cuda.get_device_capability(logits.device) >= BLACKWELL_FROM
    return 8 if is_blackwell and logits.element_size() == 2 else 32


def reason_against(
    kernel: CrossEntropy, device: torch.device, dtype: torch.dtype, vocabulary: int, **settings: Any
) -> str:
    """Compare the kernel with the formula in float64, and return how they differ, or an empty string.

    A loss may be off by a millionth of itself, a gradient by one rounding. `settings` are keyword arguments of
    `CrossEntropy`. This compiles the kernel, with and without gradients, and uses no random numbers."""
    numbers = torch.arange(_CHECKED_LABELS * vocabulary, dtype=torch.float64, device=device)
    logits = (8 * torch.sin(numbers * 12.9898)).view(_CHECKED_LABELS, vocabulary).to(dtype)
    labels = torch.arange(_CHECKED_LABELS, device=device) * (vocabulary // _CHECKED_LABELS)
    logits_double = logits.double().requires_grad_()
    cap, smoothing = settings["soft_cap"], settings["label_smoothing"]
    with torch.enable_grad():
        capped_logits = logits_double if cap is None else cap * torch.tanh(logits_double / cap)
        losses = torch.nn.functional.cross_entropy(capped_logits, labels, reduction="none", label_smoothing=smoothing)
        (expected_grad,) = torch.autograd.grad(losses.sum(), logits_double)
    losses = losses.detach()
    for scale in (None, 1.0):
        difference = kernel(logits, labels, gradient_scale=scale, **settings) - losses
        # Not `>`: NaN is no agreement either.
        if not bool((difference.abs() <= _MOST_LOSS_ERROR * losses.abs()).all()):
            return f"losses differ by {float((difference / losses).abs().max()):.1e} (relative)"
    difference = (logits - expected_grad).abs()
    if not bool((difference <= torch.finfo(dtype).eps * expected_grad.abs() + _MOST_GRADIENT_ERROR).all()):
        return f"gradients differ by {float(difference.max()):.1e}"
    return ""
