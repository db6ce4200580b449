"""How the processes of a run train one model together: what a step, a checkpoint and a reading pass ask of it.

As it is here, one process trains all of it; each strategy says what it does otherwise.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.batches import idle
from tui_trainer.training.communication import Communication
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks
from tui_trainer.training.sharded_tensors import InParts, whole
from tui_trainer.tuning.contract import Method

LossSum = Callable[[MicroBatch], Tensor]
"""Nats summed over the labels that count."""


class Together:
    forward: LossSum | None = None
    """A forward pass with its loss, where the loss is not computed by itself."""
    communication: Communication | None = None
    splits_weights = False
    """Whether each process has a part of the model: then all of them compute what one of them needs."""
    splits_state = False
    """Whether each process has a part of what a checkpoint has."""

    def in_step(self, window: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
        """The passes of a step."""
        return window

    def summing(self, is_last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch."""
        return nullcontext()

    def backward(self, loss: Tensor, mixed_precision: MixedPrecision) -> None:
        mixed_precision.backward(loss)

    def finish(self) -> None:
        """After the backward passes of a step: what of the gradients is not summed yet."""

    def scale(self, labels: int) -> float:
        """What a summed loss is divided by."""
        return labels

    def reading(self) -> AbstractContextManager[object]:
        """Around forward passes that nothing is learnt from."""
        return torch.inference_mode()

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


def evened(window: Sequence[MicroBatch], ranks: Ranks) -> list[MicroBatch]:
    """As many passes as each other process has, as all of them take part in every one."""
    (most,) = ranks.highest(len(window))
    return [*window, *[idle(window[-1])] * (most - len(window))]
