"""Memory by part, before anything is loaded: what training adds to a process that has its libraries loaded.

Works from a ModelShape, so it needs neither torch nor the weights. Numbers are bytes of resident memory, for fp32 on a
CPU with glibc. The sum is the peak: glibc keeps what a moment has given back, so moments add up more than one would
think (gradients, for instance, do not fit into the places that activations leave).
Measured by tests/benchmarks/estimates.py. It does not know what data preparation needs, which is over by then.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tui_trainer.planning.model_shape import ModelShape
from tui_trainer.units import MIB

FLOAT = 4
# What is loaded at first use, whatever the shape. Measured: 15 MB of torch's code by a bare loop of steps, 11 to 17 MB
# more in a run, which also writes text samples and checkpoints.
LIBRARY_BYTES = 28_000_000
# From here on glibc maps a block by itself and gives it back whole (its M_MMAP_THRESHOLD grows up to this size).
MAPPED_BLOCK_BYTES = 32 * MIB


class MemoryPart(BaseModel):
    """One line of the memory table."""

    model_config = ConfigDict(frozen=True)

    name: str
    bytes: int
    formula: str


def memory_parts(
    shape: ModelShape, *, micro_batch: int, eval_batch: int, row_tokens: int, accumulation: int = 1
) -> tuple[MemoryPart, ...]:
    """Peak memory of training, by part; the parts are to be added."""
    weights = shape.parameters * FLOAT
    tokens = micro_batch * row_tokens
    kept = (
        shape.layers * tokens * activation_bytes_per_token(shape, row_tokens) + 3 * FLOAT * tokens * shape.hidden_size
    )
    passing = shape.layers * tokens * passing_bytes_per_token(shape, row_tokens, tokens)
    loss = 3 * FLOAT * tokens * shape.vocabulary
    backward = tokens * backward_bytes_per_token(shape, row_tokens)
    evaluation = eval_batch * row_tokens * evaluation_bytes_per_token(shape)
    return (
        MemoryPart(name="weights", bytes=weights, formula="4 bytes x parameters"),
        _gradients(weights, accumulation),
        MemoryPart(name="optimiser", bytes=2 * weights, formula="8 bytes x parameters (AdamW, two moments)"),
        MemoryPart(name="activations", bytes=kept, formula="layers x tokens x bytes kept for the backward pass"),
        MemoryPart(
            name="passing results",
            bytes=passing,
            formula="layers x tokens x bytes of short-lived results, whose places glibc cannot fill again",
        ),
        MemoryPart(name="backward pass", bytes=backward, formula="tokens x bytes of one layer's gradients"),
        MemoryPart(name="head and loss", bytes=loss, formula="12 bytes x tokens x vocabulary"),
        MemoryPart(
            name="evaluation",
            bytes=max(0, evaluation - kept - passing - backward - loss),
            formula="what one evaluation batch needs beyond the places of a step's activations",
        ),
        MemoryPart(
            name="libraries", bytes=LIBRARY_BYTES, formula="code that is loaded at first use, whatever the shape"
        ),
    )


def _gradients(weights: int, accumulation: int) -> MemoryPart:
    if accumulation == 1:
        return MemoryPart(name="gradients", bytes=weights, formula="4 bytes x parameters")
    formula = "8 bytes x parameters: those of the next micro-batch are made beside the sum"
    return MemoryPart(name="gradients", bytes=2 * weights, formula=formula)


def activation_bytes_per_token(shape: ModelShape, row_tokens: int) -> int:
    """What autograd keeps of one token in one layer, in fp32. Exact: saved_tensors_hooks count the same.

    Of width h: both norms' inputs, scaled inputs and outputs, the rotated queries and the attention's output. Keys and
    values; four of the MLP's width (gate, its SiLU, up, the product); a number for each norm and the softmax's
    normaliser for each head. Dropout takes attention off the fused path: the scores after softmax, the dropout mask
    and their product stay, row_tokens numbers each for every head, and keys and values are repeated for all heads.
    """
    h, kv, f, heads = shape.hidden_size, shape.key_value_size, shape.mlp_size, shape.attention_heads
    if shape.attention_dropout:
        return FLOAT * (10 * h + 4 * f + 2 + 3 * heads * row_tokens)
    return FLOAT * (8 * h + 2 * kv + 4 * f + 2 + heads)


def passing_bytes_per_token(shape: ModelShape, row_tokens: int, tokens: int) -> int:
    """What the forward pass of one layer computes from one token and does not keep: resident all the same.

    torch asks for aligned blocks, for which glibc wants some bytes more than it then uses, so the place of a freed
    block is too small for the next of its size and stays empty between two that are kept. Of width h: the squares in
    both norms, what attention and MLP add to the residual, and four and a half on the way of queries through the
    rotation; as many for keys. With dropout, also the scaled queries and keys and the scores before softmax.
    Blocks of 32 MiB and more leave no such places.
    """
    sizes = [(8.5, shape.hidden_size), (4.5, shape.key_value_size)]
    if shape.attention_dropout:
        sizes += [(2.0, shape.hidden_size), (2.25, shape.attention_heads * row_tokens)]
    return int(sum(FLOAT * n * size for n, size in sizes if FLOAT * size * tokens < MAPPED_BLOCK_BYTES))


def backward_bytes_per_token(shape: ModelShape, row_tokens: int) -> int:
    """Gradients that are there at one time in the last layer: two of the MLP's width, with dropout three of scores."""
    scores = 3 * shape.attention_heads * row_tokens if shape.attention_dropout else 0
    return FLOAT * max(2 * shape.mlp_size, scores)


def evaluation_bytes_per_token(shape: ModelShape) -> int:
    """All results of one layer, as nothing is kept, and then the logits and their log-softmax. No dropout here."""
    h, kv, f = shape.hidden_size, shape.key_value_size, shape.mlp_size
    return int(FLOAT * (16.5 * h + 6.5 * kv + 4 * f + 2 * shape.vocabulary))


def total_bytes(parts: tuple[MemoryPart, ...]) -> int:
    return sum(part.bytes for part in parts)
