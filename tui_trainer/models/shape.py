"""The shape of a model in numbers: parameters and multiplications, without loading it.

Known architectures are counted from config.json alone. Of others, the names and sizes in the headers of the weights
tell; without weights the model is built without numbers in a child process (`counting`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.models.config_fields import ConfigFields, bad_model
from tui_trainer.models.families.architecture_spec import ArchitectureSpec
from tui_trainer.models.families.counting import count_parameters_in_child
from tui_trainer.models.families.encoder import ENCODER_FAMILIES, Ending
from tui_trainer.models.families.encoder_decoder import SEQ2SEQ_FAMILIES
from tui_trainer.models.families.encoder_spec import LayerSpec
from tui_trainer.models.families.gated import GATED_FAMILIES
from tui_trainer.models.families.layers import Linear, Part, Reads, linear
from tui_trainer.models.families.plain import PLAIN_FAMILIES
from tui_trainer.models.files.headers import TensorFacts
from tui_trainer.models.files.weights import has_experts, has_head, modules_of, stored_parameters
from tui_trainer.models.heads import CLASSIFYING, Head, stored_labels
from tui_trainer.models.logits import LogitTransform, logit_transform
from tui_trainer.models.scratch import scratch_config

FAMILIES = GATED_FAMILIES | PLAIN_FAMILIES
# Decoders whose classifier of tokens has this name; the others call it as that of texts, `score`.
_CLASSIFIER_OF_TOKENS = {"gpt2", "gpt_neox", "bloom", "falcon"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A model with its head. `parameters` are exact where the file with the weights says them, else by a formula.

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
    gated_mlp: bool
    vocabulary: int
    tied_embeddings: bool
    parameters: int
    linears: tuple[Linear, ...]
    attention_dropout: float = 0.0
    max_position_embeddings: int | None = None
    parts: tuple[Part, ...] = ()
    learned_positions: bool = False
    """Whether a row cannot be longer than `max_position_embeddings` (GPT-2, BERT); rotary ones only get worse."""
    head: Head = "causal_lm"
    labels: int = 0
    decoder_layers: int = 0
    stored_blocks: int = 0
    form: LayerSpec | None = None
    """How the layers of an encoder compute; None for decoders, and where nobody has counted it."""
    logits: LogitTransform | None = None
    """What becomes of the head's product; None for classifiers, and where no loss in chunks could do it."""

    @property
    def matrix_parameters(self) -> int:
        """Weights in the matmuls of each token, as often as it passes them, those of a tied head with them.

        Behind an encoder the tokens of the target pass others than those of the input: these are of both.
        """
        return self.matrix_parameters_read("source") + self.matrix_parameters_read("target")

    def matrix_parameters_read(self, by: Reads) -> int:
        """The same for the tokens of the input, for those of the target, or once for each row."""
        return sum(linear.matrix_parameters * linear.uses for linear in self.linears if linear.reads == by)


def shape_of(
    config: Mapping[str, Any],
    headers: Mapping[str, TensorFacts] | None = None,
    *,
    head: Head = "causal_lm",
    labels: int = 0,
) -> ModelShape:
    """The shape of the model that a config.json describes, with this head.

    `labels` are those of a classifier; 0: as many as config.json tells of. `headers` (of the stored weights) make the
    number of parameters of a decoder exact; tied weights count once. Those of other heads are a formula's: the files
    hold the heads of another task, or none. Raises ConfigError for a config without the numbers of such a model, and
    for an architecture that nothing here knows.
    """
    fields = ConfigFields(config)
    if isinstance(config.get("text_config"), Mapping):
        hint = "take a model that reads text only"
        raise bad_model(f"{fields.model_type or 'the model'} is built from several models (text and others)", hint)
    ending = Ending(head, (labels or stored_labels(config)) if head in CLASSIFYING else 0)
    spec = _spec(fields, ending)
    if spec is None:
        return _unknown_shape(fields, headers, ending)
    if headers and head == "seq2seq_lm":
        spec = replace(spec, tied=not has_head(headers))
    # A tied head adds only its bias.
    shared = sum(linear.matrix_parameters for linear in spec.linears if linear.is_head) if spec.tied else 0
    modules: tuple[Linear | Part, ...] = (*spec.linears, *spec.parts)
    parameters = sum(module.parameters for module in modules) - shared
    shape = _shape(fields, spec, ending, parameters=parameters)
    if not headers or "quantization_config" in config or head != "causal_lm":
        return shape
    return replace(shape, parameters=stored_parameters(headers, tied=spec.tied))


def is_described(shape: ModelShape) -> bool:
    """Whether a family is described here, name by name."""
    if shape.head == "seq2seq_lm":
        return shape.model_type in SEQ2SEQ_FAMILIES
    return shape.model_type in FAMILIES or (shape.head in CLASSIFYING and shape.model_type in ENCODER_FAMILIES)


def _spec(fields: ConfigFields, ending: Ending) -> ArchitectureSpec | None:
    """None for a family that is not described here."""
    if ending.head == "seq2seq_lm":
        both = SEQ2SEQ_FAMILIES.get(fields.model_type)
        return both(fields) if both else None
    if ending.head in CLASSIFYING and (encoder := ENCODER_FAMILIES.get(fields.model_type)):
        return encoder(fields, ending)
    decoder = FAMILIES.get(fields.model_type)
    if decoder is None or ending.head == "causal_lm":
        return decoder(fields) if decoder else None
    return _classifying(decoder(fields), fields.model_type, ending)


def _classifying(decoder: ArchitectureSpec, model_type: str, ending: Ending) -> ArchitectureSpec:
    """A decoder whose head over the vocabulary gives way to one over labels; it is computed for every token."""
    *body, over_vocabulary = decoder.linears
    name = "classifier" if model_type in _CLASSIFIER_OF_TOKENS and not ending.is_of_texts else "score"
    bias = not ending.is_of_texts
    score = linear(name, over_vocabulary.inputs, ending.labels, 1, bias, is_head=True)
    return replace(decoder, linears=(*body, score), tied=False)


def scratch_shape(scratch: ScratchSection, vocabulary: int, head: Head = "causal_lm", **more: int) -> ModelShape:
    """The model that `[model.scratch]` describes; `more` as `scratch_config` takes it."""
    return shape_of(scratch_config(scratch, vocabulary, head, **more), head=head)


def _shape(fields: ConfigFields, spec: ArchitectureSpec, ending: Ending, *, parameters: int) -> ModelShape:
    return ModelShape(
        model_type=fields.model_type,
        hidden_size=fields.number("hidden_size"),
        layers=fields.number("num_hidden_layers"),
        attention_heads=fields.number("num_attention_heads", 1),
        key_value_heads=spec.key_value_heads,
        head_size=spec.head_size,
        mlp_size=spec.mlp_size,
        gated_mlp=spec.gated_mlp,
        vocabulary=fields.number("vocab_size"),
        tied_embeddings=spec.tied,
        parameters=parameters,
        linears=spec.linears,
        attention_dropout=spec.form.attention_dropout if spec.form else fields.share("attention_dropout"),
        max_position_embeddings=spec.positions or fields.optional("max_position_embeddings"),
        parts=spec.parts,
        learned_positions=spec.learned_positions,
        head=ending.head,
        labels=ending.labels,
        decoder_layers=spec.decoder_layers,
        stored_blocks=spec.stored_blocks or fields.number("num_hidden_layers"),
        form=spec.form,
        logits=None if ending.head in CLASSIFYING else logit_transform(fields.values),
    )


def _unknown_shape(fields: ConfigFields, headers: Mapping[str, TensorFacts] | None, ending: Ending) -> ModelShape:
    """From the weights where they say it; stored experts are not the modules that the program builds of them."""
    if not fields.model_type:
        raise bad_model("config.json has no model_type", hint="it is not the config of a model of transformers")
    if headers and not has_experts(headers) and ending.head == "causal_lm":
        tied = fields.flag("tie_word_embeddings", not has_head(headers))
        linears, parts = modules_of(headers, fields.number("hidden_size"), fields.number("vocab_size"))
        parameters = stored_parameters(headers, tied=tied)
    else:
        counted = count_parameters_in_child(fields.values, ending.head, ending.labels)
        linears, parts, tied, parameters = counted.linears, counted.parts, counted.tied, counted.parameters
    heads, layers = fields.number("num_attention_heads", 1), fields.number("num_hidden_layers")
    decoder_layers = fields.optional("decoder_layers") or fields.number("num_decoder_layers", layers)
    spec = ArchitectureSpec(
        linears=linears,
        parts=parts,
        key_value_heads=fields.number("num_key_value_heads", heads),
        head_size=fields.number("head_dim", max(fields.number("hidden_size") // heads, 1)),
        mlp_size=fields.number("intermediate_size", 4 * fields.number("hidden_size")),
        gated_mlp=any("gate" in linear.name for linear in linears),
        tied=tied,
        # As many as the encoder has where it is not said.
        decoder_layers=decoder_layers if ending.head == "seq2seq_lm" else 0,
    )
    return _shape(fields, spec, ending, parameters=parameters)
