"""Memory of a GPU with a part of the model: FSDP2 has one group of weights whole at a time, and their gradients.

A layer is whole while it computes, with the next one that is gathered meanwhile. The embedding, the head and the last
norm are one group, whole from the beginning of a pass, where it is gathered, to its end, where its gradients are summed
in fp32. Where all parts are on the host, what a group is gathered from is copied to the card before, and its summed
gradients are there until they are copied back.
`tests/benchmarks/split_memory.py` holds it against torch's own tracker.
"""

from collections.abc import Sequence

from tui_trainer.planning.memory.parts import FLOAT, MemoryPart, Static

Moment = tuple[MemoryPart, ...]


def split_part(part: MemoryPart, shards: int) -> MemoryPart:
    """Of what every process has a part."""
    formula = f"{part.formula}, sharded over {shards} processes" if shards > 1 else part.formula
    return MemoryPart(part.name, -(-part.bytes // shards), formula)


def split_moments(static: Static, moments: Sequence[Moment]) -> tuple[Moment, ...]:
    """The moments of a step (the loss, passes through layers, the update) with what is gathered then, and the last sum
    of gradients.
    """
    at_loss, *in_layers, update = moments
    shape, trains = static.shape, static.setup.method == "full"
    size, ends, layer = static.compute_size, static.end_numbers, static.layer_numbers
    in_layer = size * (ends + 2 * layer)
    # Of the head, and of the layer as they are made and as they are summed.
    in_layer += trains * (size * shape.vocabulary * shape.hidden_size + (size + FLOAT) * layer)
    if static.setup.cpu_offload:
        in_layer += static.weight_size * layer // static.setup.shards
    found = [
        (*_divided(static, at_loss), _gathered(size * ends, "unsharded copies of embedding and head")),
        *((*_divided(static, moment), _gathered(in_layer, "embedding, head and two layers")) for moment in in_layers),
        _divided(static, update),
    ]
    gradients = _divided(static, tuple(part for part in update if part.name == "gradients"))
    # What comes from the others is copied to where it is used; the first layer is on its way by then.
    at_begin = size * (2 * ends + layer)
    if static.setup.cpu_offload:
        at_begin += static.weight_size * ends // static.setup.shards
    found.append((*gradients, _gathered(at_begin, "two unsharded copies of embedding and head, and a layer")))
    if trains:
        found.append((*gradients, _gathered((size + FLOAT) * ends, "gradients of embedding and head, and their sum")))
    return tuple(found)


def _divided(static: Static, moment: Moment) -> Moment:
    """Gradients of a pass are split as soon as they are made: only the sum stays, if not on the host."""
    if static.setup.cpu_offload:
        return tuple(part for part in moment if part.name not in ("gradients", "update"))
    sums = MemoryPart("gradients", static.sum_bytes, "4 bytes x trained parameters")
    shards = static.setup.shards
    replaced = (sums if part.name == "gradients" else part for part in moment)
    return tuple(split_part(part, shards) if part.name in ("gradients", "update") else part for part in replaced)


def _gathered(count: int, formula: str) -> MemoryPart:
    return MemoryPart("gathered", count, formula)
