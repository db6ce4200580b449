"""`[model.scratch]` in the words of a config.json, for each head."""

from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import Problem
from tui_trainer.models.heads import CLASSIFYING, Head

# Source: BertConfig of transformers: positions where no length is asked for, and kinds of segments.
_POSITIONS, _SEGMENTS = 512, 2
# An MLP without a gate is so many times as wide as the model. Source: Vaswani et al., arXiv:1706.03762, section 3.3.
_PLAIN_MLP = 4


def scratch_config(
    scratch: ScratchSection, vocabulary: int, head: Head = "causal_lm", *, max_length: int = _POSITIONS, labels: int = 2
) -> dict[str, Any]:
    """A decoder of Llama's form, an encoder of BERT's with `max_length` learned positions for the two classifications,
    or an encoder with a decoder of T5's (version 1.1, with its head tied). Nothing is dropped but as
    `attention_dropout` says; T5 has one rate for all of its dropout."""
    if head in CLASSIFYING:
        return _bert(scratch, vocabulary, max_length, labels)
    return _t5(scratch, vocabulary) if head == "seq2seq_lm" else _llama(scratch, vocabulary)


def scratch_problems(scratch: ScratchSection, head: Head) -> list[Problem]:
    """Settings of `[model.scratch]` that a model with this head has no place for."""
    key = "model.scratch.num_key_value_heads"
    if head == "causal_lm" or scratch.key_value_heads == scratch.num_attention_heads:
        return []
    kind = "BERT" if head in CLASSIFYING else "T5"
    message = f"a model of {kind}'s form has as many heads of keys as of queries"
    return [Problem(message=message, key=key, hint='set it to "auto"')]


def _llama(scratch: ScratchSection, vocabulary: int) -> dict[str, Any]:
    """Head and embedding tied, no biases."""
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


def _bert(scratch: ScratchSection, vocabulary: int, max_length: int, labels: int) -> dict[str, Any]:
    mlp = _PLAIN_MLP * scratch.hidden_size if scratch.intermediate_size == "auto" else scratch.intermediate_size
    return {
        "model_type": "bert",
        "hidden_size": scratch.hidden_size,
        "num_hidden_layers": scratch.num_hidden_layers,
        "num_attention_heads": scratch.num_attention_heads,
        "intermediate_size": mlp,
        "attention_probs_dropout_prob": scratch.attention_dropout,
        "hidden_dropout_prob": 0.0,
        "max_position_embeddings": max_length,
        "type_vocab_size": _SEGMENTS,
        "vocab_size": vocabulary,
        "num_labels": labels,
    }


def _t5(scratch: ScratchSection, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": "t5",
        "d_model": scratch.hidden_size,
        "d_kv": max(scratch.hidden_size // scratch.num_attention_heads, 1),
        "d_ff": scratch.mlp_size,
        "num_layers": scratch.num_hidden_layers,
        "num_decoder_layers": scratch.num_hidden_layers,
        "num_heads": scratch.num_attention_heads,
        "feed_forward_proj": "gated-gelu",
        "dropout_rate": scratch.attention_dropout,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
    }
