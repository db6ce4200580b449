"""One model of which each process has a part: torch's fully sharded data parallel (FSDP2).

Weights, gradients and the optimizer's state are split over the processes; a layer is whole only while it computes. What
is split is a `DTensor` (`training/collectives.py`). On several nodes each may have all parts (HSDP): then only the
sum of gradients goes over the network between them.

Or the parts are on the host (CPU offload): a layer is copied to the card to compute, its gradients come back, and the
update is the CPU's. That goes with one process as well.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from tui_trainer.models.towers import tower_modules
from tui_trainer.training.clock import Communication, TimedCollective, all_gather, reduce_scatter
from tui_trainer.training.collectives import Collectives
from tui_trainer.training.precision import MixedPrecision
from tui_trainer.training.ranks import Ranks


class Sharded(Collectives):
    """The model split over `ranks`. Passes are made as with a whole one; what of them needs the others is here."""

    splits_weights = splits_state = takes_mean = True
    # Each gathers the weights and sums the gradients: whole ones between two passes would take the memory of a whole
    # model.
    passes_together = True

    def __init__(
        self,
        ranks: Ranks,
        device: torch.device,
        model: Any,
        layers: Sequence[Any],
        mixed_precision: MixedPrecision,
        communication: Communication,
        copies: int = 1,
        *,
        offloads: bool = False,
        towers_on_host: bool = False,
    ) -> None:
        """`layers` are gathered one after the other, the rest of the model for all of a pass; towers for images never.
        `copies`: groups of neighbouring processes of which each has all parts. `offloads`: parts are on the host.
        `towers_on_host`: each process has all of them, there.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        self._model, self.communication = model, communication
        policy = MixedPrecisionPolicy()
        if mixed_precision.is_coarse:
            # Gathered in 16 bits, summed in fp32.
            policy = MixedPrecisionPolicy(param_dtype=mixed_precision.dtype, reduce_dtype=torch.float32)
        if copies == 1:
            mesh = init_device_mesh(device.type, (ranks.count,))
        else:
            places = (copies, ranks.count // copies)
            mesh = init_device_mesh(device.type, places, mesh_dim_names=("copies", "parts"))
        # From pinned memory copies go beside the computation; without a card there is none to pin it for.
        places_of_parts = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloads else OffloadPolicy()
        towers = list(tower_modules(model).values())
        whole = {weight for tower in towers for weight in tower.parameters()} if towers_on_host else set()
        for part in (*layers, *([] if whole else towers), model):
            fully_shard(part, mesh=mesh, mp_policy=policy, offload_policy=places_of_parts, ignored_params=whole)
            part.set_custom_all_gather(TimedCollective(all_gather, communication))
            part.set_custom_reduce_scatter(TimedCollective(reduce_scatter, communication))

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
