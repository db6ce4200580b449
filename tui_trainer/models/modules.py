"""The modules of a model by kind (linear layers, other parts with weights), its attention, and its logits."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

Reads = Literal["source", "target", "row"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One kind of linear layer of a model, with the name of its modules: `q_proj` [inputs x outputs], `count` times.

    `path` is its place in a block, `self_attn.q_proj`, or in the model if it is not in a block; it distinguishes
    GPT-2's two kinds of `c_proj`. `is_head`: it belongs to the head of the task, which LoRA trains as a whole; the
    matrix that computes the logits is the last one. `uses` is the number of uses of each in a forward pass (ALBERT
    reuses its layers). `reads` is its input: all input tokens, a decoder's target tokens, or one vector per row."""

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
        """Number of weights of all `count` matrices, without biases."""
        return self.inputs * self.outputs * self.count

    @property
    def parameters(self) -> int:
        """Number of weights of all `count` layers, with biases."""
        return self.matrix_parameters + (self.outputs * self.count if self.has_bias else 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelPart:
    """One kind of module with weights that is no linear layer: an embedding or a norm. `rows` is the number of rows of
    an embedding, 0 if it is not one or unknown. `is_head`: it belongs to the head of the task."""

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


def path_in_block(name: str) -> str:
    """Return the path inside of a block, `mlp.up_proj` for `model.layers.7.mlp.up_proj`; other names unchanged."""
    path_parts = name.split(".")
    block_index = next((index for index, word in enumerate(path_parts) if word.isdigit()), None)
    return name if block_index is None else ".".join(path_parts[block_index + 1 :])


# Facts that decide which kernel can compute the attention of a model, from the built model or one of its passes.

# attn_logit_softcapping of Gemma models, softcap and attention_logit_cap of others.
_SOFT_CAP = re.compile(r"soft_?cap|logit_cap")


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionFacts:
    """Facts about the attention of a model. `head_size` and `value_size` are the largest of all layers, or 0."""

    head_size: int = 0
    value_size: int = 0
    has_sdpa: bool = True
    """Whether torch's `scaled_dot_product_attention` computes it."""
    soft_cap: float = 0.0
    """Soft cap of the scores, which become `soft_cap * tanh(scores / soft_cap)`; 0 for none."""
    learnt_bias: bool = False
    """Whether a trained bias is added to the scores (T5's relative positions)."""
    window: int = 0
    """Smallest attention window of all layers, in tokens; 0 for no window."""
    is_chunked: bool = False
    waiting_rope: str = ""
    """Type of a RoPE that reads the length of each row (`dynamic_rope_update` in modeling_rope_utils.py), or ""."""


UNKNOWN_ATTENTION = AttentionFacts()


def soft_cap_of(model: Any) -> float:
    """Return the soft cap of the attention scores of a built model, 0 without one."""
    for module in model.modules():
        if "attention" in type(module).__name__.lower():
            for name, value in vars(module).items():
                if _SOFT_CAP.search(name) and isinstance(value, int | float) and value:
                    return float(value)
    return 0.0


def attention_facts(model: Any, calls: list[dict[str, Any]], head_size: int, *, is_finished: bool) -> dict[str, Any]:
    """Return fields of `AttentionFacts`, from the `calls` of a pass in `recorded_calls`, and whether it finished."""
    config = model.config
    layer_types = getattr(config, "layer_types", None) or ()
    attentions = [module for module in model.modules() if "attention" in type(module).__name__.lower()]
    # Families with windows in some layers store them in the modules, others only in the config.
    window_sizes = [getattr(module, "sliding_window", None) for module in attentions]
    if not layer_types or "sliding_attention" in layer_types:
        window_sizes.append(getattr(config, "sliding_window", None))
    rope_type_fields = [getattr(module, "rope_type", "") for module in model.modules()]
    rope_types = [kind for rope in rope_type_fields for kind in (rope.values() if isinstance(rope, dict) else [rope])]
    attention_calls = calls or [{"head_size": head_size, "value_size": head_size, "learnt_bias": False}]
    return {
        "head_size": max(call["head_size"] for call in attention_calls),
        "value_size": max(call["value_size"] for call in attention_calls),
        "has_sdpa": bool(calls) or (not is_finished and config._attn_implementation == "sdpa"),
        "soft_cap": soft_cap_of(model),
        "learnt_bias": any(call["learnt_bias"] for call in attention_calls),
        "window": min((window for window in window_sizes if isinstance(window, int)), default=0),
        "is_chunked": "chunked_attention" in layer_types,
        "waiting_rope": next((str(kind) for kind in rope_types if kind == "longrope" or "dynamic" in str(kind)), ""),
    }


@contextmanager
def recorded_calls() -> Iterator[list[dict[str, Any]]]:
    """Record the arguments of torch's attention for `attention_facts`."""
    from unittest.mock import patch

    from torch.nn import functional

    calls: list[dict[str, Any]] = []
    torch_attention = functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, attn_mask: Any = None, *arguments: Any, **options: Any) -> Any:
        has_bias = attn_mask is not None and bool(attn_mask.requires_grad)
        calls.append({"head_size": query.shape[-1], "value_size": value.shape[-1], "learnt_bias": has_bias})
        return torch_attention(query, key, value, attn_mask, *arguments, **options)

    with patch.object(functional, "scaled_dot_product_attention", record):
        yield calls


# Some models apply a scale or a soft cap to the product of hidden states and head before it is called logits. The plan
# and the loss both use `logit_transform`, so a plan expects logits in chunks exactly if the loss computes them so.

# With more labels than this, logits in chunks save memory at little cost in time, because the matmul still has enough
# rows to keep a large GPU busy.
FEW_LABELS = 2048


def uses_chunks(labels: int, chunk_tokens: int) -> bool:
    """Return whether logits of `labels` labels are computed in chunks of at most `chunk_tokens` tokens (0: never)."""
    return chunk_tokens > 0 and labels >= min(chunk_tokens, FEW_LABELS)


@dataclass(frozen=True, kw_only=True, slots=True)
class LogitTransform:
    """The step from the head's product, bias included, to logits: scale, then soft_cap x tanh(logits / soft_cap)."""

    scale: float = 1.0
    soft_cap: float | None = None


# A field of config.json, its default, and the operation on the product.
_Rule = tuple[str, float | None, Literal["multiply", "divide", "cap"]]
_CAP: _Rule = ("final_logit_softcapping", 30.0, "cap")
_CAP_IF_SET: _Rule = ("final_logit_softcapping", None, "cap")
_COHERE: _Rule = ("logit_scale", 0.0625, "multiply")
_GRANITE: _Rule = ("logits_scaling", 1.0, "divide")
# Source: the forward pass and the defaults of every causal and sequence-to-sequence model of transformers 5.23. Other
# models end with the head, whatever their fields: MPT never reads its logit_scale, and MiniCPM3 divides the hidden
# states by its logits_scaling before the head.
_RULES: dict[str, _Rule] = {
    **dict.fromkeys("beam gemma2 gemma3n_text vaultgemma".split(), _CAP),
    **dict.fromkeys("gemma3_text gemma4_text gemma4_unified_text".split(), _CAP_IF_SET),
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
# Models that use a part of the vocabulary or clusters of it, predict several tokens at once, or have the fields of
# their decoder in a nested config.
_UNSUPPORTED = frozenset(
    """encoder-decoder gemma4_assistant gemma4_unified_assistant inkling_text inkling2_text musicgen musicgen_melody
    prophetnet t5gemma t5gemma2""".split()
)


def logit_transform(config: Mapping[str, Any]) -> LogitTransform | None:
    """Return how a model computes logits from the head's product, or None if not by a scale and a soft cap.

    Logits in chunks rely on this. A model that no table lists is assumed to end with its head; the start of a run
    checks that (`training/components.py`)."""
    model_type = str(config.get("model_type") or "")
    if model_type in _UNSUPPORTED:
        return None
    if model_type not in _RULES:
        return LogitTransform()
    field, default, operation = _RULES[model_type]
    factor = config.get(field, default)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not factor:
        return LogitTransform()
    if operation == "cap":
        return LogitTransform(soft_cap=float(factor))
    return LogitTransform(scale=float(factor) if operation == "multiply" else 1 / factor)
