"""What the layers of an encoder, and of a decoder behind it, compute from one row, and how much autograd keeps: bytes.

As in `memory_layers`, of whose `Layer` this is a kind: per token of the input and layer of the encoder, what the
decoder does for an answer of `TrainingSetup.target_tokens` shared out among them. Derived from the modeling files of
transformers 5.23 for the families that have a `LayerSpec`; tests hold it against real layers. Widths: h hidden, i
heads x head size, f MLP; Q tokens that ask and K tokens that are asked in one attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tui_trainer.models.families.encoder_spec import LayerSpec
from tui_trainer.models.families.layers import Linear
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.memory.layers import FLOAT, HALF, Layer
from tui_trainer.planning.memory.layers import Group as Role
from tui_trainer.planning.training_setup import TrainingSetup

# Results of an activation beside its input that autograd keeps, and all results but the last. RELU keeps its result.
_STEPWISE_KEPT, _STEPWISE_MADE = 3, 7
_ASKING = {"query", "key", "value", "q_lin", "k_lin", "v_lin", "q", "k", "v", "q_proj", "k_proj", "v_proj"}
_ROLES: dict[str, Role] = {
    **dict.fromkeys(_ASKING, "attention in"),
    **dict.fromkeys(("attention.output.dense", "out_lin", "o", "out_proj"), "attention out"),
    **dict.fromkeys(("intermediate.dense", "lin1", "wi", "wi_0", "wi_1", "fc1"), "MLP in"),
    **dict.fromkeys(("output.dense", "lin2", "wo", "fc2"), "MLP out"),
}
_ACROSS = ("EncDecAttention", "encoder_attn")


@dataclass(frozen=True, slots=True)
class Results:
    """Bytes of one row: kept for the backward pass, and made in all."""

    kept: float = 0.0
    made: float = 0.0

    def __add__(self, other: Results) -> Results:
        return Results(self.kept + other.kept, self.made + other.made)

    def times(self, count: float) -> Results:
        return Results(self.kept * count, self.made * count)


@dataclass(frozen=True)
class EncoderDecoderLayers(Layer):
    """The layers of one model in one setup. Numbers are bytes of one token of the input in one encoder layer."""

    @cached_property
    def form(self) -> LayerSpec:
        assert self.shape.form is not None
        return self.shape.form

    @property
    def answer_tokens(self) -> int:
        return self.setup.target_tokens if self.shape.decoder_layers else 0

    @property
    def kept(self) -> int:
        return self._each(self._everything.kept)

    @property
    def made(self) -> int:
        return self._each(self._everything.made + self.shape.layers * self.row_tokens * self.adapter_temporaries)

    @property
    def largest(self) -> tuple[int, int]:
        kinds = (self._encoder, self._decoder)
        each = (max(one.kept for one in kinds), max(one.made for one in kinds))
        kept, made = (self._each(self.shape.layers * found) for found in each)
        return kept, made

    @property
    def adapter_temporaries(self) -> int:
        return self._each(3 * self.compute * sum(x.outputs * self._passes(x) for x in self._adapted))

    @property
    def input(self) -> int:
        """One vector for each token of the input and, behind it, of the answer."""
        tokens = self.shape.layers * self.row_tokens + self.shape.decoder_layers * self.answer_tokens
        return self._each(self.residual * self.shape.hidden_size * tokens)

    @property
    def made_without_dropout(self) -> int:
        form = replace(self.form, dropout=0.0, attention_dropout=0.0, activation_dropout=0.0)
        shape = replace(self.shape, form=form, attention_dropout=0.0)
        frozen = replace(self.setup, lora_dropout=False)
        return EncoderDecoderLayers(shape, frozen, self.row_tokens).made

    @property
    def keeps_scores(self) -> bool:
        return not self._is_fused(self._learns_distances)

    @property
    def own_temporaries(self) -> int:
        return max(0, self.made - self.kept - self.adapter_temporaries)

    @property
    def _learns_distances(self) -> bool:
        return self.form.distances and self.setup.method == "full"

    def _each(self, of_all_layers: float) -> int:
        """Of one token and encoder layer, from what a whole row needs in all layers."""
        return int(of_all_layers / self.shape.layers / self.row_tokens)

    @cached_property
    def _everything(self) -> Results:
        layers = self._encoder.times(self.shape.layers) + self._decoder.times(self.shape.decoder_layers)
        adapters = self._adapters_of_row
        return layers + Results(adapters, adapters)

    @cached_property
    def _encoder(self) -> Results:
        own = [x for x in self._body if x.reads == "source" and not _is_across(x)]
        tokens = self.row_tokens
        attention = self._attention(own, self.shape.attention_heads, tokens, tokens, learnt=self._learns_distances)
        return attention + self._mlp(own, tokens)

    @cached_property
    def _decoder(self) -> Results:
        if not self.shape.decoder_layers:
            return Results()
        own = [x for x in self._body if x.reads == "target" and not _is_across(x)]
        across, heads = [x for x in self._body if _is_across(x)], self.form.decoder_heads
        tokens = self.answer_tokens
        # Zeros stand for distances to the input; checkpointing lets T5 ask for their gradient.
        zeros = self.form.distances and self.setup.gradient_checkpointing
        return (
            self._attention(own, heads, tokens, tokens, learnt=self._learns_distances, masked=self.form.distances)
            + self._attention(across, heads, tokens, self.row_tokens, learnt=zeros)
            + self._mlp(own, tokens)
        )

    @cached_property
    def _body(self) -> list[Linear]:
        return [x for x in self.shape.linears if not x.is_head]

    def _attention(
        self, linears: Sequence[Linear], heads: int, asking: int, asked: int, *, learnt: bool, masked: bool = True
    ) -> Results:
        """With its norm and the sum behind it. `learnt`: a gradient of the scores' mask is asked for."""
        inner, outer = _in_role(linears, "attention in"), _in_role(linears, "attention out")
        width = inner[0].outputs
        found = self._norm(asking) + self._inputs_of_attention(inner, asking, asked)
        found += Results(made=self.compute * width * (asking + 2 * asked))
        if self._is_fused(learnt):
            found += self._fused(heads, width, asking, asked, masked)
        else:
            found += self._by_scores(heads, width, asking, asked, outer)
        return found + self._sum(asking, dropped=self.form.drops_attended)

    def _is_fused(self, learnt: bool) -> bool:
        """The kernel that keeps no scores has neither dropout nor a gradient of the mask on a CPU; on a card it has."""
        needs_scores = self.setup.device == "cpu" and (learnt or self.drops_attention)
        return not (needs_scores or self.setup.eager_attention)

    def _inputs_of_attention(self, inner: Sequence[Linear], asking: int, asked: int) -> Results:
        """Copies in 16 bits for each product; else one vector for all. That of the encoder's end is there anyway."""
        needing = [x for x in inner if self._needs(x)]
        h = self.shape.hidden_size
        if not self._casts_inputs:
            own = [x for x in needing if not (_is_across(x) and x.reads == "source")]
            return Results(kept=self.residual * h * asking * bool(own))
        tokens = {x.path: asked if _is_across(x) and x.reads == "source" else asking for x in inner}
        kept, made = (sum(self.compute * h * tokens[x.path] for x in group) for group in (needing, inner))
        return Results(kept, made)

    def _fused(self, heads: int, width: int, asking: int, asked: int, masked: bool) -> Results:
        results = self.compute * width * asking + FLOAT * heads * asking
        mask = masked * self.compute * (heads if self.form.distances else 1) * asking * asked
        kept = results + mask + self.compute * width * (asking + 2 * asked)
        return Results(kept, results + mask * (2 if self.form.distances else 1))

    def _by_scores(self, heads: int, width: int, asking: int, asked: int, outer: Sequence[Linear]) -> Results:
        """Scores after softmax, with dropout also its mask and the product of both; queries and keys are scaled."""
        c = FLOAT if not self.setup.eager_attention else self.compute
        pairs, dropped = heads * asking * asked, 2 * self.drops_attention
        kept = c * ((1 + dropped) * pairs + width * (asking + 2 * asked))
        kept += self.compute * width * asking * any(map(self._needs, outer))
        masks = 2 * pairs if self.form.distances else asking * asked
        # Queries, keys and values are laid out anew for each product, and so is its result.
        made = c * ((3 + dropped) * pairs + masks + width * (2 * asking + 2 * asked + asked + 2 * asking))
        return Results(kept, made)

    def _mlp(self, linears: Sequence[Linear], tokens: int) -> Results:
        """With its norm and the sum behind it."""
        inner, outer = _in_role(linears, "MLP in"), _in_role(linears, "MLP out")
        f, h, c = outer[0].inputs, self.shape.hidden_size, self.compute
        needing, out_needs = [x for x in inner if self._needs(x)], any(map(self._needs, outer))
        inputs = c * h * len(needing) if self._casts_inputs else self.residual * h * bool(needing)
        copies = c * h * len(inner) if self._casts_inputs else 0
        relu, stepwise = self.form.activation == "relu", self.form.activation == "gelu_new"
        gated, drops = len(inner) - 1, self.form.activation_dropout > 0
        # What the activation keeps, what a gate multiplies, and what goes into the last product.
        into_last = out_needs and (bool(gated) or drops or not relu)
        kept = c * (1 + stepwise * _STEPWISE_KEPT + (2 - relu) * gated + into_last) + self._mask_size * drops
        made = c * (len(inner) + 1 + stepwise * _STEPWISE_MADE + gated + 2 * drops)
        found = Results(inputs + f * kept, copies + f * made)
        return self._norm(tokens) + found.times(tokens) + self._sum(tokens)

    def _norm(self, tokens: int) -> Results:
        """LayerNorm keeps its input and two numbers; T5's, which only scales, the input also in fp32."""
        h, r = self.shape.hidden_size, self.residual
        if self.form.norm == "layer":
            return Results(r * (h + 2), r * (h + 2)).times(tokens)
        scaled = r * h if self.setup.method == "full" else 0
        twice = HALF * h if r == HALF else 0
        back = 2 * HALF * h if r == HALF else FLOAT * h
        return Results(FLOAT * (h + 1) + twice + scaled, FLOAT * (2 * h + 3) + 2 * twice + back).times(tokens)

    def _sum(self, tokens: int, dropped: bool = True) -> Results:
        """A product's result, and its sum with what went around it; dropout keeps its mask."""
        h, c = self.shape.hidden_size, self.compute
        drops = dropped and self.form.dropout > 0
        return Results(self._mask_size * h * drops, (c + self.residual) * h + 2 * c * h * drops).times(tokens)

    @property
    def _mask_size(self) -> int:
        return 1 if self.setup.device == "cuda" else self.compute

    def _needs(self, linear: Linear) -> bool:
        """Whether autograd keeps a product's input; an adapter's dropout keeps another, counted with the adapter."""
        return self.setup.method == "full" or (linear in self._adapted and not self.setup.lora_dropout)

    @property
    def _adapters_of_row(self) -> float:
        """The narrow results; dropout adds its mask and the dropped input."""
        dropped = self.compute + self._mask_size if self.setup.lora_dropout else 0
        each = (self._passes(x) * (self.compute * self.setup.lora_rank + dropped * x.inputs) for x in self._adapted)
        return float(sum(each))

    def _passes(self, linear: Linear) -> int:
        """Tokens of a row that go through all products of a kind."""
        return linear.count * (self.answer_tokens if linear.reads == "target" else self.row_tokens)


def layer_of(shape: ModelShape, setup: TrainingSetup, row_tokens: int) -> Layer:
    """One layer, by the formula of its family or by what a dry run counted."""
    is_encoder = shape.form is not None and shape.head != "causal_lm" and not setup.counted
    return (EncoderDecoderLayers if is_encoder else Layer)(shape, setup, row_tokens)


def _is_across(linear: Linear) -> bool:
    return any(name in linear.path for name in _ACROSS)


def _in_role(linears: Sequence[Linear], role: Role) -> list[Linear]:
    return [x for x in linears if (_ROLES.get(x.path) or _ROLES.get(x.name)) == role]
