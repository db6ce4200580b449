"""How the layers of encoders compute, with a decoder behind them or without: what config.json says beside the sizes.

Only families whose layers were counted have a form; `planning/memory/encoder_decoder.py` reads it.
"""

from dataclasses import dataclass
from typing import Literal, cast, get_args

from tui_trainer.models.config_fields import ConfigFields

Activation = Literal["gelu", "relu", "silu", "gelu_new"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerSpec:
    """`dropout` is that of results between the layers, `distances` a learnt number for each pair of tokens (T5)."""

    activation: Activation
    dropout: float
    attention_dropout: float
    activation_dropout: float = 0.0
    norm: Literal["layer", "rms"] = "layer"
    distances: bool = False
    drops_attended: bool = True
    """Whether what attention gives is dropped as well; DistilBERT drops what the MLP gives alone."""
    decoder_heads: int = 0


def bert_form(fields: ConfigFields) -> LayerSpec | None:
    """BERT and its kin. Source of the rates where config.json has none: BertConfig of transformers 5.23."""
    activation = _known(fields.values.get("hidden_act") or "gelu")
    rates = _rate(fields, "hidden_dropout_prob", 0.1), _rate(fields, "attention_probs_dropout_prob", 0.1)
    return LayerSpec(activation=activation, dropout=rates[0], attention_dropout=rates[1]) if activation else None


def distilbert_form(fields: ConfigFields) -> LayerSpec | None:
    """Source of the rates where config.json has none: DistilBertConfig of transformers 5.23."""
    activation = _known(fields.values.get("activation") or "gelu")
    rates = _rate(fields, "dropout", 0.1), _rate(fields, "attention_dropout", 0.1)
    if activation is None:
        return None
    return LayerSpec(activation=activation, dropout=rates[0], attention_dropout=rates[1], drops_attended=False)


def t5_form(fields: ConfigFields) -> LayerSpec | None:
    """One rate for all dropout. `gated-gelu` is GELU by its approximation. Source: T5Config of transformers 5.23."""
    told = str(fields.values.get("feed_forward_proj") or "relu")
    activation = _known("gelu_new" if told == "gated-gelu" else told.rpartition("-")[2])
    rate = _rate(fields, "dropout_rate", 0.1)
    if activation is None:
        return None
    return LayerSpec(
        activation=activation,
        dropout=rate,
        attention_dropout=rate,
        activation_dropout=rate,
        norm="rms",
        distances=True,
        decoder_heads=fields.number("num_attention_heads", 1),
    )


def bart_form(fields: ConfigFields) -> LayerSpec | None:
    """BART, mBART and Pegasus. Source of the rates where config.json has none: BartConfig of transformers 5.23."""
    activation = _known(fields.values.get("activation_function") or "gelu")
    if activation is None:
        return None
    return LayerSpec(
        activation=activation,
        dropout=_rate(fields, "dropout", 0.1),
        attention_dropout=_rate(fields, "attention_dropout", 0.0),
        activation_dropout=_rate(fields, "activation_dropout", 0.0),
        decoder_heads=fields.optional("decoder_attention_heads") or fields.number("num_attention_heads"),
    )


def _known(name: object) -> Activation | None:
    return cast(Activation, name) if name in get_args(Activation) else None


def _rate(fields: ConfigFields, name: str, default: float) -> float:
    return fields.share(name) if fields.values.get(name) is not None else default
