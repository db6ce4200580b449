"""What one layer of a model computes from one token, and how much of it autograd keeps: bytes, by family and setup.

Derived from the modeling files of transformers 5.23 and counted: tests hold `kept` against saved_tensors_hooks and
`made` against every result of a real layer, for each family. A compiled layer keeps what matmuls and attention take and
what norms and activations begin with, and computes the rest again: held against torch's partitioner. `shape` widths: h
hidden, q queries, k keys, f MLP.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from tui_trainer.models.families.layers import Linear
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import adapted
from tui_trainer.planning.training_setup import TrainingSetup

Group = Literal["attention in", "attention out", "MLP in", "MLP out"]
_GROUPS: dict[str, Group] = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn"), "attention in"),
    **dict.fromkeys(("o_proj", "dense"), "attention out"),
    **dict.fromkeys(("gate_proj", "up_proj", "gate_up_proj", "c_fc", "fc1"), "MLP in"),
    **dict.fromkeys(("down_proj", "fc2"), "MLP out"),
}
FLOAT, HALF = 4, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """How a family's layer differs from Llama's."""

    norm: Literal["rms", "rms of floats", "layer"] = "rms"
    norms: int = 2
    query_norms: bool = False
    rotary_share: float = 1.0
    fused_queries: bool = False
    """Queries, keys and values are views of one result, which stays as a whole."""
    copies_attention: bool = False
    """The attention's result is laid out anew for the product behind it."""
    stepwise_gelu: bool = False
    """GELU by its formula, eight results (gelu_new), in a MLP without a gate."""


BLOCKS: dict[str, Block] = {
    "llama": Block(),
    "mistral": Block(),
    "qwen2": Block(),
    "qwen3": Block(query_norms=True),
    "gemma": Block(norm="rms of floats"),
    "phi": Block(norm="layer", norms=1, rotary_share=0.5, copies_attention=True, stepwise_gelu=True),
    "phi3": Block(fused_queries=True, copies_attention=True),
    "gpt2": Block(norm="layer", rotary_share=0.0, fused_queries=True, stepwise_gelu=True),
}


def has_formula(shape: ModelShape) -> bool:
    """Whether memory is known by formula: a decoder of `BLOCKS` as it was counted, or an encoder with a form
    (`memory_stacks`). Decoders that classify are not known: their rows come with a mask of the padding."""
    block = BLOCKS.get(shape.model_type)
    counted = block is not None and shape.gated_mlp is not block.stepwise_gelu
    return shape.form is not None if shape.head != "causal_lm" else counted


@dataclass(frozen=True)
class Layer:
    """One layer in one setup. Numbers are bytes of one token in a row of `row_tokens`."""

    shape: ModelShape
    setup: TrainingSetup
    row_tokens: int
    """Of a family without a formula, by `dry_run`."""

    @property
    def kept(self) -> int:
        """What autograd keeps from the forward to the backward pass."""
        if self.setup.counted:
            return self.setup.counted.kept
        parts = (self._norms_kept, self._inputs_kept, self._attention_kept, self._mlp_kept, self._adapters_kept)
        return int(sum(parts))

    @property
    def made(self) -> int:
        """All results of the forward pass, kept or not."""
        if self.setup.counted:
            return self.setup.counted.made
        parts = (self._norms_made, self._attention_made, self._mlp_made, self._adapters_kept, self._casts)
        residuals = 2 * self.residual * self.shape.hidden_size
        return int(sum(parts) + residuals + self.adapter_temporaries)

    @property
    def own_temporaries(self) -> int:
        """What the model itself computes forward and does not keep, in numbers as wide as those between layers.

        Where these have 16 bits, the norms' fp32 results are left out: their places are large enough for what follows.
        """
        norms: float = 0
        if self.residual == HALF:
            norms = self.setup.counted.wide if self.setup.counted else self._norms_made - self._norms_kept
        return int(max(0, self.made - self.kept - self.adapter_temporaries - norms))

    @property
    def adapter_temporaries(self) -> int:
        """The same of adapters: the widened result, scaled, and added to that of the layer."""
        return 3 * self.compute * sum(linear.outputs for linear in self._adapted)

    @property
    def made_without_dropout(self) -> int:
        """`made` in an evaluation."""
        setup = replace(self.setup, lora_dropout=False)
        return Layer(replace(self.shape, attention_dropout=0.0), setup, self.row_tokens).made

    @property
    def largest(self) -> tuple[int, int]:
        """`kept` and `made` of the largest layer: with checkpoints one is there at a time."""
        return self.kept, self.made

    @property
    def keeps_scores(self) -> bool:
        """Whether attention gives all scores to the backward pass."""
        return self.drops_attention

    @property
    def input(self) -> int:
        """What gradient checkpointing keeps: the layer's input."""
        return self.residual * self.shape.hidden_size

    @cached_property
    def block(self) -> Block:
        like_llama = Block(stepwise_gelu=not self.shape.gated_mlp)
        return BLOCKS.get(self.shape.model_type, like_llama)

    @property
    def compute(self) -> int:
        """Bytes of a number that matmuls are computed in."""
        return HALF if self.setup.precision != "fp32" else self.residual

    @property
    def residual(self) -> int:
        """Bytes of a number between the layers: as the weights are."""
        return FLOAT if self.setup.weights == "float32" else HALF

    @property
    def _casts_inputs(self) -> bool:
        """Autocast copies the input of every product anew where it is in fp32."""
        return self.residual > self.compute

    @property
    def queries(self) -> int:
        return self.shape.attention_heads * self.shape.head_size

    @property
    def keys(self) -> int:
        return self.shape.key_value_heads * self.shape.head_size

    @property
    def repeats_keys(self) -> bool:
        """Off the fused path, keys and values are copied for all heads."""
        masked = self.setup.packed and self.setup.device == "cpu"
        return masked or self.drops_attention or self.setup.eager_attention

    @property
    def drops_attention(self) -> bool:
        return self.shape.attention_dropout > 0

    def _linears(self, group: Group) -> list[Linear]:
        return [linear for linear in self.shape.linears if group_of(linear, self.shape) == group]

    def _needs_input(self, linear: Linear) -> bool:
        """Whether autograd keeps it; an adapter's dropout keeps another instead, which is counted with the adapter."""
        adapted = linear.name in self.setup.lora_targets and not self.setup.lora_dropout
        return self.setup.method == "full" or adapted

    @property
    def _is_compiled(self) -> bool:
        """On a CPU what is not kept keeps its place all the same."""
        return self.setup.compiled and self.setup.device == "cuda"

    @property
    def _norms_kept(self) -> float:
        # Of the sum before a compiled layer's second norm, what it adds is kept: as wide as matmuls give it.
        less = (self.residual - self.compute) * self.shape.hidden_size * (self.block.norms - 1) * self._is_compiled
        if self.block.norm == "layer":
            return self.block.norms * self.residual * (self.shape.hidden_size + 2) - less
        kept = self.block.norms * self._norm_kept(self.shape.hidden_size, 1, self.residual) - less
        if self.block.query_norms:
            kept += self._norm_kept(self.queries, self.shape.attention_heads, self.compute)
            kept += self._norm_kept(self.keys, self.shape.key_value_heads, self.compute)
        return kept

    def _norm_kept(self, width: int, norms: int, given: int) -> int:
        """RMSNorm: its input in fp32, one number, and for the gradient of its weight the scaled input."""
        if self._is_compiled:
            return given * width + FLOAT * norms
        scaled = FLOAT if self.block.norm == "rms of floats" else given
        return FLOAT * (width + norms) + (scaled * width if self.setup.method == "full" else 0)

    @property
    def _norms_made(self) -> float:
        width = self.shape.hidden_size
        if self.block.norm == "layer":
            return self.block.norms * self.residual * (width + 2)
        made = self.block.norms * self._norm_made(width, self.residual)
        if self.block.query_norms:
            made += self._norm_made(self.queries + self.keys, self.compute)
        return made

    def _norm_made(self, width: int, given: int) -> int:
        """Squares, scaled input and result; from 16 bits also the input in fp32 and the way back."""
        if given == FLOAT:
            return 3 * FLOAT * width
        way_back = FLOAT + HALF if self.block.norm == "rms of floats" else 2 * HALF
        return (3 * FLOAT + way_back) * width

    @property
    def _inputs_kept(self) -> float:
        """Inputs of matmuls whose weight or adapter trains, where nothing else keeps them."""
        h = self.shape.hidden_size
        entries: list[Group] = ["attention in", "MLP in"]
        takers = [[x for x in self._linears(group) if self._needs_input(x)] for group in entries]
        if self._casts_inputs and not self._is_compiled:
            kept = self.compute * h * sum(map(len, takers))
        else:
            # A parallel block has one norm, whose result both sides take.
            kept = self.compute * h * min(self.block.norms, sum(map(bool, takers)))
        if self.block.copies_attention and any(map(self._needs_input, self._linears("attention out"))):
            kept += self.compute * self.queries
        if any(map(self._needs_input, self._linears("MLP out"))):
            kept += self.compute * self.shape.mlp_size
        return kept

    @property
    def _attention_kept(self) -> float:
        q, k, heads = self.queries, self.keys, self.shape.attention_heads
        repeated = self.repeats_keys and k != q
        keys_and_values = 2 * q if repeated else 2 * k
        if self.block.fused_queries and self.block.rotary_share and not repeated:
            keys_and_values = k + q + 2 * k
        kept = self.compute * (2 * q + keys_and_values)
        if self.drops_attention or self.setup.eager_attention:
            # The scores after softmax; with dropout also its mask and the product of both.
            scores = 3 if self.drops_attention else 2
            return kept + self.compute * scores * heads * self.row_tokens
        masked = self.setup.packed and self.setup.device == "cpu"
        return kept + FLOAT * heads + (self.compute * self.row_tokens if masked else 0)

    @property
    def _attention_made(self) -> float:
        q, k, c = self.queries, self.keys, self.compute
        made: float = c * (q + 2 * k + q + self.shape.hidden_size) + FLOAT * self.shape.attention_heads
        made += self._rotation_made * (q + k)
        if self.block.copies_attention:
            made += c * q
        if self.repeats_keys and k != q:
            made += c * 2 * q
        if self.drops_attention or self.setup.eager_attention:
            return made + c * (2 * q + 5.25 * self.shape.attention_heads * self.row_tokens)
        return made + (c * self.row_tokens if self.setup.packed and self.setup.device == "cpu" else 0)

    @property
    def _rotation_made(self) -> float:
        """Bytes for each number of queries and keys: two products, half a negation, a turned copy and the sum."""
        share, c = self.block.rotary_share, self.compute
        if not share:
            return 0
        angles = self.residual if self._casts_inputs else c
        back = c if self._casts_inputs else 0
        joined = c if self.block.rotary_share < 1 or self.block.fused_queries else 0
        return share * (3 * angles + 1.5 * c) + back + joined

    @property
    def _mlp_kept(self) -> int:
        """Gate, its activation and up; or four results of GELU. What goes into the last product is counted there."""
        eager, compiled = (4, 1) if self.block.stepwise_gelu else (3, 2)
        return self.compute * self.shape.mlp_size * (compiled if self._is_compiled else eager)

    @property
    def _mlp_made(self) -> int:
        results = 9 if self.block.stepwise_gelu else 4
        return self.compute * (results * self.shape.mlp_size + self.shape.hidden_size)

    @cached_property
    def _adapted(self) -> list[Linear]:
        if not self.setup.has_adapter:
            return []
        return list(adapted(self.shape, self.setup.lora_targets))

    @property
    def _adapters_kept(self) -> int:
        """The narrow results; dropout adds its mask and the dropped input."""
        kept = self.compute * self.setup.lora_rank * len(self._adapted)
        if not self.setup.lora_dropout:
            return kept
        mask = 1 if self.setup.device == "cuda" else self.compute
        return kept + (self.compute + mask) * sum(linear.inputs for linear in self._adapted)

    @property
    def _casts(self) -> int:
        """Copies in 16 bits of what goes into products."""
        if not self._casts_inputs:
            return 0
        takers = len(self._linears("attention in")) + len(self._linears("MLP in"))
        return self.compute * self.shape.hidden_size * (takers + len(self._adapted))


def group_of(linear: Linear, shape: ModelShape) -> Group | None:
    """Where in a layer a product stands; None: not in a layer. GPT-2 has two that are called `c_proj`."""
    if linear.name == "c_proj":
        return "MLP out" if linear.inputs == shape.mlp_size != shape.hidden_size else "attention out"
    return _GROUPS.get(linear.name)
