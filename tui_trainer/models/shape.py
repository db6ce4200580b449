"""The shape of a model in numbers: parameters and multiplications, without loading it.

Known architectures are counted from config.json alone. Of others, the names and sizes in the headers of the weights
tell; without weights the model is built without numbers in a child process (`counting`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.models.anatomy import Anatomy
from tui_trainer.models.config_fields import ConfigFields, bad_model
from tui_trainer.models.counting import count_parameters_in_child
from tui_trainer.models.gated_families import GATED_FAMILIES
from tui_trainer.models.headers import TensorFacts
from tui_trainer.models.layers import Linear, Part
from tui_trainer.models.plain_families import PLAIN_FAMILIES
from tui_trainer.models.weights import has_experts, has_head, modules_of, stored_parameters

__all__ = ["FAMILIES", "Linear", "ModelShape", "Part", "scratch_shape", "shape_of"]

FAMILIES = GATED_FAMILIES | PLAIN_FAMILIES


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
    parts: tuple[Part, ...] = ()
    learned_positions: bool = False
    """Whether a row cannot be longer than `max_position_embeddings` (GPT-2, OPT); rotary ones only get worse."""

    @property
    def matrix_parameters(self) -> int:
        """Weights that take part in matrix products, those of the head with them even where it is tied."""
        return sum(linear.matrix_parameters for linear in self.linears)

    @property
    def embedding_parameters(self) -> int:
        """Weights of the tables that tokens and positions are looked up in."""
        return sum(part.parameters for part in self.parts if part.is_embedding)

    def forward_flops_per_token(self, row_tokens: int) -> float:
        """One token in a row of `row_tokens`, forward only: a third of `training_flops_per_token`."""
        return self.training_flops_per_token(row_tokens) / 3

    def training_flops_per_token(self, row_tokens: int) -> float:
        """Forward and backward of one token in a row of `row_tokens`, when all weights train.

        6 for each weight in a matrix product and 12 x layers x heads x head size x row for attention, not halved for
        the causal mask. Source: PaLM, arXiv:2204.02311, appendix B. A mixture of experts is counted as if each token
        passed all of them.
        """
        attention = 12.0 * self.layers * self.attention_heads * self.head_size * row_tokens
        return 6.0 * self.matrix_parameters + attention


def shape_of(config: Mapping[str, Any], headers: Mapping[str, TensorFacts] | None = None) -> ModelShape:
    """The shape of the decoder that a config.json describes.

    `headers` (of the stored weights) make the number of parameters exact; tied weights count once. Raises ConfigError
    for a config without the numbers of a decoder, and for an architecture that nothing here knows.
    """
    fields = ConfigFields(config)
    if isinstance(config.get("text_config"), Mapping):
        hint = "take a model that reads text only"
        raise bad_model(f"{fields.model_type or 'the model'} is built from several models (text and others)", hint)
    family = FAMILIES.get(fields.model_type)
    if family is None:
        return _unknown_shape(fields, headers)
    anatomy = family(fields)
    shape = _shape(fields, anatomy, parameters=formula_parameters(anatomy.linears, anatomy.parts, anatomy.tied))
    if not headers or "quantization_config" in config:
        return shape
    return replace(shape, parameters=stored_parameters(headers, tied=anatomy.tied))


def formula_parameters(linears: tuple[Linear, ...], parts: tuple[Part, ...], tied: bool) -> int:
    """All weights; a tied head adds only its bias."""
    shared = sum(linear.matrix_parameters for linear in linears if linear.is_head) if tied else 0
    everything = sum(linear.parameters for linear in linears) + sum(part.parameters for part in parts)
    return everything - shared


def scratch_shape(scratch: ScratchSection, vocabulary: int) -> ModelShape:
    """The model that `[model.scratch]` describes."""
    return shape_of(scratch_config(scratch, vocabulary))


def scratch_config(scratch: ScratchSection, vocabulary: int) -> dict[str, Any]:
    """`[model.scratch]` in the words of a config.json: Llama, head and embedding tied, no biases."""
    return {
        "model_type": "llama",
        "hidden_size": scratch.hidden_size,
        "num_hidden_layers": scratch.num_hidden_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "num_key_value_heads": scratch.key_value_heads,
        "intermediate_size": scratch.mlp_size,
        "attention_dropout": scratch.attention_dropout,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }


def _shape(fields: ConfigFields, anatomy: Anatomy, *, parameters: int) -> ModelShape:
    return ModelShape(
        model_type=fields.model_type,
        hidden_size=fields.number("hidden_size"),
        layers=fields.number("num_hidden_layers"),
        attention_heads=fields.number("num_attention_heads", 1),
        key_value_heads=anatomy.key_value_heads,
        head_size=anatomy.head_size,
        mlp_size=anatomy.mlp_size,
        gated_mlp=anatomy.gated_mlp,
        vocabulary=fields.number("vocab_size"),
        tied_embeddings=anatomy.tied,
        parameters=parameters,
        linears=anatomy.linears,
        attention_dropout=fields.share("attention_dropout"),
        max_position_embeddings=fields.optional("max_position_embeddings"),
        parts=anatomy.parts,
        learned_positions=anatomy.learned_positions,
    )


def _unknown_shape(fields: ConfigFields, headers: Mapping[str, TensorFacts] | None) -> ModelShape:
    """From the weights where they say it; stored experts are not the modules that the program builds of them."""
    if not fields.model_type:
        raise bad_model("config.json has no model_type", hint="it is not the config of a model of transformers")
    if headers and not has_experts(headers):
        tied = fields.flag("tie_word_embeddings", not has_head(headers))
        linears, parts = modules_of(headers, fields.number("hidden_size"), fields.number("vocab_size"))
        parameters = stored_parameters(headers, tied=tied)
    else:
        counted = count_parameters_in_child(fields.values)
        linears, parts, tied, parameters = counted.linears, counted.parts, counted.tied, counted.parameters
    heads = fields.number("num_attention_heads", 1)
    anatomy = Anatomy(
        linears=linears,
        parts=parts,
        key_value_heads=fields.number("num_key_value_heads", heads),
        head_size=fields.number("head_dim", max(fields.number("hidden_size") // heads, 1)),
        mlp_size=fields.number("intermediate_size", 4 * fields.number("hidden_size")),
        gated_mlp=any("gate" in linear.name for linear in linears),
        tied=tied,
    )
    return _shape(fields, anatomy, parameters=parameters)
