"""`[model.scratch]` in the words of a config.json, for each head."""

from typing import Any

from tui_trainer.config.sections import ScratchSection
from tui_trainer.errors import Problem
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, ENCODER_DECODER, Head

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
    message = f"a model of {kind}'s form has as many heads of keys as of queries"
    return [Problem(message=message, key=key, hint='set it to "auto"')]
