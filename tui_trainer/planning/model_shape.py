"""The shape of a model in numbers: parameters and multiplications, without loading it."""

from __future__ import annotations

from dataclasses import dataclass

from tui_trainer.config.sections import ScratchSection


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder of Llama shape: no biases, gated MLP, RMSNorm, head tied to the embedding."""

    hidden_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    mlp_size: int
    vocabulary: int
    attention_dropout: float = 0.0

    @classmethod
    def of(cls, scratch: ScratchSection, vocabulary: int) -> ModelShape:
        return cls(
            hidden_size=scratch.hidden_size,
            layers=scratch.num_hidden_layers,
            attention_heads=scratch.num_attention_heads,
            key_value_heads=scratch.key_value_heads,
            mlp_size=scratch.mlp_size,
            vocabulary=vocabulary,
            attention_dropout=scratch.attention_dropout,
        )

    @property
    def key_value_size(self) -> int:
        return self.hidden_size // self.attention_heads * self.key_value_heads

    @property
    def layer_matrix_parameters(self) -> int:
        """Weights of one layer that take part in matrix products: q, o, k, v and the three of the MLP."""
        h = self.hidden_size
        return 2 * h * h + 2 * h * self.key_value_size + 3 * h * self.mlp_size

    @property
    def parameters(self) -> int:
        """All weights; the head shares those of the embedding. Exact."""
        norms = self.layers * 2 * self.hidden_size + self.hidden_size
        return self.vocabulary * self.hidden_size + self.layers * self.layer_matrix_parameters + norms

    def training_flops_per_token(self, row_tokens: int) -> float:
        """Forward and backward of one token in a row of `row_tokens`.

        6 for each weight in a matrix product and 12 x layers x width x row for attention, not halved for the causal
        mask. Source: PaLM, arXiv:2204.02311, appendix B.
        """
        matrices = self.layers * self.layer_matrix_parameters + self.vocabulary * self.hidden_size
        return 6.0 * matrices + 12.0 * self.layers * self.hidden_size * row_tokens
