"""Memory on a CPU: resident bytes beyond the loaded libraries, with glibc.

glibc keeps freed memory, so the phases of a step add up to more than the largest of them. torch asks for aligned
blocks, and glibc takes more bytes for one than the block then uses. A freed block is therefore too small for the next
tensor of its size and stays empty between two live ones (glibc 2.36; gradients, for instance, do not fit into the
blocks that activations leave). The shares below were measured over 40 configurations of six families and both methods
with tests/benchmarks/memory_grid.py: 40 of 43 runs are within 10 % (AMD EPYC, torch 2.15). Of 11 encoders, with a
decoder and without, 10 were within 10 % and all within 17 %; two measurements of one encoder differed by up to 9 %.

A peak settles late: the quickstart's model in a bare loop of torch takes 137 MiB in its first step, 146 to 158 in the
second and 165 to 174 from about the sixteenth on, with one arena of glibc as with several, in the main thread as in
another; a whole run of 500 steps added 12 MiB to what it had after 100. The shares are those of eight steps. Where
each step has several passes of varied widths more is added (tui_trainer/guides/measurements.md).
"""

from tui_trainer.data.batching.collate import count_coarse_sizes
from tui_trainer.hardware.environment import KERNELS_KEPT
from tui_trainer.models.heads import CAUSAL, CLASSIFYING_HEADS
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.parts import FP32_BYTES, HALF_BYTES, KERNELS, BatchSizes, MemoryPart, ModelMemory
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import MIB, format_bytes

# What is loaded at first use, whatever the shape: 12 MB by a bare loop of steps, 11 to 17 MB more in a run, which also
# writes text samples and checkpoints. With 20 MB the first runs of six recipes were planned 4 to 28 % too small.
LIBRARY_BYTES = 28_000_000
# From this size on glibc maps a block by itself and returns it whole (its M_MMAP_THRESHOLD grows up to this size).
MAPPED_BLOCK_BYTES = 32 * MIB
# The share of a forward pass's short-lived results whose freed blocks stay empty, and of gradients that fit into them.
TEMPORARY_SHARE, FILLED_SHARE = 0.67, 0.74
# T5's norms, its GELU and the masks of its scores are chains of results: each reuses the block of an earlier one.
CHAIN_TEMPORARY_SHARE = 0.2
# With checkpointing, a layer's results exist for the forward and again for the backward pass, with gradients and inputs
# of layers between them. The factors multiply one layer's results, by the bytes of a number between layers.
CHECKPOINTED_LAYERS = {FP32_BYTES: 2.5, HALF_BYTES: 1.4}
# The factor is lower for encoders: scores are most of their layers, and the next scores reuse their blocks.
CHECKPOINTED_ENCODER_DECODER = 1.55
# For kernels that oneDNN has compiled and keeps: 64 took 63 MiB in a layer of 256 x 256, 192 took 165 MiB (AMD EPYC).
KERNEL_BYTES = MIB
# A matmul needs one kernel forward, one for the gradient of its input and, if it trains, one for that of its weight.
# torch's attention has two matmuls forward and five backward.
_FROZEN_KERNELS, _TRAINED_KERNELS, _ATTENTION_KERNELS = 2, 3, 7
# Labels of passes differ by a factor of four: two octaves of `coarse`.
_LABEL_SIZES = 16
# The share of a layer's results that is resident at one time in an evaluation, where freed blocks are reused.
EVALUATION_SHARE = 0.55


def cpu_parts(shape: ModelShape, setup: TrainingSetup, batch: BatchSizes) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak memory of training, whose sum is the peak."""
    model = ModelMemory(shape, setup, batch.row_tokens)
    steps = (
        _activations(model, batch),
        _temporaries(model, batch),
        _backward(model, batch),
        _loss(model, batch),
        *model.router_loss(batch.tokens),
    )
    gradients = _gradients(model, batch.accumulation, steps[0].bytes)
    step_bytes = sum(part.bytes for part in (gradients, *steps))
    return (
        *model.weight_parts(),
        *model.masters(),
        *model.token_tables(batch.labels),
        gradients,
        model.optimizer(),
        *model.adapted_experts(),
        *model.dora_norms(),
        *steps,
        _evaluation(model, batch, step_bytes),
        *model.before_training(step_bytes),
        *model.first_adapters(),
        *_kernels(model, batch),
        MemoryPart("libraries", LIBRARY_BYTES, "code of libraries, loaded at first use for any model"),
    )


def _gradients(model: ModelMemory, accumulation: int, activation_bytes: int) -> MemoryPart:
    """Return the memory of gradients. 16-bit copies of weights add nothing: each layer frees its own as gradients come.

    After the backward pass all 16-bit gradients are converted to fp32 at once, in memory that activations have left.
    With several passes this fp32 sum stays while the next activations and gradients are computed.
    """
    if model.has_masters:
        copy_bytes = model.sum_bytes if accumulation > 1 else max(0, model.sum_bytes - activation_bytes)
        formula = "2 bytes x trained parameters, and fp32 copies that exceed the memory of activations"
        if accumulation > 1:
            formula = "6 bytes x trained parameters: 4 for gradients summed in fp32, 2 for new gradients"
        return MemoryPart("gradients", model.gradient_bytes + copy_bytes, formula)
    sets = 2 if accumulation > 1 else 1
    is_tied = model.shape.tied_embeddings and model.setup.method == "full" and model.setup.trains_head
    tied_copy = FP32_BYTES * model.shape.vocabulary * model.shape.hidden_size if is_tied else 0
    formula = f"{FP32_BYTES * sets} bytes x trained parameters" + (" (summed and new gradients)" if sets > 1 else "")
    if tied_copy:
        formula += ", counting a tied embedding twice: as head and as embedding"
    return MemoryPart("gradients", sets * model.gradient_bytes + tied_copy, formula)


def _activations(model: ModelMemory, batch: BatchSizes) -> MemoryPart:
    shape = model.shape
    end_bytes = 3 * FP32_BYTES * model.tokens_at_ends(batch) * shape.hidden_size
    if model.setup.gradient_checkpointing:
        stored_bytes = model.kept_layers * batch.tokens * model.layer_input
        return MemoryPart("activations", stored_bytes + end_bytes, "layers x tokens x bytes of a layer's input")
    stored_bytes = model.kept_layers * batch.tokens * model.layer_bytes.kept
    formula = "layers x tokens x bytes kept for the backward pass"
    return MemoryPart("activations", stored_bytes + end_bytes, formula)


def _temporaries(model: ModelMemory, batch: BatchSizes) -> MemoryPart:
    if not model.setup.gradient_checkpointing:
        return _plain_temporaries(model, batch)
    is_encoder = model.shape.head != CAUSAL
    results_factor = CHECKPOINTED_ENCODER_DECODER if is_encoder else CHECKPOINTED_LAYERS[model.weight_number_bytes]
    formula = f"{results_factor} x the results of one layer, which are computed twice"
    size = int(results_factor * batch.tokens * model.layer_bytes.largest_made)
    # In a model with few layers that would exceed the memory of all layers without checkpointing.
    input_bytes = model.shape.layers * batch.tokens * model.layer_input
    plain_bytes = model.shape.layers * batch.tokens * model.layer_bytes.kept + _plain_temporaries(model, batch).bytes
    if plain_bytes - input_bytes < size:
        size, formula = max(0, plain_bytes - input_bytes), "at most what layers store and compute without checkpointing"
    return MemoryPart("temporaries", size, formula)


def _plain_temporaries(model: ModelMemory, batch: BatchSizes) -> MemoryPart:
    layer_tokens = model.shape.layers * batch.tokens
    model_bytes = layer_tokens * model.plain_temporary_bytes
    adapter_bytes = layer_tokens * model.adapter_temporaries(batch.row_tokens)
    gradient_bytes = model.sum_bytes * (2 if batch.accumulation > 1 else 1)
    kept_share = CHAIN_TEMPORARY_SHARE if "t5" in model.shape.model_type else TEMPORARY_SHARE
    size_bytes = kept_share * model_bytes - FILLED_SHARE * min(model_bytes, gradient_bytes)
    size_bytes += model.ADAPTER_SHARE[model.compute_size] * adapter_bytes
    is_mapped = FP32_BYTES * model.shape.hidden_size * batch.tokens >= MAPPED_BLOCK_BYTES
    return MemoryPart(
        "temporaries",
        0 if is_mapped else max(0, int(size_bytes)),
        "layers x tokens x bytes of short-lived results, less the memory that gradients reuse",
    )


def _backward(model: ModelMemory, batch: BatchSizes) -> MemoryPart:
    """Return the memory of the last layer's gradients: two of the MLP's width, or three of stored scores."""
    shape = model.shape
    score_numbers = 3 * shape.attention_heads * batch.row_tokens if model.keeps_scores else 0
    size_bytes = batch.tokens * model.compute_size * max(2 * shape.mlp_size, score_numbers)
    return MemoryPart("backward pass", size_bytes, "tokens x bytes of one layer's gradients")


def _loss(model: ModelMemory, batch: BatchSizes) -> MemoryPart:
    whole_loss = model.loss(batch.labels)
    is_chunked = model.setup.chunks_loss(batch.labels)
    # glibc returns mapped blocks: the logits are freed before the gradients of head and embedding are computed.
    head_bytes = FP32_BYTES * model.shape.vocabulary * model.shape.hidden_size
    logit_bytes = FP32_BYTES * batch.labels * model.class_count
    trains_head = model.setup.method == "full" and model.setup.trains_head and batch.accumulation == 1
    if is_chunked or not trains_head or min(head_bytes, logit_bytes) < MAPPED_BLOCK_BYTES:
        return whole_loss
    formula = f"{whole_loss.formula}, less the memory that gradients of embeddings reuse"
    return MemoryPart(whole_loss.name, max(0, whole_loss.bytes - 2 * head_bytes), formula)


def _kernels(model: ModelMemory, batch: BatchSizes) -> tuple[MemoryPart, ...]:
    """Return the memory of kernels for all row lengths but one, if documents differ in length.

    The kernels of one length are part of the measured shares."""
    setup, shape = model.setup, model.shape
    lengths_vary = setup.packed or 0 < setup.document_tokens < batch.row_tokens - 1
    if not (setup.compiles_each_size and lengths_vary):
        return ()
    trains_all = setup.method == "full"
    kernels_each = _TRAINED_KERNELS if trains_all else _FROZEN_KERNELS
    layer_sizes = {(linear.inputs, linear.outputs) for linear in shape.linears if not linear.is_head}
    adapter_sizes = {(linear.inputs, linear.outputs) for linear in setup.adapted(shape)} if setup.has_adapter else set()
    kernels_per_size = _ATTENTION_KERNELS + kernels_each * len(layer_sizes) + 2 * _TRAINED_KERNELS * len(adapter_sizes)
    head_kernels_each = _TRAINED_KERNELS if trains_all or setup.saves_head else _FROZEN_KERNELS
    head_kernels = head_kernels_each * _LABEL_SIZES if shape.head not in CLASSIFYING_HEADS else 0
    row_length_count = count_coarse_sizes(batch.row_tokens) - count_coarse_sizes(max(setup.narrowest_pass, 1))
    kernel_count = min(kernels_per_size * row_length_count + head_kernels, KERNELS_KEPT)
    formula = f"{kernel_count} kernels of {format_bytes(KERNEL_BYTES)}, which oneDNN compiles for each row length"
    return (MemoryPart(KERNELS, kernel_count * KERNEL_BYTES, formula),)


def _evaluation(model: ModelMemory, batch: BatchSizes, step_bytes: int) -> MemoryPart:
    """Return the memory that an evaluation needs beyond a step: results of a layer, without dropout, and logits."""
    adapter_bytes = model.adapter_temporaries(batch.row_tokens)
    layer_bytes = model.layer_bytes.evaluated - adapter_bytes
    result_bytes = batch.eval_tokens * (EVALUATION_SHARE * layer_bytes + model.EVALUATION_ADAPTER_SHARE * adapter_bytes)
    needed_bytes = int(result_bytes) + model.evaluation_logits(batch.eval_labels) + model.largest_cast_bytes
    formula = "what an evaluation batch needs beyond the memory of a step's activations and gradients"
    return MemoryPart("evaluation", max(0, needed_bytes - step_bytes), formula)
