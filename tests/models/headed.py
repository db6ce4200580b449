"""Tiny encoders and encoder-decoder models with each head that they can have."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from tests.models.conftest import GATED, GPT2, Tiny
from tui_trainer.models.heads import Head, auto_class

LABELS = 3
_BERT = {
    "vocab_size": 96, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
_DEBERTA = {**_BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0}
_T5 = {"vocab_size": 96, "d_model": 32, "d_ff": 48, "d_kv": 12, "num_layers": 2, "num_heads": 4}
_BART = {
    "vocab_size": 96, "d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 40, "max_position_embeddings": 40,
}  # fmt: skip

# Name of a variant: model_type, fields. They differ in what moves the count.
ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("bert", _BERT),
    "distilbert": ("distilbert", {"vocab_size": 96, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}),
    "roberta": ("roberta", {**_BERT, "type_vocab_size": 1, "pad_token_id": 1}),
    "electra": ("electra", {**_BERT, "embedding_size": 16}),
    "albert": ("albert", {**_BERT, "embedding_size": 16}),
    "deberta-v2": (
        "deberta-v2",
        {**_DEBERTA, "position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm", "conv_act": "gelu",
         "position_biased_input": False, "conv_kernel_size": 3},
    ),
    "mpnet": ("mpnet", _BERT),
    "modernbert": ("modernbert", _BERT),
}  # fmt: skip
DECODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama-tied": ("llama", {**GATED, "tie_word_embeddings": True}),
    "gpt2": ("gpt2", GPT2),
}
SEQ2SEQ: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("t5", _T5),
    "t5-gated": ("t5", {**_T5, "feed_forward_proj": "gated-gelu", "num_decoder_layers": 3}),
    "bart": ("bart", _BART),
}  # fmt: skip

# Two heads of BERT, and one of every other; and answers marked in a text.
CASES: tuple[tuple[str, Head], ...] = (
    ("bert", "token_classification"),
    *(
        (name, ("sequence_classification", "token_classification")[place % 2])
        for place, name in enumerate((*ENCODERS, *DECODERS))
    ),
    *((name, "question_answering") for name in ("distilbert", "gpt2")),
    *((name, "seq2seq_lm") for name in SEQ2SEQ),
)


def labels_of(head: Head) -> int:
    return {"seq2seq_lm": 0, "question_answering": 2}.get(head, LABELS)


@cache
def headed(variant: str, head: Head) -> Tiny:
    """Shared by all tests of a session: nobody changes it."""
    import torch
    from transformers import AutoConfig

    model_type, fields = (ENCODERS | DECODERS | SEQ2SEQ)[variant]
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}
    config = AutoConfig.for_model(model_type, **{**special, **fields}, num_labels=labels_of(head) or LABELS)
    torch.manual_seed(0)
    model = auto_class(head).from_config(config)
    content = json.loads(config.to_json_string())
    return Tiny(model, content | {"architectures": [type(model).__name__], "model_type": model_type})
