"""The encoders with a decoder, part by part, as in `gated_families` and from the same source."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.models.config_fields import ConfigFields
from tui_trainer.models.families.architecture_spec import ArchitectureSpec, Sizes
from tui_trainer.models.families.encoder_spec import bart_form, t5_form
from tui_trainer.models.families.layers import Linear, Part, embedding, layer_norm, linear, rms_norm

# Rows before the first position. Source: BartLearnedPositionalEmbedding in modeling_bart.py; mBART has it too.
_BART_POSITION_OFFSET = 2


def _t5(fields: ConfigFields) -> ArchitectureSpec:
    """T5 and mT5. Distances between tokens have a table of their own in each half.

    transformers ties the head whatever config.json says, unless the files hold another one: that of version 1.1, whose
    config.json on the hub says so.
    """
    sizes = Sizes.of(fields)
    hidden, heads, mlp = sizes.hidden, sizes.heads, sizes.mlp
    head_size = fields.number("d_kv", sizes.head_size)
    encoder, decoder = sizes.layers, fields.number("num_decoder_layers", sizes.layers)
    gated = str(fields.values.get("feed_forward_proj") or "relu").startswith("gated")
    linears = (
        *_t5_attention("layer.0.SelfAttention", hidden, heads * head_size, encoder),
        *_t5_mlp("layer.1.DenseReluDense", hidden, mlp, encoder, gated),
        *_of_target(_t5_attention("layer.0.SelfAttention", hidden, heads * head_size, decoder)),
        *_across(_t5_attention("layer.1.EncDecAttention", hidden, heads * head_size, decoder)),
        *_of_target(_t5_mlp("layer.2.DenseReluDense", hidden, mlp, decoder, gated)),
        replace(sizes.head(), reads="target"),
    )
    distances = fields.number("relative_attention_num_buckets", 32)
    parts = (
        embedding("shared", sizes.vocabulary, hidden),
        replace(embedding("SelfAttention.relative_attention_bias", distances, heads), count=2),
        rms_norm("layer_norm", hidden, 2 * encoder + 3 * decoder),
        rms_norm("final_layer_norm", hidden, 2),
    )
    return sizes.spec(
        linears,
        parts,
        head_size=head_size,
        gated_mlp=gated,
        tied=sizes.tied(True),
        stored_blocks=max(encoder, decoder),
        decoder_layers=decoder,
        form=t5_form(fields),
    )


def _t5_attention(path: str, hidden: int, inner: int, count: int) -> tuple[Linear, ...]:
    return (
        *(linear(f"{path}.{name}", hidden, inner, count) for name in "qkv"),
        linear(f"{path}.o", inner, hidden, count),
    )


def _t5_mlp(path: str, hidden: int, mlp: int, count: int, gated: bool) -> tuple[Linear, ...]:
    ways = ("wi_0", "wi_1") if gated else ("wi",)
    return (
        *(linear(f"{path}.{name}", hidden, mlp, count) for name in ways),
        linear(f"{path}.wo", mlp, hidden, count),
    )


def _of_target(linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
    return tuple(replace(entry, reads="target") for entry in linears)


def _across(linears: tuple[Linear, ...]) -> tuple[Linear, ...]:
    """Attention from the target to the input: keys and values are made of the input."""
    of_input = ("k", "v", "k_proj", "v_proj")
    return tuple(entry if entry.name in of_input else replace(entry, reads="target") for entry in linears)


@dataclass(frozen=True, kw_only=True, slots=True)
class _BartLike:
    """BART, mBART and Pegasus: learned positions or computed ones, and norms at the beginning, at the end, or both."""

    offset: int = 0
    norms_first: bool = True
    norms_last: bool = True

    def __call__(self, fields: ConfigFields) -> ArchitectureSpec:
        sizes = Sizes.of(fields)
        hidden, encoder = sizes.hidden, sizes.layers
        decoder = fields.number("decoder_layers", encoder)
        mlp, decoder_mlp = sizes.mlp, fields.number("decoder_ffn_dim", 4 * hidden)
        linears = (
            *_bart_attention("self_attn", hidden, encoder),
            *_bart_mlp(hidden, mlp, encoder),
            *_of_target(_bart_attention("self_attn", hidden, decoder)),
            *_across(_bart_attention("encoder_attn", hidden, decoder)),
            *_of_target(_bart_mlp(hidden, decoder_mlp, decoder)),
            replace(sizes.head(), reads="target"),
        )
        return sizes.spec(
            linears,
            self._parts(sizes, decoder),
            tied=sizes.tied(True),
            learned_positions=True,
            stored_blocks=max(encoder, decoder),
            decoder_layers=decoder,
            form=bart_form(fields),
        )

    def _parts(self, sizes: Sizes, decoder: int) -> tuple[Part, ...]:
        hidden, both = sizes.hidden, sizes.layers + decoder
        rows = sizes.fields.number("max_position_embeddings", 1024) + self.offset
        positions = replace(embedding("embed_positions", rows, hidden), count=2)
        return (
            embedding("shared", sizes.vocabulary, hidden),
            # Pegasus computes its table, and its files need not hold it.
            positions if self.offset else replace(positions, rows=0),
            *((layer_norm("layernorm_embedding", hidden, 2),) if self.norms_first else ()),
            layer_norm("self_attn_layer_norm", hidden, both),
            layer_norm("encoder_attn_layer_norm", hidden, decoder),
            layer_norm("final_layer_norm", hidden, both),
            *((layer_norm("layer_norm", hidden, 2),) if self.norms_last else ()),
        )


def _bart_attention(path: str, hidden: int, count: int) -> tuple[Linear, ...]:
    return tuple(
        linear(f"{path}.{name}", hidden, hidden, count, True) for name in ("k_proj", "v_proj", "q_proj", "out_proj")
    )


def _bart_mlp(hidden: int, mlp: int, count: int) -> tuple[Linear, ...]:
    return (linear("fc1", hidden, mlp, count, True), linear("fc2", mlp, hidden, count, True))


SEQ2SEQ_FAMILIES: dict[str, Callable[[ConfigFields], ArchitectureSpec]] = {
    "t5": _t5,
    "mt5": _t5,
    "bart": _BartLike(offset=_BART_POSITION_OFFSET, norms_last=False),
    "mbart": _BartLike(offset=_BART_POSITION_OFFSET),
    "pegasus": _BartLike(norms_first=False),
}
