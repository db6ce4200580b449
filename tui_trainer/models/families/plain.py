"""The architectures whose MLP has no gate, as in `gated_families` and from the same source."""

from collections.abc import Callable

from tui_trainer.models.config_fields import ConfigFields
from tui_trainer.models.families.architecture_spec import ArchitectureSpec, Sizes
from tui_trainer.models.families.layers import Linear, Part, embedding, layer_norm, linear

# OPT keeps two rows before the first position. Source: OPTLearnedPositionalEmbedding in modeling_opt.py.
_OPT_POSITION_OFFSET = 2


def _gpt2(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers = sizes.hidden, sizes.layers
    mlp = fields.number("intermediate_size", 4 * hidden)
    linears = (
        linear("attn.c_attn", hidden, 3 * hidden, layers, True),
        linear("attn.c_proj", hidden, hidden, layers, True),
        linear("mlp.c_fc", hidden, mlp, layers, True),
        linear("mlp.c_proj", mlp, hidden, layers, True),
        sizes.head(),
    )
    parts = (
        embedding("transformer.wte", sizes.vocabulary, hidden),
        embedding("transformer.wpe", fields.number("max_position_embeddings", 1024), hidden),
        layer_norm("ln_1", hidden, layers),
        layer_norm("ln_2", hidden, layers),
        layer_norm("transformer.ln_f", hidden),
    )
    return sizes.spec(linears, parts, mlp_size=mlp, tied=sizes.tied(True), learned_positions=True)


def _opt(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers, mlp = sizes.hidden, sizes.layers, sizes.mlp
    word = fields.number("word_embed_proj_dim", hidden)
    bias = fields.flag("enable_bias", True)
    attention = (f"self_attn.{name}" for name in ("k_proj", "v_proj", "q_proj", "out_proj"))
    projections = (
        linear("decoder.project_out", hidden, word, 1),
        linear("decoder.project_in", word, hidden, 1),
    )
    linears = (
        *(projections if word != hidden else ()),
        *(linear(path, hidden, hidden, layers, bias) for path in attention),
        linear("fc1", hidden, mlp, layers, bias),
        linear("fc2", mlp, hidden, layers, bias),
        linear("lm_head", word, sizes.vocabulary, 1, is_head=True),
    )
    positions = fields.number("max_position_embeddings", 2048) + _OPT_POSITION_OFFSET
    parts = (
        embedding("decoder.embed_tokens", sizes.vocabulary, word),
        embedding("decoder.embed_positions", positions, hidden),
        *_opt_norms(sizes),
    )
    return sizes.spec(linears, parts, mlp_size=mlp, tied=sizes.tied(True), learned_positions=True)


def _opt_norms(sizes: Sizes) -> tuple[Part, ...]:
    fields = sizes.fields
    if not fields.flag("layer_norm_elementwise_affine", True):
        return ()
    norms = (
        layer_norm("self_attn_layer_norm", sizes.hidden, sizes.layers),
        layer_norm("final_layer_norm", sizes.hidden, sizes.layers),
    )
    has_last = fields.flag("do_layer_norm_before", True) and not fields.flag("_remove_final_layer_norm", False)
    return (*norms, layer_norm("decoder.final_layer_norm", sizes.hidden)) if has_last else norms


def _gpt_neox(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers, mlp = sizes.hidden, sizes.layers, sizes.mlp
    bias = fields.flag("attention_bias", True)
    parts = (
        embedding("gpt_neox.embed_in", sizes.vocabulary, hidden),
        layer_norm("input_layernorm", hidden, layers),
        layer_norm("post_attention_layernorm", hidden, layers),
        layer_norm("gpt_neox.final_layer_norm", hidden),
    )
    linears = (*_fused("attention", sizes, 3 * hidden, bias), *_dense_mlp(sizes, mlp, True), sizes.head())
    return sizes.spec(linears, parts, tied=sizes.tied(False))


def _bloom(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers = sizes.hidden, sizes.layers
    parts = (
        embedding("transformer.word_embeddings", sizes.vocabulary, hidden),
        layer_norm("transformer.word_embeddings_layernorm", hidden),
        layer_norm("input_layernorm", hidden, layers),
        layer_norm("post_attention_layernorm", hidden, layers),
        layer_norm("transformer.ln_f", hidden),
    )
    linears = (
        *_fused("self_attention", sizes, 3 * hidden, True),
        *_dense_mlp(sizes, 4 * hidden, True),
        sizes.head(),
    )
    return sizes.spec(linears, parts, mlp_size=4 * hidden, tied=sizes.tied(True))


def _falcon(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, heads = sizes.hidden, sizes.heads
    mlp = fields.number("intermediate_size", 4 * hidden)
    bias = fields.flag("bias", False)
    is_new, one_key = fields.flag("new_decoder_architecture", False), fields.flag("multi_query", True)
    kv_heads = fields.number("num_key_value_heads", heads) if is_new else (1 if one_key else heads)
    # The oldest form without shared keys is as wide as three times the hidden size, the others as their heads.
    fused = (heads + 2 * kv_heads) * sizes.head_size if is_new or one_key else 3 * hidden
    parts = (
        embedding("transformer.word_embeddings", sizes.vocabulary, hidden),
        *(layer_norm(name, hidden, sizes.layers) for name in _falcon_norms(fields, is_new)),
        layer_norm("transformer.ln_f", hidden),
    )
    linears = (*_fused("self_attention", sizes, fused, bias), *_dense_mlp(sizes, mlp, bias), sizes.head())
    return sizes.spec(linears, parts, mlp_size=mlp, tied=sizes.tied(True), key_value_heads=kv_heads)


def _falcon_norms(fields: ConfigFields, is_new: bool) -> tuple[str, ...]:
    if not fields.flag("parallel_attn", True):
        return ("input_layernorm", "post_attention_layernorm")
    both = fields.optional("num_ln_in_parallel_attn") or (2 if is_new else 1)
    return ("ln_attn", "ln_mlp") if both == 2 else ("input_layernorm",)


def _phi(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers, mlp = sizes.hidden, sizes.layers, sizes.mlp
    head_size = fields.number("head_dim", sizes.head_size)
    kv_heads = fields.number("num_key_value_heads", sizes.heads)
    linears = (
        *sizes.attention(head_size, kv_heads, True, out="dense", out_bias=True),
        linear("mlp.fc1", hidden, mlp, layers, True),
        linear("mlp.fc2", mlp, hidden, layers, True),
        sizes.head(bias=True),
    )
    norms = ("self_attn.q_layernorm", "self_attn.k_layernorm") if fields.flag("qk_layernorm", False) else ()
    parts = (
        embedding("model.embed_tokens", sizes.vocabulary, hidden),
        layer_norm("input_layernorm", hidden, layers),
        *(layer_norm(path, sizes.head_size, layers) for path in norms),
        layer_norm("model.final_layernorm", hidden),
    )
    return sizes.spec(linears, parts, tied=sizes.tied(False), key_value_heads=kv_heads, head_size=head_size)


def _starcoder2(fields: ConfigFields) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, layers, mlp = sizes.hidden, sizes.layers, sizes.mlp
    head_size = fields.number("head_dim", sizes.head_size)
    kv_heads = fields.number("num_key_value_heads", 2)
    bias = fields.flag("use_bias", True)
    linears = (
        *sizes.attention(head_size, kv_heads, bias, out_bias=bias),
        linear("mlp.c_fc", hidden, mlp, layers, bias),
        linear("mlp.c_proj", mlp, hidden, layers, bias),
        sizes.head(),
    )
    parts = (
        embedding("model.embed_tokens", sizes.vocabulary, hidden),
        layer_norm("input_layernorm", hidden, layers),
        layer_norm("post_attention_layernorm", hidden, layers),
        layer_norm("model.norm", hidden),
    )
    return sizes.spec(linears, parts, tied=sizes.tied(True), key_value_heads=kv_heads, head_size=head_size)


def _fused(block: str, sizes: Sizes, outputs: int, bias: bool) -> tuple[Linear, ...]:
    """Queries, keys and values in one matrix, and the one after them."""
    return (
        linear(f"{block}.query_key_value", sizes.hidden, outputs, sizes.layers, bias),
        linear(f"{block}.dense", sizes.hidden, sizes.hidden, sizes.layers, bias),
    )


def _dense_mlp(sizes: Sizes, mlp: int, bias: bool) -> tuple[Linear, ...]:
    return (
        linear("mlp.dense_h_to_4h", sizes.hidden, mlp, sizes.layers, bias),
        linear("mlp.dense_4h_to_h", mlp, sizes.hidden, sizes.layers, bias),
    )


PLAIN_FAMILIES: dict[str, Callable[[ConfigFields], ArchitectureSpec]] = {
    "gpt2": _gpt2,
    "opt": _opt,
    "gpt_neox": _gpt_neox,
    "bloom": _bloom,
    "falcon": _falcon,
    "phi": _phi,
    "starcoder2": _starcoder2,
}
