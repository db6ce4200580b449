"""Memory of a process of DeepSpeed's ZeRO: stage 2 shards gradients and optimizer state, stage 3 the weights as well.

The optimizer updates a sharded fp32 copy of the trained weights, even if these are fp32. New gradients are summed in a
bucket. The gradient sum of a step is sharded, and the update copies it. ZeRO 3 gathers the weights of one layer after
the other, and keeps the head whole during the run. With CPU offload the fp32 copy, the sums and the optimizer state are
on the host, and in ZeRO 3 the shards of the weights.

Source: deepspeed/runtime/zero of DeepSpeed 0.19.8, with the settings of `training/zero.py`. No card has confirmed it.
"""

from tui_trainer.planning.memory.parts import FP32_BYTES, MemoryPart, Static, largest_parameter
from tui_trainer.planning.memory.split import Moment, split_part

BUCKET_NUMBERS = 50_000_000
"""Count of gradients that are summed at a time, and of weights that are gathered at a time after an update."""


def zero_lasting(static: Static) -> Moment:
    """Return the parts that exist during the whole run: weights and optimizer state."""
    setup, trained_count = static.setup, static.trained_parameters
    weight_bytes = static.shape.parameters * static.weight_number_bytes
    weight_bytes += FP32_BYTES * trained_count if setup.has_adapter else 0
    copy_bytes = 0 if setup.cpu_offload else -(-FP32_BYTES * trained_count // setup.shards)
    shard_clause = " of the process's shard" if setup.zero_stage == 2 else ""
    formula = f"{static.weight_number_bytes} bytes x parameters, and an fp32 copy{shard_clause}"
    if setup.zero_stage == 3:
        weight_bytes = 0 if setup.cpu_offload else -(-weight_bytes // setup.shards)
        weight_bytes += static.shape.vocabulary * static.shape.hidden_size * static.weight_number_bytes
        formula += f", sharded over {setup.shards} processes, and the unsharded head"
    weights = MemoryPart("weights", weight_bytes + copy_bytes, formula)
    return (weights,) if setup.cpu_offload else (weights, split_part(static.optimizer(), setup.shards))


def zero_moment(static: Static, moment: Moment) -> Moment:
    """Return the memory of one process at a moment, with sharded gradients, the bucket and the gathered layers."""
    setup = static.setup
    other_parts = tuple(part for part in moment if part.name not in ("gradients", "update"))
    summed_gradient_bytes = 0 if setup.cpu_offload else 2 * -(-static.sum_bytes // setup.shards)
    # A gradient larger than the bucket is summed by itself.
    largest_gradient = min(static.trained_parameters, largest_parameter(static.shape))
    bucket_bytes = FP32_BYTES * (min(BUCKET_NUMBERS, static.trained_parameters) + largest_gradient)
    formula = f"2 x the summed gradients / {setup.shards}, a bucket, and the largest gradient"
    parts = (*other_parts, MemoryPart("gradients", summed_gradient_bytes + bucket_bytes, formula))
    if setup.zero_stage == 2:
        return parts
    embedding_parameters, layer_parameters = static.shape.vocabulary * static.shape.hidden_size, static.layer_parameters
    gathered_bytes = static.weight_number_bytes * (layer_parameters + max(layer_parameters, embedding_parameters))
    return (*parts, MemoryPart("gathered", gathered_bytes, "copies of two layers, or of the embedding and a layer"))


def zero_on_host(static: Static) -> MemoryPart:
    """Return a process's host memory: optimizer state and, for trained weights, their fp32 copy, the copy for the GPU,
    the sum of gradients and the sum that is being copied."""
    setup, trained_count = static.setup, static.trained_parameters
    size_bytes = static.optimizer().bytes + (3 * FP32_BYTES + static.weight_number_bytes) * trained_count
    size_bytes += static.shape.parameters * static.weight_number_bytes if setup.zero_stage == 3 else 0
    formula = f"optimizer state, fp32 weights and gradients, sharded over {setup.shards} processes"
    return MemoryPart("offloaded", -(-size_bytes // setup.shards), formula)
