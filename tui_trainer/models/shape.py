"""The shape of a model in numbers: parameters and multiplications, without loading it.

`counting` finds it, for any architecture that the installed transformers can build.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models.config_json import ConfigFields, bad_model
from tui_trainer.models.counting import count_model
from tui_trainer.models.files.weights import TensorFacts, has_head, modules_of, stored_parameters
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER, Head, stored_labels
from tui_trainer.models.modules import (
    UNKNOWN,
    AttentionFacts,
    Linear,
    LogitTransform,
    ModelPart,
    Reads,
    logit_transform,
)
from tui_trainer.models.towers import has_towers, is_of_language_model

# `[model.scratch]` in the words of a config.json, for each head.

# Source: BertConfig of transformers: positions where no length is asked for, and kinds of segments.
_POSITIONS, _SEGMENTS = 512, 2
# An MLP without a gate is so many times as wide as the model. Source: Vaswani et al., arXiv:1706.03762, section 3.3.
_PLAIN_MLP = 4


def scratch_config(
    scratch: ScratchSection, vocabulary: int, head: Head = CAUSAL, *, max_length: int = _POSITIONS, labels: int = 2
) -> dict[str, Any]:
    """A decoder of Llama's form (head and embedding tied, no biases), an encoder of BERT's with `max_length` learned
    positions for the two classifications, or an encoder with a decoder of T5's (version 1.1, with its head tied).
    Nothing is dropped but as `attention_dropout` says; T5 has one rate for all of its dropout."""
    mlp = _PLAIN_MLP * scratch.hidden_size if scratch.intermediate_size == "auto" else scratch.intermediate_size
    width, layers, heads = scratch.hidden_size, scratch.num_hidden_layers, scratch.num_attention_heads
    if head in CLASSIFYING:
        return {
            "model_type": "bert",
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "intermediate_size": mlp,
            "attention_probs_dropout_prob": scratch.attention_dropout,
            "hidden_dropout_prob": 0.0,
            "max_position_embeddings": max_length,
            "type_vocab_size": _SEGMENTS,
            "vocab_size": vocabulary,
            "num_labels": labels,
        }
    if head == ENCODER_DECODER:
        return {
            "model_type": "t5",
            "d_model": width,
            "d_kv": max(width // heads, 1),
            "d_ff": scratch.mlp_size,
            "num_layers": layers,
            "num_decoder_layers": layers,
            "num_heads": heads,
            "feed_forward_proj": "gated-gelu",
            "dropout_rate": scratch.attention_dropout,
            "vocab_size": vocabulary,
            "tie_word_embeddings": True,
            "is_encoder_decoder": True,
        }
    return {
        "model_type": "llama",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": scratch.key_value_heads,
        "intermediate_size": scratch.mlp_size,
        "attention_dropout": scratch.attention_dropout,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }


def scratch_problems(scratch: ScratchSection, head: Head) -> list[Problem]:
    """Settings of `[model.scratch]` that a model with this head has no place for."""
    key = "model.scratch.num_key_value_heads"
    if head == CAUSAL or scratch.key_value_heads == scratch.num_attention_heads:
        return []
    kind = "BERT" if head in CLASSIFYING else "T5"
    message = f"a {kind} model has as many key-value heads as attention heads"
    return [Problem(message=message, key=key, hint='set it to "auto"')]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A model with its head. `parameters` are exact where the file with the weights says them, else counted.

    With an encoder and a decoder, `layers`, `attention_heads` and `mlp_size` are the encoder's. `labels` are those of a
    classifier, 0 for heads over the vocabulary. `stored_blocks` are the blocks that the names of the weights count.
    """

    model_type: str
    hidden_size: int
    layers: int
    attention_heads: int
    key_value_heads: int
    head_size: int
    mlp_size: int
    vocabulary: int
    tied_embeddings: bool
    parameters: int
    linears: tuple[Linear, ...]
    attention_dropout: float = 0.0
    max_position_embeddings: int | None = None
    parts: tuple[ModelPart, ...] = ()
    learned_positions: bool = False
    """Whether a row cannot be longer than `max_position_embeddings` (GPT-2, BERT); rotary ones only get worse."""
    head: Head = CAUSAL
    labels: int = 0
    decoder_layers: int = 0
    stored_blocks: int = 0
    attention: AttentionFacts = UNKNOWN
    towers: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Weights of what turns images into vectors beside the language model, by module: frozen, and not among
    `parameters`. Everything else here is the language model's."""
    stored_dtype: str = ""
    """What most of the stored weights are in, as torch names it; empty for a model from scratch."""
    logits: LogitTransform | None = None
    """What becomes of the head's product; None for classifiers, and where no loss in chunks could do it."""

    @property
    def loaded_parameters(self) -> int:
        """With those of towers."""
        return self.parameters + sum(self.towers.values())

    @property
    def has_grouped_experts(self) -> bool:
        """Whether the weights of experts are in one tensor, which `grouped_mm` takes: no module of theirs is a linear
        layer. Source: transformers/integrations/moe.py of 5.17."""
        return any("experts" in part.path.split(".") for part in self.parts)

    def matrix_parameters_read(self, by: Reads) -> int:
        """Weights in the matmuls of a token of the input, of the target behind an encoder, or of a row: as often as it
        passes them, those of a tied head with them."""
        return sum(linear.matrix_parameters * linear.uses for linear in self.linears if linear.reads == by)


def shape_of(
    config: Mapping[str, Any],
    headers: Mapping[str, TensorFacts] | None = None,
    *,
    head: Head = CAUSAL,
    labels: int = 0,
) -> ModelShape:
    """The shape of the model that a config.json describes, with this head.

    `labels` are those of a classifier; 0: as many as config.json tells of. `headers` (of the stored weights) make the
    number of parameters of a decoder exact; tied weights count once. Those of other heads are counted: the files hold
    the heads of another task, or none. Raises ConfigError for a config without the numbers of such a model, and for an
    architecture that the installed transformers cannot build.
    """
    fields, model_type = ConfigFields(config), ConfigFields(config).model_type
    if isinstance(config.get("text_config"), Mapping) and not has_towers(model_type):
        hint = "choose a text-only model"
        raise bad_model(f"{model_type or 'the model'} combines several models (a text model and others)", hint)
    if not model_type:
        raise bad_model("config.json has no model_type", hint="it is not the config of a transformers model")
    classes = (labels or stored_labels(config)) if head in CLASSIFYING else 0
    counted: dict[str, Any] = {}
    if has_towers(model_type):
        counted = count_model(config, head, classes, 0)
        config, towers = counted.pop("language"), counted["towers"]
        fields = ConfigFields(config)
        headers = {name: facts for name, facts in (headers or {}).items() if is_of_language_model(name, towers)} or None
    sizes = {name: fields.number(name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}
    heads = fields.number("num_attention_heads", 1)
    try:
        counted = counted or count_model(config, head, classes, sizes["vocab_size"])
    except ConfigError:
        has_experts = any(".experts." in name for name in headers or ())
        if not headers or head != CAUSAL or has_experts:
            raise
        counted = _stored_model(fields, headers)
    tied, positions, linears = counted.pop("tied"), counted.pop("positions"), counted["linears"]
    if counted.get("towers"):
        # The same of a language model inside of another: published Mistral 3 are silent, and hold a head.
        tied = tied and not (headers and has_head(headers))
    if head == ENCODER_DECODER:
        # transformers ties the head of T5 whatever config.json says, unless the files hold another one.
        tied = not has_head(headers) if headers else fields.flag("tie_word_embeddings", tied)
    # A tied head adds only its bias.
    shared = sum(linear.matrix_parameters for linear in linears if linear.is_head) if tied else 0
    parameters = sum(entry.parameters for entry in (*linears, *counted["parts"])) - shared
    if headers and "quantization_config" not in config and head == CAUSAL:
        parameters = stored_parameters(headers, tied=tied)
    return ModelShape(
        model_type=model_type,
        hidden_size=sizes["hidden_size"],
        layers=sizes["num_hidden_layers"],
        attention_heads=heads,
        vocabulary=sizes["vocab_size"],
        tied_embeddings=tied,
        parameters=parameters,
        max_position_embeddings=positions or fields.optional("max_position_embeddings"),
        learned_positions=positions > 0,
        head=head,
        labels=classes,
        logits=None if head in CLASSIFYING else logit_transform(config),
        **counted,
    )


def with_more_rows(shape: ModelShape, stored: ModelShape) -> ModelShape:
    """Of a model whose tables get more rows than those in its files: where the files say how many weights there are,
    those of the new rows beside them."""
    more = shape.vocabulary - stored.vocabulary
    if more <= 0 or shape.parameters != stored.parameters:
        return shape
    each = sum(part.parameters_each // part.rows for part in shape.parts if part.rows == shape.vocabulary)
    for linear in shape.linears:
        if linear.is_head and linear.outputs == shape.vocabulary:
            each += (0 if shape.tied_embeddings else linear.inputs) + linear.has_bias
    return replace(shape, parameters=shape.parameters + more * each)


def _stored_model(fields: ConfigFields, headers: Mapping[str, TensorFacts]) -> dict[str, Any]:
    """One whose code comes with it, by its weights. Experts that are stored are not the modules that are built."""
    hidden, heads = fields.number("hidden_size"), fields.number("num_attention_heads", 1)
    linears, parts = modules_of(headers, hidden, fields.number("vocab_size"))
    head_size = fields.number("head_dim", max(hidden // heads, 1))
    return {
        "linears": linears,
        "parts": parts,
        "tied": fields.flag("tie_word_embeddings", not has_head(headers)),
        "key_value_heads": fields.number("num_key_value_heads", heads),
        "head_size": head_size,
        "attention": AttentionFacts(head_size=head_size, value_size=head_size),
        "mlp_size": fields.number("intermediate_size", 4 * hidden),
        "stored_blocks": fields.number("num_hidden_layers"),
        "positions": 0,
        "attention_dropout": fields.share("attention_dropout"),
    }


def scratch_shape(scratch: ScratchSection, vocabulary: int, head: Head = CAUSAL, **more: int) -> ModelShape:
    """The model that `[model.scratch]` describes; `more` as `scratch_config` takes it."""
    return shape_of(scratch_config(scratch, vocabulary, head, **more), head=head)
