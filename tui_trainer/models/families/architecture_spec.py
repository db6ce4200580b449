"""What every description of an architecture starts from and gives."""

from __future__ import annotations

from dataclasses import dataclass

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
    gated_mlp: bool
    tied: bool
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

    def head(self, bias: bool = False) -> Linear:
        return linear("lm_head", self.hidden, self.vocabulary, 1, bias, is_head=True)

    def tied(self, default: bool) -> bool:
        return self.fields.flag("tie_word_embeddings", default)
