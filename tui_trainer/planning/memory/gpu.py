"""Memory on a GPU: what torch allocates at the peak of a step, its unusable pieces, and the card's context.

The peak is in one of three moments: the loss (all activations and logits), the backward pass of the first layer under
checkpointing (gradients and one layer's results), or the update (gradients). The parts are those of the moment that
needs most. Allocated bytes agree within 4 % with simulated runs of real models (1.2 and 1.5 billion parameters, 4096
and 16384 tokens, 35 cases); fragmentation and context are assumptions that no card has confirmed yet.
"""

from tui_trainer.models.shape import ModelShape
from tui_trainer.optimizers import OPTIMIZERS
from tui_trainer.planning.memory.encoder_decoder import layer_of
from tui_trainer.planning.memory.layers import Layer
from tui_trainer.planning.memory.parts import FLOAT, Batch, MemoryPart, Static, largest_parameter
from tui_trainer.planning.memory.split import split_moments, split_part
from tui_trainer.planning.memory.zero import zero_lasting, zero_moment
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import GIB

# torch's caching allocator cannot use all that it holds.
PIECES_SHARE = 0.03
# CUDA's context and kernels, with the workspace of its matrix library: 0.5 to 0.9 GiB by card and version.
CONTEXT_BYTES = int(0.7 * GIB)


def gpu_parts(shape: ModelShape, setup: TrainingSetup, batch: Batch) -> tuple[MemoryPart, ...]:
    """Peak memory of training, by part; the parts are to be added."""
    static, layer = Static(shape, setup), layer_of(shape, setup, batch.row_tokens)
    moments = _with_checkpoints(static, layer, batch) if setup.gradient_checkpointing else _plain(static, layer, batch)
    lasting: Moment = (static.weights(), static.optimizer())
    if setup.zero_stage:
        lasting, moments = zero_lasting(static), tuple(zero_moment(static, moment) for moment in moments)
    elif setup.shards > 1 or setup.cpu_offload:
        moments = split_moments(static, moments)
        lasting = () if setup.cpu_offload else tuple(split_part(part, setup.shards) for part in lasting)
    moment = max(moments, key=lambda parts: sum(part.bytes for part in parts))
    there = sum(part.bytes for part in moment)
    parts = (*lasting, *moment, _evaluation(static, layer, batch, there))
    allocated = sum(part.bytes for part in parts)
    return (
        *parts,
        MemoryPart(name="pieces", bytes=int(PIECES_SHARE * allocated), formula="3 % that the allocator cannot use"),
        MemoryPart(name="context", bytes=CONTEXT_BYTES, formula="CUDA's context and kernels, 0.5 to 0.9 GiB"),
    )


Moment = tuple[MemoryPart, ...]


def _plain(static: Static, layer: Layer, batch: Batch) -> tuple[Moment, ...]:
    kept = layer.shape.layers * batch.tokens * layer.kept
    ends, summed = _ends(static, batch), batch.accumulation > 1
    formula = "layers x tokens x bytes kept for the backward pass"
    at_loss = (
        MemoryPart(name="activations", bytes=kept + ends, formula=formula),
        _casts(static),
        _loss(static, batch),
        *_workspace(static, batch),
        *_sum_of_gradients(static, batch),
    )
    return at_loss, (_gradients(static, summed=summed, made=True),), _update(static)


def _with_checkpoints(static: Static, layer: Layer, batch: Batch) -> tuple[Moment, ...]:
    inputs = layer.shape.layers * batch.tokens * layer.input
    first = _sum_of_gradients(static, batch)
    formula = "layers x tokens x bytes of a layer's input"
    stored = MemoryPart(name="activations", bytes=inputs + _ends(static, batch), formula=formula)
    one = MemoryPart(
        name="one layer", bytes=batch.tokens * layer.largest[0], formula="what one layer keeps, computed again"
    )
    work = (one, *_workspace(static, batch, always=True))
    at_loss = (stored, _loss(static, batch), *first)
    in_last_layer = (MemoryPart(name="activations", bytes=inputs, formula=formula), *work, *first)
    in_first_layer = (_gradients(static, summed=batch.accumulation > 1, made=True), *work)
    return at_loss, in_last_layer, in_first_layer, _update(static)


def _update(static: Static) -> Moment:
    """All gradients, and what the optimizer makes of one parameter: Adafactor its square and its step, in fp32."""
    gradients = _gradients(static, summed=True, made=False)
    if not OPTIMIZERS[static.setup.optim].factored_state:
        return (gradients,)
    made = 2 * FLOAT * min(largest_parameter(static.shape), static.trained)
    return gradients, MemoryPart(name="update", bytes=made, formula="two fp32 copies of the largest parameter")


def _ends(static: Static, batch: Batch) -> int:
    """The last norm's input and output, and the embedding."""
    return 8 * static.shape.hidden_size * static.tokens_at_ends(batch)


def _casts(static: Static) -> MemoryPart:
    formula = "2 bytes x trained weights: their 16-bit copies, from the forward to the backward pass"
    return MemoryPart(name="16-bit copies", bytes=static.cast_bytes, formula=formula)


def _sum_of_gradients(static: Static, batch: Batch) -> tuple[MemoryPart, ...]:
    """The sum so far, which is there while the next micro-batch is computed."""
    return (_gradients(static, summed=True, made=False),) if batch.accumulation > 1 else ()


def _gradients(static: Static, *, summed: bool, made: bool) -> MemoryPart:
    """Their sum, in fp32 whatever the weights are, and those that the backward pass makes, as wide as the weights."""
    found = summed * static.sum_bytes + made * static.gradient_bytes
    formula = f"{found // max(static.trained, 1)} bytes x trained parameters"
    formula += " (the sum in fp32, and the next ones)" if summed and made else ""
    return MemoryPart(name="gradients", bytes=found, formula=formula)


def _loss(static: Static, batch: Batch) -> MemoryPart:
    chunked = 0 < static.setup.loss_chunk_tokens < batch.labels
    formula = "logits of a chunk, gradients of the hidden states and of the head"
    return MemoryPart(
        name="head and loss",
        bytes=static.loss_bytes(batch.labels),
        formula=formula if chunked else "12 bytes x labels x vocabulary",
    )


def _workspace(static: Static, batch: Batch, always: bool = False) -> tuple[MemoryPart, ...]:
    """Four gradients of the MLP's width, with LoRA two. Where all logits were, they fit into that place."""
    chunked = 0 < static.setup.loss_chunk_tokens < batch.labels
    if not (chunked or always):
        return ()
    results = 4 if static.setup.method == "full" else 2
    found = results * static.compute_size * static.shape.mlp_size * batch.tokens
    work = MemoryPart(name="backward pass", bytes=found, formula=f"{results} gradients of the MLP's width")
    if not static.setup.four_bits:
        return (work,)
    formula = "the widest matrix as a product takes it, and a copy of the widest result"
    return work, MemoryPart(name="unpacked", bytes=static.unpacking_bytes(batch.tokens), formula=formula)


def _evaluation(static: Static, layer: Layer, batch: Batch, there: int) -> MemoryPart:
    results = batch.eval_tokens * layer.made_without_dropout
    wanted = results + static.evaluation_logits(batch.eval_labels) + static.largest_cast_bytes
    wanted += static.unpacking_bytes(batch.eval_tokens) if static.setup.four_bits else 0
    formula = "what one evaluation batch and the copy of a weight need beyond a step's activations"
    return MemoryPart(name="evaluation", bytes=max(0, wanted - there), formula=formula)
