"""What a model makes of the product of hidden states and head before it calls it logits: a scale, a soft cap.

The plan reads it from config.json, the loss from the loaded model's config: both ask `logit_transform`, so a plan
counts on logits in chunks exactly where the loss computes them in chunks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# From so many labels on their logits take more memory all at once than time in chunks: so many rows of a matmul keep a
# large GPU busy.
FEW_LABELS = 2048


def in_chunks(labels: int, chunk_tokens: int) -> bool:
    """Whether the logits of so many labels are computed in chunks of `chunk_tokens`, or in one that is smaller. 0: in
    none."""
    return chunk_tokens > 0 and labels >= min(chunk_tokens, FEW_LABELS)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitTransform:
    """logits = scale x product, then soft_cap x tanh(logits / soft_cap) where there is a cap. A bias is part of the
    product."""

    scale: float = 1.0
    soft_cap: float | None = None


# The field of config.json that decides, its value where config.json is silent, and what is done with it.
_Rule = tuple[str, float | None, Literal["multiply", "divide", "cap"]]
_CAP: _Rule = ("final_logit_softcapping", 30.0, "cap")
_CAP_IF_SAID: _Rule = ("final_logit_softcapping", None, "cap")
_COHERE: _Rule = ("logit_scale", 0.0625, "multiply")
_GRANITE: _Rule = ("logits_scaling", 1.0, "divide")
# Source: the forward pass of every causal and sequence-to-sequence model of transformers 5.23, and the defaults of its
# configuration. All others end with the head. A field of this kind means nothing elsewhere: MPT has a logit_scale that
# nobody reads, and MiniCPM3 divides the hidden states by its logits_scaling, before the head.
_RULES: dict[str, _Rule] = {
    **dict.fromkeys("beam gemma2 gemma3n_text vaultgemma".split(), _CAP),
    **dict.fromkeys("gemma3_text gemma4_text gemma4_unified_text".split(), _CAP_IF_SAID),
    "nanochat": ("final_logit_softcapping", 15.0, "cap"),
    "recurrent_gemma": ("logits_soft_cap", 30.0, "cap"),
    "xlstm": ("output_logit_soft_cap", 30.0, "cap"),
    **dict.fromkeys("cohere cohere2 cohere2_moe".split(), _COHERE),
    "cohere_compass_text": ("logit_scale", None, "multiply"),
    "falcon_h1": ("lm_head_multiplier", 1.0, "multiply"),
    "hyperclovax": ("logits_scaling", 1.0, "multiply"),
    **dict.fromkeys(
        "granite granite_swa granitemoe granitemoe_swa granitemoehybrid granitemoeshared".split(), _GRANITE
    ),
}
# Models that leave out some of the vocabulary, choose among clusters of it, predict several tokens at once, or have
# the fields of their decoder inside of another config.
_OTHERWISE = frozenset(
    """encoder-decoder gemma4_assistant gemma4_unified_assistant inkling_text inkling2_text musicgen musicgen_melody
    prophetnet t5gemma t5gemma2""".split()
)


def logit_transform(config: Mapping[str, Any]) -> LogitTransform | None:
    """How the model of a config makes logits of its head's product; None: otherwise than by scale and soft cap.

    Logits in chunks are computed by this. A model that no table knows is taken to end with its head; the start of a run
    compares (`training/components.py`).
    """
    model_type = str(config.get("model_type") or "")
    if model_type in _OTHERWISE:
        return None
    if model_type not in _RULES:
        return LogitTransform()
    field, default, does = _RULES[model_type]
    value = config.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value:
        return LogitTransform()
    if does == "cap":
        return LogitTransform(soft_cap=float(value))
    return LogitTransform(scale=float(value) if does == "multiply" else 1 / value)
