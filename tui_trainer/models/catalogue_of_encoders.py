"""Rows of the catalogue for encoders and for encoders with a decoder.

Read from the config.json of the page or of a model trained from it that repeats it. Nobody looked at the files with
weights: old ones hold heads beside the model, which a task makes anew.
"""

from __future__ import annotations

from typing import Any

from tui_trainer.models.catalogue_entry import CatalogueEntry, page

_DISTILBERT = {
    "model_type": "distilbert",
    "architectures": ["DistilBertForMaskedLM"],
    "dim": 768,
    "hidden_dim": 3072,
    "n_layers": 6,
    "n_heads": 12,
    "vocab_size": 30_522,
    "max_position_embeddings": 512,
    "torch_dtype": "float32",
}


def _bert(vocabulary: int, architecture: str = "BertForMaskedLM") -> dict[str, Any]:
    """The base size: 12 layers of 768."""
    return {
        "model_type": "bert",
        "architectures": [architecture],
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "intermediate_size": 3072,
        "vocab_size": vocabulary,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "pad_token_id": 0,
        "torch_dtype": "float32",
    }


def _roberta(model_type: str, vocabulary: int, architecture: str, labels: int = 0) -> dict[str, Any]:
    """The base size; two of its 514 positions stand before the first token."""
    config = _bert(vocabulary, architecture) | {
        "model_type": model_type,
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    }
    return config | ({"id2label": {str(n): f"LABEL_{n}" for n in range(labels)}} if labels else {})


def _t5(hidden: int, layers: int, heads: int, mlp: int, *, flan: bool = False) -> dict[str, Any]:
    """Flan has the form of version 1.1: a gated MLP, and a head of its own."""
    return {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": hidden,
        "d_kv": 64,
        "d_ff": mlp,
        "num_layers": layers,
        "num_decoder_layers": layers,
        "num_heads": heads,
        "feed_forward_proj": "gated-gelu" if flan else "relu",
        "vocab_size": 32_128,
        "n_positions": 512,
        "is_encoder_decoder": True,
        "tie_word_embeddings": not flan,
        "decoder_start_token_id": 0,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "torch_dtype": "float32",
    }


def _bart(hidden: int, layers: int, heads: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "bart",
        "architectures": ["BartForConditionalGeneration"],
        "d_model": hidden,
        "encoder_layers": layers,
        "decoder_layers": layers,
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": 4 * hidden,
        "decoder_ffn_dim": 4 * hidden,
        "vocab_size": vocabulary,
        "max_position_embeddings": 1024,
        "is_encoder_decoder": True,
        "decoder_start_token_id": 2,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }


def _row(name: str, config: dict[str, Any], parameters: int, license: str) -> CatalogueEntry:
    return CatalogueEntry(
        name=name,
        config=config,
        parameters=parameters,
        weights_bytes=None,
        gated=False,
        license=license,
        source=page(name, None),
    )


_CLASSIFIER, _GAPS = "RobertaForSequenceClassification", "RobertaForMaskedLM"
ENCODER_ENTRIES = (
    _row("google-bert/bert-base-uncased", _bert(30_522), 109_514_298, "apache-2.0"),
    _row("google-bert/bert-base-cased", _bert(28_996), 108_340_804, "apache-2.0"),
    _row("google-bert/bert-base-multilingual-cased", _bert(119_547), 177_974_523, "apache-2.0"),
    _row("l3cube-pune/tamil-bert", _bert(197_285), 237_755_045, "cc-by-4.0"),
    _row("distilbert/distilbert-base-uncased", _DISTILBERT, 66_985_530, "apache-2.0"),
    _row("FacebookAI/roberta-base", _roberta("roberta", 50_265, _GAPS), 124_697_433, "mit"),
    _row("FacebookAI/xlm-roberta-base", _roberta("xlm-roberta", 250_002, "XLMRobertaForMaskedLM"), 278_295_186, "mit"),
    _row(
        "cardiffnlp/twitter-roberta-base-sentiment",
        _roberta("roberta", 50_265, _CLASSIFIER, labels=3),
        124_647_939,
        "not said",
    ),
    _row("google-t5/t5-small", _t5(512, 6, 8, 2048), 60_506_624, "apache-2.0"),
    _row("google-t5/t5-base", _t5(768, 12, 12, 3072), 222_903_552, "apache-2.0"),
    _row("google/flan-t5-small", _t5(512, 8, 6, 1024, flan=True), 76_961_152, "apache-2.0"),
    _row("google/flan-t5-base", _t5(768, 12, 12, 2048, flan=True), 247_577_856, "apache-2.0"),
    _row("facebook/bart-base", _bart(768, 6, 12, 50_265), 139_420_416, "apache-2.0"),
    _row("facebook/bart-large", _bart(1024, 12, 16, 50_265), 406_291_456, "apache-2.0"),
    _row("facebook/bart-large-cnn", _bart(1024, 12, 16, 50_264), 406_290_432, "mit"),
)
