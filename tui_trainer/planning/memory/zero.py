"""Memory of a process of DeepSpeed's ZeRO: 2 splits gradients and the optimizer's state, 3 the weights as well.

Weights that train have an fp32 copy that the optimizer updates, of fp32 weights as well, and each process has a part of
it. Gradients are summed in a bucket as they are made; the sum of a step is in parts, and once more while the optimizer
takes it. ZeRO 3 gathers the weights of one layer after the other, and the head for all of a run. With offloading the
copy, the sums and the optimizer's state are on the host, of ZeRO 3 all parts of weights.

Source: deepspeed/runtime/zero of DeepSpeed 0.19.8, with the settings of `training/zero.py`. No card has confirmed it.
"""

from tui_trainer.planning.memory.parts import FLOAT, MemoryPart, Static, largest_parameter
from tui_trainer.planning.memory.split import Moment, split_part

BUCKET_NUMBERS = 50_000_000
"""As many gradients are summed at a time, and as many weights gathered after an update."""


def zero_lasting(static: Static) -> Moment:
    """What is there throughout: weights, and the optimizer's state."""
    setup, trained = static.setup, static.trained
    own = static.shape.parameters * static.weight_size + (FLOAT * trained if setup.has_adapter else 0)
    copies = 0 if setup.cpu_offload else -(-FLOAT * trained // setup.shards)
    words = " of the process's shard" if setup.zero_stage == 2 else ""
    formula = f"{static.weight_size} bytes x parameters, and a 4-byte copy{words}"
    if setup.zero_stage == 3:
        own = 0 if setup.cpu_offload else -(-own // setup.shards)
        head = static.shape.vocabulary * static.shape.hidden_size * static.weight_size
        own, formula = own + head, f"{formula}, sharded over {setup.shards} processes, and the unsharded head"
    weights = MemoryPart("weights", own + copies, formula)
    return (weights,) if setup.cpu_offload else (weights, split_part(static.optimizer(), setup.shards))


def zero_moment(static: Static, moment: Moment) -> Moment:
    """A moment of a step: its gradients in parts, with the bucket, and with the layers that are whole."""
    setup = static.setup
    others = tuple(part for part in moment if part.name not in ("gradients", "update"))
    sums = 0 if setup.cpu_offload else 2 * -(-static.sum_bytes // setup.shards)
    # One that is larger than the bucket is summed by itself.
    largest = min(static.trained, largest_parameter(static.shape))
    made = FLOAT * (min(BUCKET_NUMBERS, static.trained) + largest)
    formula = f"2 x the sum of gradients / {setup.shards}, a bucket, and the largest gradient"
    found = (*others, MemoryPart("gradients", sums + made, formula))
    if setup.zero_stage == 2:
        return found
    embedding, layer = static.shape.vocabulary * static.shape.hidden_size, static.layer_numbers
    whole = static.weight_size * (layer + max(layer, embedding))
    return (*found, MemoryPart("gathered", whole, "two layers, or the embedding and a layer"))


def zero_on_host(static: Static) -> MemoryPart:
    """What a process keeps there: the optimizer's state, and of what trains the copy in fp32, the copy that goes to the
    card, the sum of gradients and one that is on its way."""
    setup, trained = static.setup, static.trained
    found = static.optimizer().bytes + (3 * FLOAT + static.weight_size) * trained
    found += static.shape.parameters * static.weight_size if setup.zero_stage == 3 else 0
    formula = f"optimizer state, fp32 weights and gradients, sharded over {setup.shards} processes"
    return MemoryPart("offloaded", -(-found // setup.shards), formula)
