"""Shard one model over processes, with torch's fully sharded data parallel (FSDP2).

Weights, gradients and optimizer state are sharded over the processes as `DTensor`s (`training/collectives.py`); a layer
is whole only while it computes. With HSDP each node has all shards, and only sums of gradients go over the network
between nodes.

With CPU offload the shards are on the host: a layer is copied to the GPU to compute, its gradients are copied back, and
the CPU computes the update. Offload also works with one process.
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
    """Collectives of a model that FSDP2 shards over processes. The model is called like a whole model."""

    splits_weights = splits_state = averages_gradients = True
    # Each pass gathers weights and sums gradients, because whole gradients would take the memory of a whole model.
    needs_equal_passes = True

    def __init__(
        self,
        ranks: Ranks,
        device: torch.device,
        model: Any,
        layers: Sequence[Any],
        mixed_precision: MixedPrecision,
        communication: Communication,
        copy_count: int = 1,
        *,
        offloads: bool = False,
        towers_on_host: bool = False,
    ) -> None:
        """Shard the model, so that each of `layers` is gathered only while it computes, and the rest for a whole pass.

        The processes form `copy_count` groups of neighbours, each with all shards. With `offloads` shards are on
        the host. With `towers_on_host` each process has whole image towers on the host."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

        self._model, self.communication = model, communication
        policy = MixedPrecisionPolicy()
        if mixed_precision.is_coarse:
            # Weights are gathered in 16 bits, and gradients summed in fp32.
            policy = MixedPrecisionPolicy(param_dtype=mixed_precision.dtype, reduce_dtype=torch.float32)
        if copy_count == 1:
            mesh = init_device_mesh(device.type, (ranks.world_size,))
        else:
            mesh_sizes = (copy_count, ranks.world_size // copy_count)
            mesh = init_device_mesh(device.type, mesh_sizes, mesh_dim_names=("copies", "parts"))
        # Copies from pinned memory overlap with computation; without a GPU memory cannot be pinned.
        offload_policy = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offloads else OffloadPolicy()
        towers = list(tower_modules(model).values())
        whole_weights = {weight for tower in towers for weight in tower.parameters()} if towers_on_host else set()
        for part in (*layers, *([] if whole_weights else towers), model):
            fully_shard(part, mesh=mesh, mp_policy=policy, offload_policy=offload_policy, ignored_params=whole_weights)
            part.set_custom_all_gather(TimedCollective(all_gather, communication))
            part.set_custom_reduce_scatter(TimedCollective(reduce_scatter, communication))

    @contextmanager
    def evaluation_context(self) -> Iterator[None]:
        """Return a context for passes without a backward pass. Weights outside the layers stay gathered in it."""
        # Generation calls an encoder directly, whose embedding is not in a layer and so would not be gathered.
        self._model.unshard()
        try:
            # Weights that are gathered in inference mode could not be used for training.
            with torch.no_grad():
                yield
        finally:
            self._model.reshard()
