"""Check in the first steps after each start that gradients reach all weights that should learn.

A pattern may freeze a weight by mistake, or a dropout of 1 may cut off an adapter. The run still prints a loss then,
but trains nothing, or not everything.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# One step is not enough: the second matrix of an adapter starts at 0, and until it changes the first has no gradient.
CHECKED_STEPS = 3
# Experts get a gradient only if tokens are routed to them, and poolers only in tasks that pool.
_SOMETIMES_UNUSED = ("experts.", ".pooler.")
_ADDED_TOKENS = ".trainable_tokens_"  # as peft names the rows of added tokens
_NAMED = 3


class FirstGradients:
    """Largest absolute value of each weight's gradient in the first steps. Only `words` waits for the device."""

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        # Vectors are left out, because a bias before a softmax may have no gradient. Sharded weights are left out too.
        self._trained = {
            name: weight
            for name, weight in trained.items()
            if weight.ndim >= 2
            and not isinstance(weight, DTensor)
            and not any(part in name for part in _SOMETIMES_UNUSED)
        }
        self._largest: Tensor | None = None
        self._steps = 0

    def record_gradients(self) -> None:
        """Record the gradients of a step. Call this between its backward pass and the update."""
        if self._steps >= CHECKED_STEPS or not self._trained:
            return
        self._steps += 1
        device = next(iter(self._trained.values())).device
        weight_norms = [
            torch.zeros((), device=device)
            if weight.grad is None
            else torch.linalg.vector_norm(weight.grad, torch.inf).float().to(device)
            for weight in self._trained.values()
        ]
        norms = torch.stack(weight_norms)
        self._largest = norms if self._largest is None else torch.maximum(self._largest, norms)

    def words(self) -> tuple[str, str] | None:
        """Return (problem, hint) at the first call after the last look; None at other calls, or without a problem."""
        if self._steps < CHECKED_STEPS or self._largest is None:
            return None
        norms, self._largest = self._largest.tolist(), None
        names = [name for name, norm in zip(self._trained, norms, strict=True) if norm == 0]
        if not names:
            return None
        listing = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else "")
        if len(names) == len(norms):
            message = f"no gradient reaches any of the {len(norms):,} trained matrices in {CHECKED_STEPS} steps"
            hint = "nothing is trained: check the labels with `tui-trainer preview`, and dropout (1 drops everything)"
            return message, hint
        message = f"no gradient reaches {len(names):,} of {len(norms):,} trained matrices in {CHECKED_STEPS} steps: "
        message += listing
        if all(_ADDED_TOKENS in name for name in names):
            return message, "no row so far has a token of model.add_tokens: remove the token, or add rows that have it"
        return message, "these matrices are not trained: check tuning.target_modules and tuning.modules_to_save"
