"""Estimate the host memory of a run on a GPU. Weights are loaded to the GPU tensor by tensor and saved shard by shard:
host memory never holds the whole model or the whole optimizer state.

With CPU offload, host memory holds the part of each process, and the whole model while it loads.

Prepared data is mapped from its file and does not count, because the system can evict it.
"""

from collections.abc import Iterable
from dataclasses import replace

from tui_trainer.config.sections import Config, ResolvedConfig, step_rows
from tui_trainer.errors import Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.files.shards import SHARD_BYTES
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.fit import longest_row_tokens, pass_rows
from tui_trainer.planning.memory.parts import FP32_BYTES, MemoryPart, Static, largest_parameter
from tui_trainer.planning.memory.split import split_part
from tui_trainer.planning.memory.zero import zero_on_host
from tui_trainer.planning.planned import Planned, estimated
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import GIB, MIB, format_bytes

# torch, transformers and CUDA's libraries in a process that uses a GPU; assumed, not yet measured.
LIBRARIES_BYTES = 3 * GIB
# Threads with which transformers reads weights (`GLOBAL_WORKERS` of its core_model_loading).
_READERS = 4
# One copy is the host's, and safetensors before 0.6 makes another of each tensor.
_SAVED_COPIES = 2
PINNED_BYTES = 64 * MIB
"""Pinned host memory for copies from a GPU to a file (`training/checkpoint.py`), in bytes."""
# Ids, labels, positions and mask of a token, as int64.
_TOKEN_BYTES = 32


def host_memory(
    shape: ModelShape, setup: TrainingSetup, config: ResolvedConfig, loader_workers: int, processes: int = 1
) -> tuple[tuple[MemoryPart, ...], Planned[int] | None]:
    """Return the parts of host memory and their sum; no parts and None on a CPU, where `memory_parts` covers it."""
    if setup.device != "cuda":
        return (), None
    parts = tuple(_parts(shape, setup, config, loader_workers))
    reason = "libraries, the peak of loading or saving, and prefetched batches"
    if setup.cpu_offload:
        reason = f"weights, gradients and optimizer state, {reason}"
    if processes > 1:
        parts = tuple(replace(part, bytes=processes * part.bytes) for part in parts)
        reason += f", in each of {processes} processes"
    return parts, estimated(sum(part.bytes for part in parts), reason)


def host_memory_problems(needed_bytes: Planned[int] | None, hardware: Hardware) -> list[Problem]:
    """Return a problem if a run needs more host memory than the machine has or the container allows."""
    total_bytes = hardware.memory_bytes
    if needed_bytes is None or total_bytes is None or needed_bytes.value <= total_bytes:
        return []
    message = f"the run needs about {format_bytes(needed_bytes.value)} of host memory in addition to GPU memory, "
    message += f"but the machine has {format_bytes(total_bytes)}"
    return [Problem(message=message, hint="raise the memory limit of the container or job, or use a larger machine")]


def _parts(
    shape: ModelShape, setup: TrainingSetup, config: ResolvedConfig, loader_workers: int
) -> Iterable[MemoryPart]:
    yield MemoryPart("libraries", LIBRARIES_BYTES, "torch, transformers and CUDA (assumed)")
    loading_part, saving_part = _loading(shape, setup, config), _saving(shape, setup)
    lasting: tuple[MemoryPart, ...] = (Static(shape, setup).towers(),) if setup.towers_on_host else ()
    if setup.cpu_offload:
        # These parts of one process exist for the whole training.
        static = Static(shape, setup)
        sum_part = MemoryPart("gradients", static.sum_bytes, "4 bytes x trained parameters")
        parts = (static.weights(), *static.masters(), sum_part, static.optimizer())
        lasting = (zero_on_host(static),) if setup.zero_stage else tuple(split_part(x, setup.shards) for x in parts)
    training_parts = (*lasting, saving_part)
    yield from training_parts if sum(part.bytes for part in training_parts) >= loading_part.bytes else (loading_part,)
    yield from Static(shape, setup).first_adapters()
    if loader_workers:
        step_row_count = pass_rows(setup, setup.most_rows or step_rows(config))
        steps = loader_workers * config.dataloader.prefetch_factor
        size_bytes = steps * step_row_count * longest_row_tokens(config, setup) * _TOKEN_BYTES
        yield MemoryPart("batches", size_bytes, f"{steps} prefetched steps x tokens of a step x {_TOKEN_BYTES} bytes")


def _loading(shape: ModelShape, setup: TrainingSetup, config: Config) -> MemoryPart:
    static = Static(shape, setup)
    whole_bytes = shape.loaded_parameters * static.weight_number_bytes
    if setup.zero_stage != 2 and (setup.shards > 1 or setup.cpu_offload):
        merge_bytes = static.merge_bytes if setup.merged_parameters else 0
        return MemoryPart("loading", whole_bytes + merge_bytes, "the whole model, before it is sharded")
    if config.model.text_only:
        return MemoryPart("loading", whole_bytes, "the language model, which is extracted on the host")
    if config.is_from_scratch:
        return MemoryPart("loading", whole_bytes, "a model from scratch is created on the host, then copied")
    if setup.merged_parameters and setup.has_adapter:
        formula = "the whole model, with an adapter that is merged into it on the host"
        return MemoryPart("loading", whole_bytes + static.merge_bytes, formula)
    reading_bytes = _READERS * FP32_BYTES * largest_parameter(shape)
    if (adapter_bytes := FP32_BYTES * setup.merged_parameters) > reading_bytes:
        return MemoryPart("loading", adapter_bytes, "the update by the merged adapter, before it is copied to the GPU")
    return MemoryPart("loading", reading_bytes, f"{_READERS} x the largest tensor in fp32, read in parallel")


def _saving(shape: ModelShape, setup: TrainingSetup) -> MemoryPart:
    """Return the memory of saving, which writes one file at a time and never splits a tensor over two files."""
    static = Static(shape, setup)
    state_size = sum(part.bytes for part in (static.optimizer(), *static.masters()))
    number_bytes = FP32_BYTES if setup.has_adapter else static.weight_number_bytes
    whole_bytes = max(state_size, static.trained_parameters * number_bytes)
    largest_numbers = min(largest_parameter(shape), static.trained_parameters)
    tensor_bytes = FP32_BYTES * largest_numbers
    file_bytes = SHARD_BYTES // setup.shards
    if setup.shards > 1:
        # A process saves its shard of the optimizer state, and whole weights.
        tensor_bytes = max(tensor_bytes // setup.shards, static.weight_number_bytes * largest_numbers)
    shard_bytes = min(max(file_bytes, tensor_bytes), whole_bytes)
    formula = f"2 x the largest shard ({format_bytes(file_bytes)}, or one larger tensor), plus "
    formula += f"{format_bytes(PINNED_BYTES)} of pinned memory"
    return MemoryPart("saving", _SAVED_COPIES * shard_bytes + PINNED_BYTES, formula)
