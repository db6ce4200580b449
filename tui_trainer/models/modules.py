"""The parts that a model is made of, counted by kind: matmuls, and everything else that holds weights."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Reads = Literal["source", "target", "row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One kind of matmul of a model, as its modules name it: `q_proj` [inputs x outputs], `count` times.

    `path` is its place in a block, `self_attn.q_proj`, or in the model where there is one only; GPT-2 has two that
    are called `c_proj`. `is_head`: it belongs to what a task ends with, the matrix that makes logits last; LoRA trains
    it as a whole. `uses` is how often a pass goes through each (ALBERT's layers are one). `reads` says of what: all
    tokens of the input, those of the target behind an encoder, or one for each row (a classifier of texts).
    """

    name: str
    inputs: int
    outputs: int
    count: int
    is_head: bool = False
    path: str = ""
    has_bias: bool = False
    uses: int = 1
    reads: Reads = "source"

    @property
    def matrix_parameters(self) -> int:
        """The weights of all `count` matrices, without biases."""
        return self.inputs * self.outputs * self.count

    @property
    def parameters(self) -> int:
        """The weights of all `count` of them, with biases."""
        return self.matrix_parameters + (self.outputs * self.count if self.has_bias else 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """Modules with weights that are no matmul: embeddings and norms. `rows` are those of a table, 0
    where they are not known; `is_head` as of a `Linear`."""

    path: str
    parameters_each: int
    count: int = 1
    is_embedding: bool = False
    rows: int = 0
    is_head: bool = False

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def parameters(self) -> int:
        return self.parameters_each * self.count


def place_in_block(name: str) -> str:
    """`model.layers.7.mlp.up_proj` is `mlp.up_proj`, whatever the layer; a name without a number stays as it is."""
    words = name.split(".")
    first = next((at for at, word in enumerate(words) if word.isdigit()), None)
    return name if first is None else ".".join(words[first + 1 :])


# What of a model decides which kernel can compute its attention: read off the built model, or seen in a pass.

# attn_logit_softcapping of Gemma's families, softcap and attention_logit_cap of others; those of logits and gates are
# in other modules.
_SOFT_CAP = re.compile(r"soft_?cap|logit_cap")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionFacts:
    """`head_size` and `value_size` are the largest of all layers, in numbers; 0: not known."""

    head_size: int = 0
    value_size: int = 0
    has_sdpa: bool = True
    """Whether torch's `scaled_dot_product_attention` computes it."""
    soft_cap: float = 0.0
    """The scores become `soft_cap * tanh(scores / soft_cap)`; 0: they stay."""
    learnt_bias: bool = False
    """Whether something that trains is added to the scores (T5's distances)."""
    window: int = 0
    """Tokens that a layer looks back, the fewest of all layers; 0: all."""
    is_chunked: bool = False
    waiting_rope: str = ""
    """The type of a RoPE that asks how long the row is (`dynamic_rope_update` in modeling_rope_utils.py)."""


UNKNOWN = AttentionFacts()


def soft_cap_of(model: Any) -> float:
    """Of the scores of a built model; 0 where there is none."""
    for module in model.modules():
        if "attention" in type(module).__name__.lower():
            for name, value in vars(module).items():
                if _SOFT_CAP.search(name) and isinstance(value, int | float) and value:
                    return float(value)
    return 0.0


def facts_of(model: Any, calls: list[dict[str, Any]], head_size: int, *, whole: bool) -> dict[str, Any]:
    """Fields of `AttentionFacts`. `calls` are those of a pass within `recorded_calls`; `whole`: it went through."""
    config = model.config
    kinds_of_layers = getattr(config, "layer_types", None) or ()
    attentions = [module for module in model.modules() if "attention" in type(module).__name__.lower()]
    # Families with windows in some layers keep them in the modules, the others in the config alone.
    windows = [getattr(module, "sliding_window", None) for module in attentions]
    if not kinds_of_layers or "sliding_attention" in kinds_of_layers:
        windows.append(getattr(config, "sliding_window", None))
    ropes = [getattr(module, "rope_type", "") for module in model.modules()]
    kinds = [kind for rope in ropes for kind in (rope.values() if isinstance(rope, dict) else [rope])]
    own = [{"head_size": head_size, "value_size": head_size, "learnt_bias": False}]
    seen = calls or own
    return {
        "head_size": max(call["head_size"] for call in seen),
        "value_size": max(call["value_size"] for call in seen),
        "has_sdpa": bool(calls) or (not whole and config._attn_implementation == "sdpa"),
        "soft_cap": soft_cap_of(model),
        "learnt_bias": any(call["learnt_bias"] for call in seen),
        "window": min((window for window in windows if isinstance(window, int)), default=0),
        "is_chunked": "chunked_attention" in kinds_of_layers,
        "waiting_rope": next((str(kind) for kind in kinds if kind == "longrope" or "dynamic" in str(kind)), ""),
    }


@contextmanager
def recorded_calls() -> Iterator[list[dict[str, Any]]]:
    """What torch's attention is given meanwhile, for `facts_of`."""
    from unittest.mock import patch

    from torch.nn import functional

    found: list[dict[str, Any]] = []
    attend = functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **more: Any) -> Any:
        has_bias = attn_mask is not None and bool(attn_mask.requires_grad)
        found.append({"head_size": query.shape[-1], "value_size": value.shape[-1], "learnt_bias": has_bias})
        return attend(query, key, value, attn_mask, *rest, **more)

    with patch.object(functional, "scaled_dot_product_attention", record):
        yield found


# What a model makes of the product of hidden states and head before it calls it logits: a scale, a soft cap.
#
# The plan reads it from config.json, the loss from the loaded model's config: both ask `logit_transform`, so a plan
# counts on logits in chunks exactly where the loss computes them in chunks.

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
