"""The shape of a model in numbers: parameters and multiplications, without loading it."""

from __future__ import annotations

from dataclasses import dataclass

from tui_trainer.config.sections import ScratchSection


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One kind of matrix product of a model, as its modules name it: `q_proj` [inputs x outputs], `count` times."""

    name: str
    inputs: int
    outputs: int
    count: int
    is_head: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder. `parameters` are exact where the file with the weights says them, else they are a formula's."""

    model_type: str
    hidden_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    mlp_size: int
    gated_mlp: bool
    vocabulary: int
    tied_embeddings: bool
    parameters: int
    linears: tuple[Linear, ...]
    attention_dropout: float = 0.0
    max_position_embeddings: int | None = None
    has_formula: bool = True
    """Whether memory and time of this family are known by formula; otherwise a dry run measures them."""
