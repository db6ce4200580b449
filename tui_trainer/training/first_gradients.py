"""Whether a gradient reaches all that should learn: looked at in the first steps of each start.

A weight that a pattern froze by mistake, an adapter behind a dropout of 1, a head that is cut off: the loss goes on
being printed, and nothing, or not all, learns.
"""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

# One is not enough: the first matrix of an adapter has none until the second, which begins at 0, has moved.
STEPS = 3
# Experts get a gradient where rows were sent to them, and what pools the results has none in tasks that do not pool.
_MAY_HAVE_NONE = ("experts.", ".pooler.")
_OF_ADDED_TOKENS = ".trainable_tokens_"  # as peft names the rows of added tokens
_NAMED = 3


class FirstGradients:
    """The largest part of each gradient, as a tensor on its device: nothing here waits before `words`."""

    def __init__(self, trained: Mapping[str, Tensor]) -> None:
        # The gradient of a bias may be 0 by the rules of softmax. Of what is split each process sees a piece.
        self._trained = {
            name: weight
            for name, weight in trained.items()
            if weight.ndim >= 2 and not isinstance(weight, DTensor) and not any(part in name for part in _MAY_HAVE_NONE)
        }
        self._largest: Tensor | None = None
        self._steps = 0

    def look(self) -> None:
        """Between a backward pass and the update."""
        if self._steps >= STEPS or not self._trained:
            return
        self._steps += 1
        device = next(iter(self._trained.values())).device
        largest = [
            torch.zeros((), device=device)
            if weight.grad is None
            else torch.linalg.vector_norm(weight.grad, torch.inf).float().to(device)
            for weight in self._trained.values()
        ]
        now = torch.stack(largest)
        self._largest = now if self._largest is None else torch.maximum(self._largest, now)

    def words(self) -> tuple[str, str] | None:
        """After the last look, once: what is wrong, and a hint. None: nothing, or not yet. Waits for the device."""
        if self._steps < STEPS or self._largest is None:
            return None
        found, self._largest = self._largest.tolist(), None
        without = [name for name, largest in zip(self._trained, found, strict=True) if largest == 0]
        if not without:
            return None
        named = ", ".join(without[:_NAMED]) + (f" and {len(without) - _NAMED:,} more" if len(without) > _NAMED else "")
        if len(without) == len(found):
            what = f"no gradient reaches any of the {len(found):,} trained matrices in {STEPS} steps"
            return (
                what,
                "nothing is trained: check the labels with `tui-trainer preview`, and dropout (1 drops everything)",
            )
        what = f"no gradient reaches {len(without):,} of {len(found):,} trained matrices in {STEPS} steps: {named}"
        if all(_OF_ADDED_TOKENS in name for name in without):
            return what, "no row so far has a token of model.add_tokens: remove the token, or add rows that have it"
        return what, "these matrices are not trained: check tuning.target_modules and tuning.modules_to_save"
