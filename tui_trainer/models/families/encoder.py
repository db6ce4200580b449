"""The encoders and their classifiers, part by part, as in `gated_families` and from the same source."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.models.config_fields import ConfigFields
from tui_trainer.models.families.architecture_spec import ArchitectureSpec, Sizes
from tui_trainer.models.families.encoder_spec import bert_form, distilbert_form
from tui_trainer.models.families.layers import Linear, Part, embedding, layer_norm, linear, rms_norm
from tui_trainer.models.heads import Head

# Families whose answers more padding changes, though they are told of it: they mix positions without a mask (fnet),
# pool or convolve over them (funnel, canine, yoso), or read the last one (xlnet). Tiny models of each, 13 tokens alone
# and with 3 of padding: logits moved by 0.6 % of the largest (yoso) to more than all of it.
PADDING_COUNTS = frozenset({"xlnet", "fnet", "funnel", "canine", "yoso"})
# Decoders that classify look for the last token before the padding; this one does not, and its own tokenizer pads at
# the left.
READS_LAST_POSITION = frozenset({"xlnet"})
# MPNet's padding is 1 whatever its config says. Source: MPNetEmbeddings in modeling_mpnet.py.
_MPNET_PADDING = 1
_BERT_ATTENTION = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")


@dataclass(frozen=True, slots=True)
class Ending:
    """What a task puts on an encoder: one vector for each text, or for each token, and so many labels."""

    head: Head
    labels: int

    @property
    def is_of_texts(self) -> bool:
        return self.head == "sequence_classification"

    def linear(self, path: str, inputs: int, outputs: int | None = None, bias: bool = True) -> Linear:
        """A part of the head; without `outputs` the one that makes logits."""
        made = linear(path, inputs, self.labels if outputs is None else outputs, 1, bias, is_head=True)
        return replace(made, reads="row") if self.is_of_texts else made

    def classifier(self, hidden: int, before: str = "") -> tuple[Linear, ...]:
        """Logits from the hidden states; of texts with a square matrix before, where a family has one."""
        square = (self.linear(before, hidden, hidden),) if before and self.is_of_texts else ()
        return (*square, self.linear("classifier", hidden))

    def two_layers(self, hidden: int) -> tuple[Linear, ...]:
        """RoBERTa's form of a classifier of texts."""
        if not self.is_of_texts:
            return self.classifier(hidden)
        return (self.linear("classifier.dense", hidden, hidden), self.linear("classifier.out_proj", hidden))


Family = Callable[[ConfigFields, Ending], ArchitectureSpec]


def _bert(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    body = _layers(sizes, _BERT_ATTENTION, ("intermediate.dense", "output.dense"))
    linears = (*body, *ending.classifier(sizes.hidden, "pooler.dense"))
    return sizes.spec(linears, _bert_parts(sizes, sizes.hidden), learned_positions=True, form=bert_form(fields))


def _distilbert(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    attention = tuple(f"attention.{name}_lin" for name in ("q", "k", "v", "out"))
    parts = (
        *_tables(sizes, sizes.hidden, types=0),
        layer_norm("embeddings.LayerNorm", sizes.hidden),
        layer_norm("sa_layer_norm", sizes.hidden, sizes.layers),
        layer_norm("output_layer_norm", sizes.hidden, sizes.layers),
    )
    linears = (*_layers(sizes, attention, ("ffn.lin1", "ffn.lin2")), *ending.classifier(sizes.hidden, "pre_classifier"))
    return sizes.spec(linears, parts, learned_positions=True, form=distilbert_form(fields))


def _roberta(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    """Positions are counted from behind the padding's id: 514 rows are 512 positions."""
    sizes = Sizes.of(fields)
    body = _layers(sizes, _BERT_ATTENTION, ("intermediate.dense", "output.dense"))
    linears = (*body, *ending.two_layers(sizes.hidden))
    padding = fields.values.get("pad_token_id", 1)
    positions = _positions(fields, padding if type(padding) is int else 1)
    parts, form = _bert_parts(sizes, sizes.hidden), bert_form(fields)
    return sizes.spec(linears, parts, learned_positions=True, positions=positions, form=form)


def _electra(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    width = fields.number("embedding_size", 128)
    body = _layers(sizes, _BERT_ATTENTION, ("intermediate.dense", "output.dense"))
    project = (linear("embeddings_project", width, sizes.hidden, 1, True),) if width != sizes.hidden else ()
    linears = (*project, *body, *ending.two_layers(sizes.hidden))
    return sizes.spec(linears, _bert_parts(sizes, width), learned_positions=True, form=bert_form(fields))


def _albert(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    """All layers are one, or a few."""
    sizes = Sizes.of(fields)
    groups, inner = fields.number("num_hidden_groups", 1), fields.number("inner_group_num", 1)
    width, hidden, mlp = fields.number("embedding_size", 128), sizes.hidden, sizes.mlp
    attention = tuple(f"attention.{name}" for name in ("query", "key", "value", "dense"))
    shared = replace(sizes, layers=groups * inner)
    uses = max(sizes.layers // groups, 1)
    body = (replace(entry, uses=uses) for entry in _layers(shared, attention, ("ffn", "ffn_output"), mlp))
    linears = (
        linear("encoder.embedding_hidden_mapping_in", width, hidden, 1, True),
        *body,
        *ending.classifier(hidden, "pooler"),
    )
    parts = (
        *_tables(sizes, width, types=_types(fields)),
        layer_norm("embeddings.LayerNorm", width),
        layer_norm("attention.LayerNorm", hidden, groups * inner),
        layer_norm("full_layer_layer_norm", hidden, groups * inner),
    )
    return sizes.spec(linears, parts, learned_positions=True, stored_blocks=groups)


def _deberta_v2(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    hidden, width = sizes.hidden, fields.number("embedding_size", sizes.hidden)
    attention = tuple(f"attention.self.{name}_proj" for name in ("query", "key", "value"))
    body = _layers(sizes, (*attention, "attention.output.dense"), ("intermediate.dense", "output.dense"))
    project = (linear("embeddings.embed_proj", width, hidden, 1),) if width != hidden else ()
    linears = (*project, *body, *_own_positions(sizes), *ending.classifier(hidden, "pooler.dense"))
    # DeBERTa has no types unless its config says so, and adds positions to the input only where it says so.
    added = fields.flag("position_biased_input", True)
    tables = _tables(sizes, width, types=_types(fields, 0), positions=added)
    return sizes.spec(linears, (*tables, *_norms(sizes, hidden), *_relative_parts(sizes)), learned_positions=added)


def _own_positions(sizes: Sizes) -> tuple[Linear, ...]:
    """Matrices of relative positions, where they do not share those of queries and keys."""
    fields = sizes.fields
    told = fields.values.get("pos_att_type") or ()
    kinds = told.lower().split("|") if isinstance(told, str) else [str(kind).lower() for kind in told]
    if not fields.flag("relative_attention", False) or fields.flag("share_att_key", False):
        return ()
    names = {"c2p": "attention.self.pos_key_proj", "p2c": "attention.self.pos_query_proj"}
    return tuple(
        linear(path, sizes.hidden, sizes.hidden, sizes.layers, True) for kind, path in names.items() if kind in kinds
    )


def _relative_parts(sizes: Sizes) -> tuple[Part, ...]:
    """The table of relative positions, its norm, and a convolution beside the first layer."""
    fields, hidden = sizes.fields, sizes.hidden
    found: list[Part] = []
    if fields.flag("relative_attention", False):
        rows = _positive(fields, "position_buckets") or _positive(fields, "max_relative_positions")
        found.append(
            embedding("encoder.rel_embeddings", 2 * (rows or fields.number("max_position_embeddings")), hidden)
        )
    if "layer_norm" in str(fields.values.get("norm_rel_ebd", "none")).lower():
        found.append(layer_norm("encoder.LayerNorm", hidden))
    if kernel := _positive(fields, "conv_kernel_size"):
        groups = _positive(fields, "conv_groups") or 1
        found.append(Part(path="encoder.conv.conv", parameters_each=hidden * hidden // groups * kernel + hidden))
        found.append(layer_norm("encoder.conv.LayerNorm", hidden))
    return tuple(found)


def _positive(fields: ConfigFields, name: str) -> int:
    """0 where it is missing, or -1 as DeBERTa writes "none"."""
    value = fields.values.get(name)
    return value if type(value) is int and value > 0 else 0


def _mpnet(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    sizes = Sizes.of(fields)
    attention = tuple(f"attention.attn.{name}" for name in ("q", "k", "v", "o"))
    body = _layers(sizes, attention, ("intermediate.dense", "output.dense"))
    parts = (
        *_tables(sizes, sizes.hidden, types=0),
        layer_norm("embeddings.LayerNorm", sizes.hidden),
        layer_norm("attention.LayerNorm", sizes.hidden, sizes.layers),
        layer_norm("output.LayerNorm", sizes.hidden, sizes.layers),
        embedding("relative_attention_bias", fields.number("relative_attention_num_buckets", 32), sizes.heads),
    )
    linears, positions = (*body, *ending.two_layers(sizes.hidden)), _positions(fields, _MPNET_PADDING)
    return sizes.spec(linears, parts, learned_positions=True, positions=positions)


def _modernbert(fields: ConfigFields, ending: Ending) -> ArchitectureSpec:
    """Rotary positions and a gated MLP; the first layer has no norm before attention."""
    sizes = Sizes.of(fields)
    hidden, layers, mlp = sizes.hidden, sizes.layers, sizes.mlp
    norm = layer_norm if fields.flag("norm_bias", False) else rms_norm
    bias, mlp_bias = fields.flag("attention_bias", False), fields.flag("mlp_bias", False)
    linears = (
        linear("attn.Wqkv", hidden, 3 * hidden, layers, bias),
        linear("attn.Wo", hidden, hidden, layers, bias),
        linear("mlp.Wi", hidden, 2 * mlp, layers, mlp_bias),
        linear("mlp.Wo", mlp, hidden, layers, mlp_bias),
        ending.linear("head.dense", hidden, hidden, fields.flag("classifier_bias", False)),
        ending.linear("classifier", hidden),
    )
    parts = (
        embedding("embeddings.tok_embeddings", sizes.vocabulary, hidden),
        norm("embeddings.norm", hidden),
        norm("attn_norm", hidden, layers - 1),
        norm("mlp_norm", hidden, layers),
        norm("final_norm", hidden),
        replace(norm("head.norm", hidden), is_head=True),
    )
    return sizes.spec(linears, parts, gated_mlp=True)


def _layers(
    sizes: Sizes, attention: tuple[str, ...], mlp: tuple[str, str], width: int | None = None
) -> tuple[Linear, ...]:
    """Four square matrices, and two of the MLP; all with biases."""
    hidden, layers, wide = sizes.hidden, sizes.layers, width or sizes.mlp
    return (
        *(linear(path, hidden, hidden, layers, True) for path in attention),
        linear(mlp[0], hidden, wide, layers, True),
        linear(mlp[1], wide, hidden, layers, True),
    )


def _bert_parts(sizes: Sizes, width: int) -> tuple[Part, ...]:
    return (*_tables(sizes, width, types=_types(sizes.fields)), *_norms(sizes, width))


def _tables(sizes: Sizes, width: int, *, types: int, positions: bool = True) -> tuple[Part, ...]:
    rows = sizes.fields.number("max_position_embeddings", 512) if positions else 0
    return (
        embedding("embeddings.word_embeddings", sizes.vocabulary, width),
        *((embedding("embeddings.position_embeddings", rows, width),) if rows else ()),
        *((embedding("embeddings.token_type_embeddings", types, width),) if types else ()),
    )


def _types(fields: ConfigFields, default: int = 2) -> int:
    """Kinds of segments. DeBERTa's configs say 0."""
    told = fields.values.get("type_vocab_size", default)
    return told if type(told) is int and told >= 0 else default


def _norms(sizes: Sizes, width: int) -> tuple[Part, ...]:
    return (
        layer_norm("embeddings.LayerNorm", width),
        layer_norm("attention.output.LayerNorm", sizes.hidden, sizes.layers),
        layer_norm("output.LayerNorm", sizes.hidden, sizes.layers),
    )


def _positions(fields: ConfigFields, padding: int) -> int:
    """Those behind the padding's number."""
    return max(fields.number("max_position_embeddings", 512) - padding - 1, 1)


ENCODER_FAMILIES: dict[str, Family] = {
    "bert": _bert,
    "distilbert": _distilbert,
    "roberta": _roberta,
    "xlm-roberta": _roberta,
    "camembert": _roberta,
    "electra": _electra,
    "albert": _albert,
    "deberta-v2": _deberta_v2,
    "mpnet": _mpnet,
    "modernbert": _modernbert,
}
