"""Memory by part, before anything is loaded. Needs neither torch nor the weights; the parts are bytes, and are added.

On a CPU they are what training adds to the resident memory of a process that has its libraries loaded (`cpu`); on a GPU
what torch allocates at the peak, its unusable pieces and the card's context (`gpu`). What layers keep and make was
counted by `dry_run`. It does not know what data preparation needs, which is over by then.

A whole step on tensors without numbers decides nothing here: on a CPU it is 16 to 53 % low, as it does not know glibc,
and on a card it agrees with these parts but for compiled layers and weights in 4 bits, which it cannot do. Both were
compared by `tests/benchmarks/memory_grid.py --simulate` and `tests/benchmarks/published_memory.py`.
"""

from collections.abc import Iterator
from dataclasses import replace

from tui_trainer.models.heads import labels_per_row
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.cpu import cpu_parts
from tui_trainer.planning.memory.gpu import gpu_parts
from tui_trainer.planning.memory.parts import FLOAT, HALF, BatchSizes, MemoryPart, Static
from tui_trainer.planning.memory.split import split_part
from tui_trainer.planning.memory.zero import zero_lasting, zero_moment
from tui_trainer.planning.training_setup import TrainingSetup

_SPLIT = ("weights", "towers", "master weights", "gradients", "optimizer", "update")


def memory_parts(shape: ModelShape, setup: TrainingSetup, batch: BatchSizes) -> tuple[MemoryPart, ...]:
    """Peak memory of training, by part.

    Layers are reckoned with what a dry run found (`TrainingSetup.counted`); without it by a general formula, which a
    plan has to state.
    """
    batch = replace(batch, labels_each=labels_per_row(shape.head, setup.target_tokens))
    if setup.device == "cuda":
        return gpu_parts(shape, setup, batch)
    parts = cpu_parts(shape, setup, batch)
    if setup.zero_stage:
        # There what is on the host is where it is computed with.
        static = Static(shape, replace(setup, cpu_offload=False))
        others = tuple(part for part in parts if part.name not in _SPLIT)
        return (*zero_lasting(static), *zero_moment(static, others))
    return parts if setup.shards == 1 else tuple(_split(parts, shape, setup))


def _split(parts: tuple[MemoryPart, ...], shape: ModelShape, setup: TrainingSetup) -> Iterator[MemoryPart]:
    """Over processes on a CPU, and what each has whole for a time: the layer that computes and the next one, with the
    embedding and the head throughout."""
    yield from (split_part(part, setup.shards) if part.name in _SPLIT else part for part in parts)
    ends, layer = Static(shape, setup).end_numbers, Static(shape, setup).layer_numbers
    size = FLOAT if setup.precision == "fp32" else HALF
    # Their gradients are whole as well, until they are summed.
    found = size * (ends + 2 * layer) + FLOAT * (ends + layer) * (setup.method == "full")
    yield MemoryPart("gathered", found, "unsharded copies of embedding, head and two layers")


def total_bytes(parts: tuple[MemoryPart, ...]) -> int:
    return sum(part.bytes for part in parts)
