"""Estimate the memory of training by part, in bytes, without torch and without the weights.

On a CPU the parts are what training adds to the resident memory of a process that has its libraries loaded (`cpu`); on
a GPU they are what torch allocates at the peak, its unusable pieces and CUDA's context (`gpu`). `dry_run` counts what
layers save and compute. The memory of data preparation is left out, because preparation is over before training.

The estimate does not simulate a whole step on tensors without numbers. On a CPU such a simulation is 16 to 53 % low,
because it leaves out glibc. On a GPU it agrees with these parts, but it cannot run compiled layers and 4-bit weights.
Both were compared by `tests/benchmarks/memory_grid.py --simulate` and `tests/benchmarks/published_memory.py`.
"""

from collections.abc import Iterator
from dataclasses import replace

from tui_trainer.models.heads import labels_per_row
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.cpu import cpu_parts
from tui_trainer.planning.memory.gpu import gpu_parts
from tui_trainer.planning.memory.parts import FP32_BYTES, HALF_BYTES, BatchSizes, MemoryPart, Static
from tui_trainer.planning.memory.split import split_part
from tui_trainer.planning.memory.zero import zero_lasting, zero_moment
from tui_trainer.planning.training_setup import TrainingSetup

_SPLIT = ("weights", "towers", "master weights", "gradients", "optimizer", "update")


def memory_parts(shape: ModelShape, setup: TrainingSetup, batch: BatchSizes) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak memory of training.

    A dry run's figures of layers (`TrainingSetup.counted`) are used if there are any, and a general formula otherwise,
    which a plan has to state.
    """
    batch = replace(batch, label_count_per_row=labels_per_row(shape.head, setup.target_tokens))
    if setup.device == "cuda":
        return gpu_parts(shape, setup, batch)
    parts = cpu_parts(shape, setup, batch)
    if setup.zero_stage:
        # On a CPU offloaded parts stay in the same memory.
        static = Static(shape, replace(setup, cpu_offload=False))
        unsplit_parts = tuple(part for part in parts if part.name not in _SPLIT)
        return (*zero_lasting(static), *zero_moment(static, unsplit_parts))
    return parts if setup.shards == 1 else tuple(_split(parts, shape, setup))


def _split(parts: tuple[MemoryPart, ...], shape: ModelShape, setup: TrainingSetup) -> Iterator[MemoryPart]:
    """Split parts over processes on a CPU, and add what each gathers: the embedding, the head and two layers."""
    yield from (split_part(part, setup.shards) if part.name in _SPLIT else part for part in parts)
    ends, layer_numbers = Static(shape, setup).end_parameters, Static(shape, setup).layer_parameters
    number_size = FP32_BYTES if setup.precision == "fp32" else HALF_BYTES
    # The gradients of gathered weights are whole until they are summed over processes.
    size_bytes = number_size * (ends + 2 * layer_numbers)
    size_bytes += FP32_BYTES * (ends + layer_numbers) if setup.method == "full" else 0
    yield MemoryPart("gathered", size_bytes, "unsharded copies of embedding, head and two layers")


def total_bytes(parts: tuple[MemoryPart, ...]) -> int:
    return sum(part.bytes for part in parts)
