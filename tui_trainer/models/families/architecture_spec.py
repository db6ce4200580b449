"""What every description of an architecture starts from and gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tui_trainer.models.config_fields import ConfigFields
from tui_trainer.models.families.encoder_spec import LayerSpec
from tui_trainer.models.families.layers import Linear, Part, linear


@dataclass(frozen=True, kw_only=True, slots=True)
class ArchitectureSpec:
    """The parts of one model. `linears` end with the head.

    `positions` are those that a row can have, where config.json says another number. `stored_blocks` is how many blocks
    the names of the weights count, where that are not the layers. With an encoder and a decoder, all numbers are the
    encoder's, and `decoder_layers` those of the other. `form` is None where nobody has counted what the layers compute.
    """

    linears: tuple[Linear, ...]
    parts: tuple[Part, ...]
    key_value_heads: int
    head_size: int
    mlp_size: int
    gated_mlp: bool = False
    tied: bool = False
    learned_positions: bool = False
    positions: int | None = None
    stored_blocks: int | None = None
    decoder_layers: int = 0
    form: LayerSpec | None = None


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers that every family has."""

    fields: ConfigFields
    hidden: int
    layers: int
    heads: int
    vocabulary: int

    @classmethod
    def of(cls, fields: ConfigFields) -> Sizes:
        number = fields.number
        hidden, layers = number("hidden_size"), number("num_hidden_layers")
        return cls(fields, hidden, layers, number("num_attention_heads"), number("vocab_size"))

    @property
    def mlp(self) -> int:
        return self.fields.number("intermediate_size")

    @property
    def head_size(self) -> int:
        """Where config.json does not say it."""
        return max(self.hidden // self.heads, 1)

    def spec(self, linears: tuple[Linear, ...], parts: tuple[Part, ...], **other: Any) -> ArchitectureSpec:
        """As the sizes say, but for what is said otherwise."""
        usual = {"key_value_heads": self.heads, "head_size": self.head_size}
        usual |= {} if "mlp_size" in other else {"mlp_size": self.mlp}
        return ArchitectureSpec(linears=linears, parts=parts, **{**usual, **other})

    def attention(
        self, head_size: int, kv_heads: int, bias: bool, *, out: str = "o_proj", out_bias: bool
    ) -> tuple[Linear, ...]:
        """Queries, keys and values each with a matrix of its own, and the one after them."""
        queries, keys = self.heads * head_size, kv_heads * head_size
        return (
            linear("self_attn.q_proj", self.hidden, queries, self.layers, bias),
            linear("self_attn.k_proj", self.hidden, keys, self.layers, bias),
            linear("self_attn.v_proj", self.hidden, keys, self.layers, bias),
            linear(f"self_attn.{out}", queries, self.hidden, self.layers, out_bias),
        )

    def head(self, bias: bool = False) -> Linear:
        return linear("lm_head", self.hidden, self.vocabulary, 1, bias, is_head=True)

    def tied(self, default: bool) -> bool:
        return self.fields.flag("tie_word_embeddings", default)
