"""Memory by part, before anything is loaded: what training adds to a process that has its libraries loaded.

Works from a ModelShape, so it needs neither torch nor the weights. Numbers are bytes, for fp32 on a CPU.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from tui_trainer.planning.model_shape import ModelShape

FLOAT = 4


class MemoryPart(BaseModel):
    """One line of the memory table."""

    model_config = ConfigDict(frozen=True)

    name: str
    bytes: int
    formula: str


def memory_parts(shape: ModelShape, *, micro_batch: int, eval_batch: int, row_tokens: int) -> tuple[MemoryPart, ...]:
    """Peak memory of one optimiser step, by part."""
    weights = shape.parameters * FLOAT
    tokens = micro_batch * row_tokens
    eval_logits = 3 * FLOAT * eval_batch * row_tokens * shape.vocabulary
    loss = 3 * FLOAT * tokens * shape.vocabulary
    return (
        MemoryPart(name="weights", bytes=weights, formula="4 bytes x parameters"),
        MemoryPart(name="gradients", bytes=weights, formula="4 bytes x parameters"),
        MemoryPart(name="optimiser", bytes=2 * weights, formula="8 bytes x parameters (AdamW, two moments)"),
        MemoryPart(
            name="activations",
            bytes=shape.layers * tokens * activation_bytes_per_token(shape),
            formula="layers x tokens x bytes kept for the backward pass",
        ),
        MemoryPart(name="head and loss", bytes=max(loss, eval_logits), formula="12 bytes x tokens x vocabulary"),
    )


def activation_bytes_per_token(shape: ModelShape) -> int:
    """What one layer keeps of one token for its backward pass, in fp32."""
    h, kv, f = shape.hidden_size, shape.key_value_size, shape.mlp_size
    return FLOAT * (10 * h + 2 * kv + 4 * f + shape.attention_heads)


def total_bytes(parts: tuple[MemoryPart, ...]) -> int:
    return sum(part.bytes for part in parts)
