"""The shape of a model in numbers: parameters and multiplications, without loading it.

`counting` finds it, for any architecture that the installed transformers can build.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import ConfigError
from tui_trainer.models.attention_facts import UNKNOWN, AttentionFacts
from tui_trainer.models.config_fields import ConfigFields, bad_model
from tui_trainer.models.counting import count_model
from tui_trainer.models.files.headers import TensorFacts
from tui_trainer.models.files.weights import has_experts, has_head, modules_of, stored_parameters
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER, Head, stored_labels
from tui_trainer.models.logits import LogitTransform, logit_transform
from tui_trainer.models.modules import Linear, Part, Reads
from tui_trainer.models.scratch import scratch_config


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
    parts: tuple[Part, ...] = ()
    learned_positions: bool = False
    """Whether a row cannot be longer than `max_position_embeddings` (GPT-2, BERT); rotary ones only get worse."""
    head: Head = CAUSAL
    labels: int = 0
    decoder_layers: int = 0
    stored_blocks: int = 0
    attention: AttentionFacts = UNKNOWN
    logits: LogitTransform | None = None
    """What becomes of the head's product; None for classifiers, and where no loss in chunks could do it."""

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
    fields = ConfigFields(config)
    if isinstance(config.get("text_config"), Mapping):
        hint = "take a model that reads text only"
        raise bad_model(f"{fields.model_type or 'the model'} is built from several models (text and others)", hint)
    if not fields.model_type:
        raise bad_model("config.json has no model_type", hint="it is not the config of a model of transformers")
    classes = (labels or stored_labels(config)) if head in CLASSIFYING else 0
    sizes = {name: fields.number(name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}
    heads = fields.number("num_attention_heads", 1)
    try:
        counted = count_model(config, head, classes, sizes["vocab_size"])
    except ConfigError:
        if not headers or head != CAUSAL or has_experts(headers):
            raise
        counted = _stored_model(fields, headers)
    tied, positions, linears = counted.pop("tied"), counted.pop("positions"), counted["linears"]
    if head == ENCODER_DECODER:
        # transformers ties the head of T5 whatever config.json says, unless the files hold another one.
        tied = not has_head(headers) if headers else fields.flag("tie_word_embeddings", tied)
    # A tied head adds only its bias.
    shared = sum(linear.matrix_parameters for linear in linears if linear.is_head) if tied else 0
    parameters = sum(entry.parameters for entry in (*linears, *counted["parts"])) - shared
    if headers and "quantization_config" not in config and head == CAUSAL:
        parameters = stored_parameters(headers, tied=tied)
    return ModelShape(
        model_type=fields.model_type,
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
