"""The shape of a model in numbers (layers, parameters, matrix products), from its config.json without loading it.

`counting.py` counts the modules, for any architecture that the installed transformers can build.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.models import modules
from tui_trainer.models.config_json import ConfigFields, bad_model
from tui_trainer.models.counting import count_model
from tui_trainer.models.files.weights import TensorFacts, has_head, modules_of, stored_parameters
from tui_trainer.models.heads import CAUSAL, CLASSIFYING_HEADS, ENCODER_DECODER, Head, stored_labels
from tui_trainer.models.towers import has_towers, is_of_language_model

# Default number of positions, and number of segment types. Source: BertConfig of transformers.
_POSITIONS, _SEGMENTS = 512, 2
# Width of an MLP without a gate, in widths of the model. Source: Vaswani et al., arXiv:1706.03762, section 3.3.
_PLAIN_MLP = 4


def scratch_config(
    scratch: ScratchSection, vocabulary: int, head: Head = CAUSAL, *, max_length: int = _POSITIONS, labels: int = 2
) -> dict[str, Any]:
    """Return the config.json of the model that `[model.scratch]` describes.

    A causal model is a Llama (tied head, no biases), a classifier a BERT with `max_length` learned positions, and an
    encoder-decoder a T5 (version 1.1, but with a tied head). Only `attention_dropout` sets dropout, in T5 all of it."""
    mlp_width = _PLAIN_MLP * scratch.hidden_size if scratch.intermediate_size == "auto" else scratch.intermediate_size
    hidden_size, layer_count, head_count = scratch.hidden_size, scratch.num_hidden_layers, scratch.num_attention_heads
    if head in CLASSIFYING_HEADS:
        return {
            "model_type": "bert",
            "hidden_size": hidden_size,
            "num_hidden_layers": layer_count,
            "num_attention_heads": head_count,
            "intermediate_size": mlp_width,
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
            "d_model": hidden_size,
            "d_kv": max(hidden_size // head_count, 1),
            "d_ff": scratch.mlp_size,
            "num_layers": layer_count,
            "num_decoder_layers": layer_count,
            "num_heads": head_count,
            "feed_forward_proj": "gated-gelu",
            "dropout_rate": scratch.attention_dropout,
            "vocab_size": vocabulary,
            "tie_word_embeddings": True,
            "is_encoder_decoder": True,
        }
    return {
        "model_type": "llama",
        "hidden_size": hidden_size,
        "num_hidden_layers": layer_count,
        "num_attention_heads": head_count,
        "num_key_value_heads": scratch.key_value_heads,
        "intermediate_size": scratch.mlp_size,
        "attention_dropout": scratch.attention_dropout,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }


def scratch_problems(scratch: ScratchSection, head: Head) -> list[Problem]:
    """Return the settings of `[model.scratch]` that a model with this head does not support."""
    key = "model.scratch.num_key_value_heads"
    if head == CAUSAL or scratch.key_value_heads == scratch.num_attention_heads:
        return []
    kind = "BERT" if head in CLASSIFYING_HEADS else "T5"
    message = f"a {kind} model has as many key-value heads as attention heads"
    return [Problem(message=message, key=key, hint='set it to "auto"')]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """The shape of a model with its head. `parameters` is exact if the weight files have headers, else counted.

    With an encoder and a decoder, `layers`, `attention_heads` and `mlp_size` are the encoder's. `labels` is the number
    of labels of a classifier, 0 for a head over the vocabulary. `stored_blocks` counts blocks by the weights' names."""

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
    linears: tuple[modules.Linear, ...]
    attention_dropout: float = 0.0
    max_position_embeddings: int | None = None
    parts: tuple[modules.ModelPart, ...] = ()
    learned_positions: bool = False
    """Whether no row can be longer than `max_position_embeddings` (GPT-2, BERT), unlike with rotary positions."""
    head: Head = CAUSAL
    labels: int = 0
    decoder_layers: int = 0
    stored_blocks: int = 0
    attention: modules.AttentionFacts = modules.UNKNOWN_ATTENTION
    towers: Mapping[str, int] = field(default_factory=dict, hash=False)
    """Number of frozen weights in each vision tower and projector. Other fields describe only the language model."""
    stored_dtype: str = ""
    """torch's name of the dtype of most stored weights; empty for a model from scratch."""
    logits: modules.LogitTransform | None = None
    """Computation of logits from the head's product; None for classifiers and for models that need another one."""

    @property
    def loaded_parameters(self) -> int:
        """Number of weights in memory, those of towers included."""
        return self.parameters + sum(self.towers.values())

    @property
    def has_grouped_experts(self) -> bool:
        """Whether single tensors hold the weights of all experts, so that experts have no linear layers."""
        return any("experts" in part.path.split(".") for part in self.parts)

    def matrix_parameters_read(self, reads: modules.Reads) -> int:
        """Return the number of weights that multiply one unit of `reads`: a source token, a target token, or a row.

        A weight that is used several times, such as that of a tied head, counts each time."""
        return sum(linear.matrix_parameters * linear.uses for linear in self.linears if linear.reads == reads)


def shape_of(
    config: Mapping[str, Any], headers: Mapping[str, TensorFacts] | None = None, *, head: Head = CAUSAL, labels: int = 0
) -> ModelShape:
    """Return the shape of the model that a config.json describes, with this head.

    `labels` is the number of labels of a classifier; 0: as many as config.json has. `headers` of the stored weights
    make the number of parameters of a decoder exact; tied weights count once. Models with other heads are counted,
    because their files have the head of another task or none. Raise ConfigError if the config lacks required numbers,
    and for an architecture that the installed transformers cannot build."""
    fields, model_type = ConfigFields(config), ConfigFields(config).model_type
    if isinstance(config.get("text_config"), Mapping) and not has_towers(model_type):
        hint = "choose a text-only model"
        raise bad_model(f"{model_type or 'the model'} combines several models (a text model and others)", hint)
    if not model_type:
        raise bad_model("config.json has no model_type", hint="it is not the config of a transformers model")
    label_count = (labels or stored_labels(config)) if head in CLASSIFYING_HEADS else 0
    counts: dict[str, Any] = {}
    if has_towers(model_type):
        counts = count_model(config, head, label_count, 0)
        config, towers = counts.pop("language"), counts["towers"]
        fields = ConfigFields(config)
        headers = {name: facts for name, facts in (headers or {}).items() if is_of_language_model(name, towers)} or None
    size_by_field = {name: fields.number(name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}
    head_count = fields.number("num_attention_heads", 1)
    try:
        counts = counts or count_model(config, head, label_count, size_by_field["vocab_size"])
    except ConfigError:
        has_experts = any(".experts." in name for name in headers or ())
        if not headers or head != CAUSAL or has_experts:
            raise
        counts = _stored_model(fields, headers)
    is_tied, position_count, linears = counts.pop("tied"), counts.pop("positions"), counts["linears"]
    if counts.get("towers"):
        # Published Mistral 3 models store a head, but their config.json does not say so.
        is_tied = is_tied and not (headers and has_head(headers))
    if head == ENCODER_DECODER:
        # transformers ties the head of T5, whatever config.json says, unless the files have a separate one.
        is_tied = not has_head(headers) if headers else fields.flag("tie_word_embeddings", is_tied)
    # A tied head adds only its bias.
    shared_parameters = sum(linear.matrix_parameters for linear in linears if linear.is_head) if is_tied else 0
    parameters = sum(entry.parameters for entry in (*linears, *counts["parts"])) - shared_parameters
    if headers and "quantization_config" not in config and head == CAUSAL:
        parameters = stored_parameters(headers, tied=is_tied)
    return ModelShape(
        model_type=model_type,
        hidden_size=size_by_field["hidden_size"],
        layers=size_by_field["num_hidden_layers"],
        attention_heads=head_count,
        vocabulary=size_by_field["vocab_size"],
        tied_embeddings=is_tied,
        parameters=parameters,
        max_position_embeddings=position_count or fields.optional("max_position_embeddings"),
        learned_positions=position_count > 0,
        head=head,
        labels=label_count,
        logits=None if head in CLASSIFYING_HEADS else modules.logit_transform(config),
        **counts,
    )


def add_new_row_weights(shape: ModelShape, stored: ModelShape) -> ModelShape:
    """Return the shape with the weights of new embedding rows, if its number of parameters was read from the files."""
    new_rows = shape.vocabulary - stored.vocabulary
    if new_rows <= 0 or shape.parameters != stored.parameters:
        return shape
    row_weights = sum(part.parameters_each // part.rows for part in shape.parts if part.rows == shape.vocabulary)
    for linear in shape.linears:
        if linear.is_head and linear.outputs == shape.vocabulary:
            row_weights += (0 if shape.tied_embeddings else linear.inputs) + linear.has_bias
    return replace(shape, parameters=shape.parameters + new_rows * row_weights)


def _stored_model(fields: ConfigFields, headers: Mapping[str, TensorFacts]) -> dict[str, Any]:
    """Return fields of `ModelShape`, counted from stored weights. For models that only their own code could build."""
    hidden_size, head_count = fields.number("hidden_size"), fields.number("num_attention_heads", 1)
    linears, parts = modules_of(headers, hidden_size, fields.number("vocab_size"))
    head_size = fields.number("head_dim", max(hidden_size // head_count, 1))
    return {
        "linears": linears,
        "parts": parts,
        "tied": fields.flag("tie_word_embeddings", not has_head(headers)),
        "key_value_heads": fields.number("num_key_value_heads", head_count),
        "head_size": head_size,
        "attention": modules.AttentionFacts(head_size=head_size, value_size=head_size),
        "mlp_size": fields.number("intermediate_size", 4 * hidden_size),
        "stored_blocks": fields.number("num_hidden_layers"),
        "positions": 0,
        "attention_dropout": fields.share("attention_dropout"),
    }


def scratch_shape(scratch: ScratchSection, vocabulary: int, head: Head = CAUSAL, **arguments: int) -> ModelShape:
    """Return the shape of the model that `[model.scratch]` describes, with arguments of `scratch_config`."""
    return shape_of(scratch_config(scratch, vocabulary, head, **arguments), head=head)
