"""Memory of a GPU that has a shard of the model. FSDP2 gathers one group of weights at a time, with their gradients.

A layer is whole while it computes, and the next one is gathered meanwhile. The embedding, the head and the last norm
are one group. It is gathered at the beginning of a pass and is whole until its gradients are summed in fp32 at the end.
With CPU offload the shard of a group is copied to the GPU before it is gathered, and the summed gradients stay on the
GPU until they are copied back.
`tests/benchmarks/split_memory.py` compares these figures with torch's own tracker.
"""

from collections.abc import Sequence

from tui_trainer.planning.memory.parts import FP32_BYTES, MemoryPart, Static

Moment = tuple[MemoryPart, ...]


def split_part(part: MemoryPart, shards: int) -> MemoryPart:
    """Return the part as one process holds it, if all processes have equal shards."""
    formula = f"{part.formula}, sharded over {shards} processes" if shards > 1 else part.formula
    return MemoryPart(part.name, -(-part.bytes // shards), formula)


def split_moments(static: Static, moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """Return the moments of a step in one process, with what is gathered at each; the last sums the gradients."""
    loss_moment, *inner, update_moment = moments
    shape, trains_all = static.shape, static.setup.method == "full"
    size, end_numbers, layer_numbers = static.compute_size, static.end_parameters, static.layer_parameters
    layer_bytes = size * (end_numbers + 2 * layer_numbers)
    # The gradients of the head, and those of the layer with their fp32 sums.
    layer_bytes += trains_all * (size * shape.vocabulary * shape.hidden_size + (size + FP32_BYTES) * layer_numbers)
    if static.setup.cpu_offload:
        layer_bytes += static.weight_number_bytes * layer_numbers // static.setup.shards
    result = [
        (*_divided(static, loss_moment), _gathered(size * end_numbers, "unsharded copies of embedding and head")),
        *((*_divided(static, moment), _gathered(layer_bytes, "embedding, head and two layers")) for moment in inner),
        _divided(static, update_moment),
    ]
    gradient_parts = _divided(static, tuple(part for part in update_moment if part.name == "gradients"))
    # Shards of other processes arrive in a buffer and are copied from it, while the first layer is gathered already.
    first_bytes = size * (2 * end_numbers + layer_numbers)
    if static.setup.cpu_offload:
        first_bytes += static.weight_number_bytes * end_numbers // static.setup.shards
    result.append((*gradient_parts, _gathered(first_bytes, "two copies of embedding and head, and one of a layer")))
    if trains_all:
        sum_bytes = (size + FP32_BYTES) * end_numbers
        result.append((*gradient_parts, _gathered(sum_bytes, "gradients of embedding and head, and their sum")))
    return tuple(result)


def _divided(static: Static, moment: Moment) -> Moment:
    """Return the parts of a moment for one process. New gradients are sharded at once: only their sum stays, on the GPU
    or, with CPU offload, on the host."""
    if static.setup.cpu_offload:
        return tuple(part for part in moment if part.name not in ("gradients", "update"))
    sum_part = MemoryPart("gradients", static.sum_bytes, "4 bytes x trained parameters")
    shards = static.setup.shards
    new_parts = (sum_part if part.name == "gradients" else part for part in moment)
    return tuple(split_part(part, shards) if part.name in ("gradients", "update") else part for part in new_parts)


def _gathered(count: int, formula: str) -> MemoryPart:
    return MemoryPart("gathered", count, formula)
