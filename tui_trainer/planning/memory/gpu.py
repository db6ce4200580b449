"""Memory on a GPU: what torch allocates at the peak of a step, its unusable pieces, and the card's context.

The peak is in one of three moments: the loss (all activations and logits), the backward pass of the first layer under
checkpointing (gradients and one layer's results), or the update (gradients). The parts are those of the moment that
needs most. Allocated bytes agree within 4 % with simulated runs of real models (1.2 and 1.5 billion parameters, 4096
and 16384 tokens, 35 cases); fragmentation and context are assumptions that no card has confirmed yet.
"""

from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.heads import labels_per_row
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.parts import FP32_BYTES, BatchSizes, MemoryPart, ModelMemory, largest_parameter
from tui_trainer.planning.memory.split import Moment, split_moments, split_part
from tui_trainer.planning.memory.zero import zero_lasting, zero_moment
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import GIB

# The share of its memory that torch's caching allocator cannot use.
PIECES_SHARE = 0.03
# CUDA's context and kernels, with the workspace of its matrix library: 0.5 to 0.9 GiB by card and version.
CONTEXT_BYTES = int(0.7 * GIB)
# The most of a layer's short-lived results that exists at one time in an evaluation, as a share. It was chosen by hand,
# with EVALUATION_ADAPTER_SHARE, so that 46 simulated passes of seven families fit. The peak of a whole pass, ends and
# masks included, was up to 0.72 (BERT) and 0.83 (BART) of a layer's results.
EVALUATION_SHARE = 0.6


def gpu_parts(shape: ModelShape, setup: TrainingSetup, batch: BatchSizes) -> tuple[MemoryPart, ...]:
    """Return the parts of the peak memory of training, whose sum is the peak."""
    model = ModelMemory(shape, setup, batch.row_tokens)
    moments = _moments_with_checkpointing(model, batch) if setup.gradient_checkpointing else _plain(model, batch)
    lasting: Moment = (
        *model.weight_parts(), *model.masters(), model.optimizer(), *model.adapted_experts(), *model.dora_norms(),
        *model.token_tables(batch.labels),
    )  # fmt: skip
    if setup.zero_stage:
        lasting, moments = zero_lasting(model), tuple(zero_moment(model, moment) for moment in moments)
    elif setup.shards > 1 or setup.cpu_offload:
        moments = split_moments(model, moments)
        lasting = () if setup.cpu_offload else tuple(split_part(part, setup.shards) for part in lasting)
    moment = max(moments, key=lambda parts: sum(part.bytes for part in parts))
    step_bytes = sum(part.bytes for part in moment)
    parts = (*lasting, *moment, _evaluation(model, batch, step_bytes), *model.before_training(step_bytes))
    allocated_bytes = sum(part.bytes for part in parts)
    return (
        *parts,
        MemoryPart("pieces", int(PIECES_SHARE * allocated_bytes), "3 % of the memory, which the allocator cannot use"),
        MemoryPart("context", CONTEXT_BYTES, "CUDA's context and kernels, 0.5 to 0.9 GiB"),
    )


def answering_bytes(shape: ModelShape, setup: TrainingSetup, weight_bytes: int, row_tokens: int) -> int:
    """Return the GPU memory of generating for one row of `row_tokens`: weights, results of one layer, keys and values.

    Numbers count as fp32, because the stored weights decide their width later."""
    model = ModelMemory(shape, setup, row_tokens)
    labels = labels_per_row(shape.head, setup.target_tokens)
    one_row = BatchSizes(rows=1, eval_rows=1, row_tokens=row_tokens, label_count_per_row=labels)
    result_bytes = _evaluation(model, one_row, 0).bytes
    cache_bytes = 2 * shape.key_value_heads * shape.head_size * (shape.layers + 2 * shape.decoder_layers) * row_tokens
    allocated_bytes = weight_bytes + FP32_BYTES // model.compute_size * result_bytes + FP32_BYTES * cache_bytes
    return int((1 + PIECES_SHARE) * allocated_bytes) + CONTEXT_BYTES


def _plain(model: ModelMemory, batch: BatchSizes) -> tuple[Moment, ...]:
    saved_bytes = model.kept_layers * batch.tokens * model.layer_bytes.kept
    end_bytes, has_sum = _end_bytes(model, batch), batch.accumulation > 1
    formula = "layers x tokens x bytes kept for the backward pass"
    moment_of_loss = (
        MemoryPart("activations", saved_bytes + end_bytes, formula),
        _casts(model),
        model.loss(batch.labels),
        *model.router_loss(batch.tokens),
        *_workspace(model, batch),
        *_sum_of_gradients(model, batch),
    )
    return moment_of_loss, (_gradients(model, with_sum=has_sum, with_new=True),), _update(model)


def _moments_with_checkpointing(model: ModelMemory, batch: BatchSizes) -> tuple[Moment, ...]:
    input_bytes = model.kept_layers * batch.tokens * model.layer_input
    sum_parts = _sum_of_gradients(model, batch)
    formula = "layers x tokens x bytes of a layer's input"
    input_part = MemoryPart("activations", input_bytes + _end_bytes(model, batch), formula)
    layer_bytes = batch.tokens * model.layer_bytes.largest_kept
    layer = MemoryPart("one layer", layer_bytes, "recomputed activations of one layer")
    work_parts = (layer, *_workspace(model, batch, always=True))
    # Autocast keeps its copies to the end of the forward pass even with checkpoints. FSDP2 gathers 16-bit weights.
    is_unsharded = model.setup.shards == 1 and not model.setup.cpu_offload
    cast_parts = (_casts(model),) if is_unsharded else ()
    at_loss = (input_part, *cast_parts, model.loss(batch.labels), *model.router_loss(batch.tokens), *sum_parts)
    in_last_layer = (MemoryPart("activations", input_bytes, formula), *work_parts, *sum_parts)
    in_first_layer = (_gradients(model, with_sum=batch.accumulation > 1, with_new=True), *work_parts)
    return at_loss, in_last_layer, in_first_layer, _update(model)


def _casts(model: ModelMemory) -> MemoryPart:
    formula = "2 bytes x trained weights, for copies that exist from the forward to the backward pass"
    return MemoryPart("16-bit copies", model.cast_bytes, formula)


def _update(model: ModelMemory) -> Moment:
    """Return the memory of all gradients and of the optimizer's temporary tensors, such as Adafactor's."""
    gradients, optimizer = _gradients(model, with_sum=True, with_new=False), OPTIMIZERS[model.setup.optim]
    if optimizer.update_bytes:
        formula = f"{optimizer.update_bytes:g} bytes x trained parameters, only while weights are updated"
        return gradients, MemoryPart("update", int(optimizer.update_bytes * model.trained_parameters), formula)
    if optimizer.hidden_state_bytes is not None:
        # The mix of gradient and moment is fp32; the input and output of a matmul, and two squares, are bf16.
        largest_matrix = max((x.inputs * x.outputs for x in model.shape.linears if not x.is_head), default=0)
        return gradients, MemoryPart("update", 12 * largest_matrix, "12 bytes x elements of the largest hidden matrix")
    if not optimizer.factored_state:
        return (gradients,)
    size_bytes = 2 * FP32_BYTES * min(largest_parameter(model.shape), model.trained_parameters)
    return gradients, MemoryPart("update", size_bytes, "two fp32 copies of the largest parameter")


def _end_bytes(model: ModelMemory, batch: BatchSizes) -> int:
    """Return the bytes of the last norm's input and output, and of the embedded tokens."""
    return 8 * model.shape.hidden_size * model.tokens_at_ends(batch)


def _sum_of_gradients(model: ModelMemory, batch: BatchSizes) -> tuple[MemoryPart, ...]:
    """Return the memory of the sum of earlier gradients, which exists while the next micro-batch is computed."""
    return (_gradients(model, with_sum=True, with_new=False),) if batch.accumulation > 1 else ()


def _gradients(model: ModelMemory, *, with_sum: bool, with_new: bool) -> MemoryPart:
    """Return the memory of the fp32 sum of gradients, of the new gradients in the weights' width, or of both.

    New gradients of fp32 weights are added to the sum one by one; 16-bit ones are added after the pass.
    """
    size_bytes = with_sum * model.sum_bytes + with_new * model.gradient_bytes
    formula = f"{size_bytes // max(model.trained_parameters, 1)} bytes x trained parameters"
    if with_sum and with_new and model.has_masters:
        formula += " (gradients summed in fp32, and new gradients)"
    elif with_sum and with_new:
        size_bytes = model.sum_bytes + FP32_BYTES * min(largest_parameter(model.shape), model.trained_parameters)
        formula = "4 bytes x trained parameters (summed gradients), and the largest new gradient"
    return MemoryPart("gradients", size_bytes, formula)


def _workspace(model: ModelMemory, batch: BatchSizes, always: bool = False) -> tuple[MemoryPart, ...]:
    """Return the work memory of the backward pass; empty with unchunked logits, which leave enough room for it."""
    is_chunked = model.setup.chunks_loss(batch.labels)
    if not (is_chunked or always):
        return ()
    gradient_count = 4 if model.setup.method == "full" else 2
    size_bytes = gradient_count * model.compute_size * model.shape.mlp_size * batch.tokens
    work_part = MemoryPart("backward pass", size_bytes, f"{gradient_count} gradients as wide as the MLP")
    if not model.setup.four_bits:
        return (work_part,)
    formula = "the widest matrix in matmul precision, and a copy of the widest result"
    return work_part, MemoryPart("unpacked", model.unpacking_bytes(batch.tokens), formula)


def _evaluation(model: ModelMemory, batch: BatchSizes, step_bytes: int) -> MemoryPart:
    """Return the memory that an evaluation needs beyond a step: results of a layer, logits, and a 16-bit weight."""
    adapters = model.adapter_temporaries(batch.row_tokens)
    layer_bytes = max(0, model.layer_bytes.evaluated - adapters)
    # Scores count in full, because they may be a single result as large as all others together.
    scores = min(layer_bytes, model.layer_bytes.made_per_pair * batch.row_tokens)
    token_bytes = model.layer_input + scores + EVALUATION_SHARE * (layer_bytes - scores)
    token_bytes += model.EVALUATION_ADAPTER_SHARE * adapters
    result_bytes = int(batch.eval_tokens * token_bytes)
    needed_bytes = result_bytes + model.evaluation_logits(batch.eval_labels) + model.largest_cast_bytes
    needed_bytes += model.unpacking_bytes(batch.eval_tokens) if model.setup.four_bits else 0
    formula = "what an evaluation batch and the copy of a weight need beyond a step's activations"
    return MemoryPart("evaluation", max(0, needed_bytes - step_bytes), formula)
