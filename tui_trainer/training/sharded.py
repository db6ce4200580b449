"""One model of which each process has a part: torch's fully sharded data parallel (FSDP2).

Weights, gradients and the optimizer's state are split over the processes; a layer is whole only while it computes. What
is split is a `DTensor` (`training/sharded_tensors.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from tui_trainer.losses.micro_batch import MicroBatch
from tui_trainer.training.batches import idle
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks


class Sharded:
    """The model split over `ranks`. Passes are made as with a whole one; what of them needs the others is here."""

    def __init__(
        self,
        ranks: Ranks,
        device: torch.device,
        model: Any,
        layers: Sequence[Any],
        mixed_precision: MixedPrecision,
    ) -> None:
        """`layers` are gathered one after the other, the rest of the model for all of a pass."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        self._ranks, self._model = ranks, model
        policy = MixedPrecisionPolicy()
        if mixed_precision.is_coarse:
            # Gathered in 16 bits, summed in fp32.
            policy = MixedPrecisionPolicy(param_dtype=mixed_precision.dtype, reduce_dtype=torch.float32)
        mesh = init_device_mesh(device.type, (ranks.count,))
        for layer in layers:
            fully_shard(layer, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)

    def in_step(self, window: Sequence[MicroBatch]) -> list[MicroBatch]:
        """As many forward passes as each other process has: every one of them gathers the weights."""
        (most,) = self._ranks.highest(len(window))
        return [*window, *[idle(window[-1])] * (most - len(window))]

    def summing(self, is_last: bool) -> AbstractContextManager[object]:
        """Around the forward and backward pass of a micro-batch: gradients are summed over all processes in the last
        one of a step."""
        self._model.set_requires_gradient_sync(is_last)
        return nullcontext()

    def finish(self) -> None:
        """Everything was summed in the last backward pass."""

    def scale(self, labels: int) -> float:
        """What a summed loss is divided by: torch takes the mean over the processes."""
        return labels / self._ranks.count

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Forward passes without a backward pass, which would split the outermost weights again."""
        # An encoder is called on its own where answers are written, and the embedding is not of its layers.
        self._model.unshard()
        try:
            # Not in inference mode: what is gathered there could not be used for training.
            with torch.no_grad():
                yield
        finally:
            self._model.reshard()
