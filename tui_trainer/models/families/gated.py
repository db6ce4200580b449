"""The architectures with a gated MLP, layer by layer: from the fields of config.json to counted parts.

Source: the modeling and configuration files of transformers 5.23, one by one; tests build a tiny model of every family
and compare names, sizes and counts with it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.models.config_fields import ConfigFields
from tui_trainer.models.families.architecture_spec import ArchitectureSpec, Sizes
from tui_trainer.models.families.layers import Part, embedding, layer_norm, linear, rms_norm


@dataclass(frozen=True, kw_only=True, slots=True)
class _LlamaLike:
    """The families with q, k, v, o and a gated MLP. `head_dim` is their default; None: hidden / heads."""

    head_dim: int | None = None
    key_value_heads: int | None = None
    qkv_bias: bool | str = "attention_bias"
    out_bias: bool | str = "attention_bias"
    mlp_bias: bool | str = False
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    query_norms: str = ""
    tied: bool = False
    norm: Callable[..., Part] = rms_norm

    def __call__(self, fields: ConfigFields) -> ArchitectureSpec:
        sizes = Sizes.of(fields)
        head_size = fields.number("head_dim", self.head_dim or sizes.head_size)
        kv_heads = fields.number("num_key_value_heads", self.key_value_heads or sizes.heads)
        bias, out_bias, mlp_bias = (_flag(fields, told) for told in (self.qkv_bias, self.out_bias, self.mlp_bias))
        hidden, layers, mlp = sizes.hidden, sizes.layers, sizes.mlp
        linears = (
            *sizes.attention(head_size, kv_heads, bias, out_bias=out_bias),
            linear("mlp.gate_proj", hidden, mlp, layers, mlp_bias),
            linear("mlp.up_proj", hidden, mlp, layers, mlp_bias),
            linear("mlp.down_proj", mlp, hidden, layers, mlp_bias),
            sizes.head(),
        )
        parts, tied = self._parts(sizes, head_size, kv_heads), sizes.tied(self.tied)
        return sizes.spec(linears, parts, key_value_heads=kv_heads, head_size=head_size, gated_mlp=True, tied=tied)

    def _parts(self, sizes: Sizes, head_size: int, kv_heads: int) -> tuple[Part, ...]:
        # One norm for each head (Qwen3, Gemma 3), or one over all heads at once (OLMo 2).
        widths = {"head": (head_size, head_size), "all": (sizes.heads * head_size, kv_heads * head_size)}
        query_norms = zip(("q_norm", "k_norm"), widths.get(self.query_norms, ()), strict=False)
        return (
            embedding("model.embed_tokens", sizes.vocabulary, sizes.hidden),
            *(self.norm(name, sizes.hidden, sizes.layers) for name in self.norms),
            *(rms_norm(f"self_attn.{name}", width, sizes.layers) for name, width in query_norms),
            self.norm("model.norm", sizes.hidden),
        )


def _flag(fields: ConfigFields, source: bool | str) -> bool:
    """A constant of the family, or the field of that name."""
    return fields.flag(source, False) if isinstance(source, str) else source


def _stablelm(fields: ConfigFields) -> ArchitectureSpec:
    parallel = fields.flag("use_parallel_residual", False)
    norms = ("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm")
    body = _LlamaLike(qkv_bias="use_qkv_bias", out_bias=False, norms=norms, norm=layer_norm)(fields)
    if not fields.flag("qk_layernorm", False):
        return body
    sizes = Sizes.of(fields)
    head_norms = (
        rms_norm("self_attn.q_layernorm", sizes.heads * body.head_size, sizes.layers),
        rms_norm("self_attn.k_layernorm", body.key_value_heads * body.head_size, sizes.layers),
    )
    return replace(body, parts=(*body.parts, *head_norms))


def _phi3(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers = sizes.hidden, sizes.layers
    head_size = fields.number("head_dim", sizes.head_size)
    kv_heads, mlp = fields.number("num_key_value_heads", sizes.heads), sizes.mlp
    queries = sizes.heads * head_size
    linears = (
        linear("self_attn.qkv_proj", hidden, queries + 2 * kv_heads * head_size, layers),
        linear("self_attn.o_proj", queries, hidden, layers),
        linear("mlp.gate_up_proj", hidden, 2 * mlp, layers),
        linear("mlp.down_proj", mlp, hidden, layers),
        sizes.head(),
    )
    parts = (
        embedding("model.embed_tokens", sizes.vocabulary, hidden),
        rms_norm("input_layernorm", hidden, layers),
        rms_norm("post_attention_layernorm", hidden, layers),
        rms_norm("model.norm", hidden),
    )
    tied = sizes.tied(False)
    return sizes.spec(linears, parts, key_value_heads=kv_heads, head_size=head_size, gated_mlp=True, tied=tied)


_GEMMA_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
)

GATED_FAMILIES: dict[str, Callable[[ConfigFields], ArchitectureSpec]] = {
    "llama": _LlamaLike(mlp_bias="mlp_bias"),
    "mistral": _LlamaLike(qkv_bias=False, out_bias=False, key_value_heads=8),
    "qwen2": _LlamaLike(qkv_bias=True, out_bias=False),
    "qwen3": _LlamaLike(head_dim=128, query_norms="head"),
    "gemma": _LlamaLike(head_dim=256, tied=True),
    "gemma2": _LlamaLike(head_dim=256, key_value_heads=4, norms=_GEMMA_NORMS, tied=True),
    "gemma3_text": _LlamaLike(head_dim=256, key_value_heads=4, norms=_GEMMA_NORMS, query_norms="head", tied=True),
    "olmo2": _LlamaLike(norms=("post_attention_layernorm", "post_feedforward_layernorm"), query_norms="all"),
    "granite": _LlamaLike(mlp_bias="mlp_bias"),
    "stablelm": _stablelm,
    "phi3": _phi3,
}
