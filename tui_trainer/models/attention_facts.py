"""What of a model decides which kernel can compute its attention: read off the built model, or seen in a pass."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

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
    from torch.nn import functional

    found: list[dict[str, Any]] = []
    attend = functional.scaled_dot_product_attention

    def record(query: Any, key: Any, value: Any, attn_mask: Any = None, *rest: Any, **more: Any) -> Any:
        has_bias = attn_mask is not None and bool(attn_mask.requires_grad)
        found.append({"head_size": query.shape[-1], "value_size": value.shape[-1], "learnt_bias": has_bias})
        return attend(query, key, value, attn_mask, *rest, **more)

    with patch.object(functional, "scaled_dot_product_attention", record):
        yield found
