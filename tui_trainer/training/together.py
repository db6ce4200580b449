"""How the processes of a run train one model together: what a step, a checkpoint and a reading pass ask of it.

As it is here, one process trains all of it; each strategy says what it does otherwise.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tui_trainer.losses.named import LossSum
from tui_trainer.training.communication import Communication
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.sharded_tensors import InParts, whole
from tui_trainer.tuning.full import Method


class Together:
    forward: LossSum | None = None
    """A forward pass with its loss, where the loss is not computed by itself."""
    communication: Communication | None = None
    splits_weights = False
    """Whether each process has a part of the model: then all of them compute what one of them needs."""
    splits_state = False
    """Whether each process has a part of what a checkpoint has."""
    passes_together = False
    """Whether all processes take part in every pass, and so make as many of them."""
    takes_mean = False
    """Whether the mean of the gradients is taken over the processes, where their sum is meant."""

    def summing(self, is_last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch."""
        return nullcontext()

    def backward(self, loss: Tensor, mixed_precision: MixedPrecision) -> None:
        mixed_precision.backward(loss)

    def finish(self) -> None:
        """After the backward passes of a step: what of the gradients is not summed yet."""

    def reading(self) -> AbstractContextManager[object]:
        """Around forward passes that nothing is learnt from."""
        return torch.inference_mode()

    def looking(self) -> AbstractContextManager[object]:
        """The same where training goes on from there: what a model keeps of a pass in inference mode is of no use
        to it."""
        return self.reading() if self.splits_weights else torch.no_grad()

    def weights(self, method: Method, model: Any) -> dict[str, Tensor | InParts]:
        """What a checkpoint has of the model, by name."""
        return dict(method.weights(model))

    def weights_were_loaded(self) -> None:
        """Into the model, from a checkpoint."""

    def whole(self, parameter: nn.Parameter) -> Tensor:
        """All of it, in every process."""
        return whole(parameter.detach())

    def close(self) -> None:
        """Let go of what holds processes together."""
