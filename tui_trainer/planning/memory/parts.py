"""The lines of the memory table, what every device keeps (weights, optimizer, logits), and what a layer computes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import ClassVar

from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.four_bits import quantised_linears
from tui_trainer.models.heads import CAUSAL
from tui_trainer.models.modules import Linear
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.training_setup import LayerBytes, TrainingSetup

FLOAT, HALF = 4, 2
KERNELS = "kernels"
"""The part that is compiled for sizes of passes, and kept."""
# Of each pair of tokens, where attention is computed step by step: products, and what softmax makes of them.
_RESULTS_OF_SCORES = 2.9


@dataclass(frozen=True, slots=True)
class MemoryPart:
    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """What goes through the model at one time; rows are `row_tokens` long.

    The head computes logits for labels only, not for padding. `most_labels`: of a pass; 0: all tokens have one.
    `labels_each`: where the labels of a row are not its tokens: one for a text, an answer's tokens behind an encoder.
    """

    rows: int
    eval_rows: int
    row_tokens: int
    accumulation: int = 1
    most_labels: int = 0
    most_eval_labels: int = 0
    labels_each: int = 0

    @property
    def tokens(self) -> int:
        return self.rows * self.row_tokens

    @property
    def labels(self) -> int:
        return self.rows * self.labels_each or min(self.tokens, self.most_labels or self.tokens)

    @property
    def eval_tokens(self) -> int:
        return self.eval_rows * self.row_tokens

    @property
    def eval_labels(self) -> int:
        return self.eval_rows * self.labels_each or min(self.eval_tokens, self.most_eval_labels or self.eval_tokens)


@dataclass(frozen=True)
class AdapterMemory:
    """Memory of adapters, except gradients, optimizer state and fp32 copies: `Static` counts those for all trained
    weights. Kernels on a CPU are in `cpu.py`, gradients of a layer's results on a GPU in `gpu.py`."""

    shape: ModelShape
    setup: TrainingSetup

    # Share of `adapter_temporaries` that a CPU needs in training, by bytes of a number: in 16 bits they fit into the
    # places of fp32 results. The second is the share that exists at one time in an evaluation, on both devices.
    ADAPTER_SHARE: ClassVar = {FLOAT: 0.45, HALF: 0.22}
    EVALUATION_ADAPTER_SHARE: ClassVar = 0.25

    @property
    def weight_size(self) -> int:
        """Bytes of one of the model's own weights."""
        return FLOAT if self.setup.weights == "float32" else HALF

    @property
    def compute_size(self) -> int:
        """Bytes of a number that matmuls are computed in."""
        return HALF if self.setup.precision != "fp32" else self.weight_size

    def adapter_matrices(self) -> Iterator[tuple[int, int, int]]:
        """Yield (rows, columns, how many) of the matrices of all adapters: two for each layer, and two for each tensor
        of experts."""
        rank = self.setup.lora_rank
        for linear in self.setup.adapted(self.shape):
            yield rank, linear.inputs, linear.count
            yield linear.outputs, rank, linear.count
        for tensor in self.setup.lora_experts:
            for width in (tensor.rows, tensor.columns):
                yield tensor.experts * tensor.rank, width, tensor.count

    def adapter_temporaries(self, row_tokens: int) -> int:
        """Return the bytes that adapters of one layer need for one token in a forward pass and do not keep: the widened
        result, that result scaled, and its sum with the result of the layer."""
        if not self.setup.has_adapter:
            return 0
        # How many vectors a product is given for each token of the input.
        vectors = {"source": 1.0, "target": self.setup.target_tokens / row_tokens, "row": 1 / row_tokens}
        widened = (x.outputs * x.count * vectors[x.reads] for x in self.setup.adapted(self.shape))
        return int(3 * self.compute_size * sum(widened) / self.shape.layers)

    def adapted_experts(self) -> tuple[MemoryPart, ...]:
        """Return the copies of expert tensors that have an adapter: the sums of tensor and update, which peft keeps for
        the backward pass, and the gradient of one sum. Source: `ParamWrapper._activate_lora` of peft 0.21."""
        tensors = self.setup.lora_experts
        if not tensors:
            return ()
        layers = 1 if self.setup.gradient_checkpointing else max(tensor.count for tensor in tensors)
        sums = sum(tensor.numbers // tensor.count * min(tensor.count, layers) for tensor in tensors)
        gradient = max(tensor.numbers // tensor.count for tensor in tensors)
        formula = f"{self.weight_size} bytes x tensors of experts with their updates, and the gradient of the largest"
        return (MemoryPart("adapted experts", self.weight_size * (sums + gradient), formula),)

    def dora_norms(self) -> tuple[MemoryPart, ...]:
        """Return the temporary tensors from which DoRA computes the norms of one layer: the update, the scaled update,
        the weight with the update, and an identity matrix. Source: `DoraLinearLayer.forward` of peft 0.21."""
        if not self.setup.use_dora:
            return ()
        matrices = max((3 * x.inputs * x.outputs + x.inputs**2 for x in self.setup.adapted(self.shape)), default=0)
        formula = "4 bytes x three copies of the largest adapted matrix and an identity matrix, for DoRA's norms"
        return (MemoryPart("DoRA norms", FLOAT * matrices, formula),)

    def token_tables(self, labels: int) -> tuple[MemoryPart, ...]:
        """Tables of which the rows of new tokens train; empty where none do.

        peft writes the rows into a copy of the head, which stays until the backward pass, and the copy has a gradient
        as large (that of logits in chunks is among those of the loss). The embedding's copy is gone before.
        """
        if not self.setup.trained_tokens:
            return ()
        table = self.shape.vocabulary * self.shape.hidden_size
        casts = HALF * (self.setup.precision != "fp32" and self.weight_size == FLOAT)
        each = self.weight_size * (1 if self.setup.chunks_loss(labels) else 2) + casts
        return (MemoryPart("token tables", each * table, f"{each} bytes x embeddings with trainable new tokens"),)

    def first_adapters(self) -> Iterator[MemoryPart]:
        if found := begun_bytes(self.setup):
            yield MemoryPart("first adapters", found, "4 bytes x adapters: their initial values")

    def _decomposition_bytes(self, x: Linear) -> int:
        """All in fp32: the matrix, LAPACK's copy, the vectors of both sides, and 4 k^2 of work where k is the smaller
        side (`LWORK` of LAPACK's gesdd); beside a copy as wide as the weights."""
        least = min(x.inputs, x.outputs)
        numbers = 2 * x.inputs * x.outputs + least * (x.inputs + x.outputs) + 4 * least**2
        return FLOAT * numbers + self.weight_size * x.inputs * x.outputs

    @property
    def merge_bytes(self) -> int:
        """The adapter, and of the largest matrix a copy, its update in fp32, and that as wide as the weights."""
        each = 2 * self.weight_size + FLOAT
        return FLOAT * self.setup.merged_parameters + each * max(
            (x.inputs * x.outputs for x in self.shape.linears), default=0
        )


class Static(AdapterMemory):
    """Bytes that do not depend on the batch."""

    @property
    def trained(self) -> int:
        if known := self.setup.trained_parameters:
            return known
        is_whole = self.setup.method == "full"
        return self.shape.parameters if is_whole else sum(map(prod, self.adapter_matrices()))

    @property
    def classes(self) -> int:
        """How many logits a label has: words of the vocabulary, or classes."""
        return self.shape.labels or self.shape.vocabulary

    @property
    def has_masters(self) -> bool:
        """Weights of 16 bits that train have a copy in fp32, which is what is really trained."""
        return self.setup.method == "full" and self.weight_size == HALF

    def tokens_at_ends(self, batch: BatchSizes) -> int:
        """Tokens that go into the first layers and come out of the last: behind an encoder those of answers as well."""
        answers = self.setup.target_tokens if self.shape.decoder_layers else 0
        return batch.tokens + batch.rows * answers

    @property
    def end_numbers(self) -> int:
        """Of the embedding and the head."""
        return self.shape.vocabulary * self.shape.hidden_size * (1 if self.shape.tied_embeddings else 2)

    @property
    def layer_numbers(self) -> int:
        """The weights of one layer."""
        layers = max(self.shape.layers + self.shape.decoder_layers, 1)
        return max(0, self.shape.parameters - self.end_numbers) // layers

    def weights(self) -> MemoryPart:
        on_host = self.setup.towers_on_host
        own = (self.shape.parameters if on_host else self.shape.loaded_parameters) * self.weight_size
        if self.setup.method == "full":
            return MemoryPart("weights", own, f"{self.weight_size} bytes x parameters")
        # What is trained as a whole beside adapters is there in 16 bits as well, for the products.
        saved = HALF * self.setup.saved_parameters if self.weight_size == HALF else 0
        formula = f"{self.weight_size} bytes x frozen parameters, 4 bytes x trained ones"
        if four_bits := self.setup.four_bits:
            packed = sum(x.matrix_parameters for x in quantised_linears(self.shape, four_bits))
            own += int(packed * (four_bits.bits_per_weight / 8 - self.weight_size))
            formula = f"{four_bits.bits_per_weight:.3f} bits x matrices inside the layers, {formula}"
        return MemoryPart("weights", own + FLOAT * self.trained + saved, formula)

    def towers(self) -> MemoryPart:
        """Their weights, which no text goes through."""
        own = sum(self.shape.towers.values()) * self.weight_size
        formula = f"{self.weight_size} bytes x parameters of {' and '.join(self.shape.towers)}, which stay frozen"
        return MemoryPart("towers", own, formula)

    def weight_parts(self) -> tuple[MemoryPart, ...]:
        """All weights beside each other, those of towers in a part of their own."""
        whole, towers = self.weights(), self.towers()
        if not towers.bytes or self.setup.towers_on_host:
            return (whole,)
        return replace(whole, bytes=whole.bytes - towers.bytes), towers

    def masters(self) -> tuple[MemoryPart, ...]:
        """The fp32 copies of weights of 16 bits that train; empty where there are none."""
        formula = "4 bytes x trained parameters: the fp32 copies that are updated"
        return (MemoryPart("master weights", FLOAT * self.trained, formula),) if self.has_masters else ()

    def optimizer(self) -> MemoryPart:
        found = state_bytes(self.shape, self.setup, self.trained)
        formula = f"{found / max(self.trained, 1):.3g} bytes x trained parameters ({self.setup.optim})"
        return MemoryPart("optimizer", found, formula)

    def before_training(self, there: int) -> tuple[MemoryPart, ...]:
        """What is there before the first step only, beyond `there`, which comes later: a matrix of which adapters are
        taken out, an adapter that is put into its model, one layer after the other, and towers for the host, which come
        through the card with the weights."""
        there += self.optimizer().bytes + sum(part.bytes for part in self.masters())
        found: list[tuple[str, int, str]] = []
        if self.setup.mutates_weights:
            most = max(map(self._decomposition_bytes, self.setup.adapted(self.shape)), default=0)
            found.append(("decomposition", most, "the decomposition of the largest matrix"))
        if self.setup.merged_parameters and not self.setup.has_adapter:
            found.append(("merge", self.merge_bytes, "the adapter in fp32 and three copies of the largest matrix"))
        if self.setup.towers_on_host and (self.setup.shards == 1 or self.setup.zero_stage == 2):
            found.append(("towers loaded", self.towers().bytes, "towers, before they are copied to the host"))
        parts = []
        for name, size, formula in found:
            parts.append(MemoryPart(name, max(0, size - there), f"{formula}, beyond the needs of a step"))
            there = max(0, there - size)
        return tuple(parts)

    @property
    def gradient_bytes(self) -> int:
        """Those of one pass, as the backward pass makes them."""
        return self.trained * (HALF if self.has_masters else FLOAT)

    @property
    def cast_bytes(self) -> int:
        """Autocast keeps 16-bit copies of trained fp32 weights from the forward to the backward pass."""
        if self.setup.precision == "fp32" or self.has_masters:
            return 0
        if self.setup.has_adapter:
            return HALF * self.trained
        found = sum(x.inputs * x.outputs * x.count for x in self.shape.linears)
        return HALF * (min(found, self.trained) if self.setup.freezes_layers else found)

    @property
    def largest_cast_bytes(self) -> int:
        """The 16-bit copy of one weight, as in an evaluation: torch's autocast keeps none in inference mode.

        Source: torch's autocast_mode.cpp (issue 158232); under no_grad it keeps those of weights that train.
        """
        if self.setup.precision == "fp32" or self.weight_size == HALF:
            return 0
        return HALF * max((x.inputs * x.outputs for x in self.shape.linears), default=0)

    def router_loss(self, tokens: int) -> tuple[MemoryPart, ...]:
        """Logits of the routers, which the model collects, and what softmax makes of them, up to the backward pass."""
        if not self.setup.router_logits:
            return ()
        found = 2 * FLOAT * tokens * self.setup.router_logits
        return (MemoryPart("router loss", found, "8 bytes x tokens x experts x routers"),)

    def unpacking_bytes(self, tokens: int) -> int:
        """Of weights in 4 bits: the widest matrix as a product takes it, and peft's copy of the widest result."""
        four_bits = self.setup.four_bits
        found = quantised_linears(self.shape, four_bits)
        taken_as = (four_bits.compute_dtype if four_bits else "") or self.setup.weights
        size = FLOAT if taken_as == "float32" else HALF
        matrix = max((x.inputs * x.outputs for x in found), default=0)
        return size * matrix + self.compute_size * tokens * max((x.outputs for x in found), default=0)

    @property
    def sum_bytes(self) -> int:
        """Gradients between two passes: in fp32, whatever the weights are (`training/optimizer.py`)."""
        return FLOAT * self.trained

    def loss(self, tokens: int) -> MemoryPart:
        """Logits, their log-softmax and two gradients: 12 bytes for each token and word of the vocabulary, or class.

        Behind a soft cap the tanh as well. In chunks: one chunk's logits in fp32 and what goes into the products, or
        the slope of the cap, or by a kernel what goes into the products alone; with the gradients of the hidden states
        and, where it trains, of the head's weight: a product, and the sum in fp32 or the product with the scale.
        """
        chunk, vocabulary, width = self.setup.loss_chunk_tokens, self.classes, self.shape.hidden_size
        if not self.setup.chunks_loss(tokens):
            found = (12 + (self.compute_size if self._has_soft_cap else 0)) * tokens * vocabulary
            return MemoryPart("head and loss", found, "12 bytes x labels x vocabulary")
        trains = self.setup.trains_head
        sums = FLOAT if tokens > chunk else self.compute_size
        head = (sums + self.compute_size) * vocabulary * width if trains else 0
        found = min(chunk, tokens) * vocabulary * self._chunk_size + 2 * self.compute_size * tokens * width + head
        return MemoryPart("head and loss", found, "logits of a chunk, gradients of the hidden states and of the head")

    @property
    def _chunk_size(self) -> int:
        """Bytes of a chunk for each token and word."""
        if self.setup.fused_loss:
            return self.compute_size
        copies = 0 if self.compute_size == FLOAT else self.compute_size
        return FLOAT + (FLOAT if self._has_soft_cap else copies)

    @property
    def _has_soft_cap(self) -> bool:
        return self.shape.logits is not None and self.shape.logits.soft_cap is not None

    def evaluation_logits(self, tokens: int) -> int:
        """Logits, in fp32 as well where they are not, and their log-softmax."""
        chunk, vocabulary = self.setup.loss_chunk_tokens, self.classes
        copies = 0 if self.compute_size == FLOAT else self.compute_size
        if not self.setup.chunks_loss(tokens):
            return tokens * vocabulary * (2 * FLOAT + copies)
        return min(tokens, chunk) * vocabulary * (self.compute_size if self.setup.fused_loss else FLOAT + copies)


@dataclass(frozen=True)
class ModelMemory(Static):
    """With what a layer computes: bytes of one token in a row of `row_tokens`; with a decoder behind an encoder, of one
    token of the input in one layer of the encoder, what the decoder does shared out among them."""

    row_tokens: int

    @cached_property
    def counted(self) -> LayerBytes:
        """By a dry run. Where there was none, 34 bytes a number of the hidden state in 16 bits, and 5 a head for each
        pair of tokens (Korthikanti et al., arXiv:2205.05198, section 4.1); without scores where the kernel is fused."""
        if self.setup.counted:
            return self.setup.counted
        setup, halves, heads = self.setup, self.compute_size / HALF, self.shape.attention_heads
        has_scores = setup.eager_attention or setup.math_attention or self.shape.attention_dropout
        scores = 5 * heads * self.row_tokens if has_scores else 0
        kept = int(halves * (34 * self.shape.hidden_size + scores))
        return LayerBytes(kept=kept, made=2 * kept, evaluated=2 * kept, largest_kept=kept, largest_made=2 * kept)

    @property
    def kept_layers(self) -> int:
        """Layers that keep something for the backward pass, which ends at the first one that trains."""
        return self.setup.backward_layers if self.setup.freezes_layers else self.shape.layers

    @property
    def keeps_scores(self) -> bool:
        """Whether attention gives all scores to the backward pass."""
        return self.counted.made_per_pair >= _RESULTS_OF_SCORES * self.compute_size * self.shape.attention_heads

    @property
    def own_temporaries(self) -> int:
        """What the model itself computes forward and does not keep, in numbers as wide as those between layers.

        Where these have 16 bits, fp32 results (of norms) are left out: their places are large enough for what follows.
        """
        found = self.counted
        wide = found.wide if self.weight_size == HALF and self.shape.head == CAUSAL else 0
        return int(max(0, found.made - found.kept - self.adapter_temporaries(self.row_tokens) - wide))

    @property
    def layer_input(self) -> int:
        """What gradient checkpointing keeps: the layer's input, in numbers as wide as the weights."""
        layers = self.shape.layers + self.shape.decoder_layers * self._answer_share
        return int(self.weight_size * self.shape.hidden_size * layers / self.shape.layers)

    @property
    def _answer_share(self) -> float:
        """Tokens of an answer for each token of the input."""
        return self.setup.target_tokens / self.row_tokens


def largest_parameter(shape: ModelShape) -> int:
    """Numbers in the largest matrix of the model."""
    matrices = [linear.inputs * linear.outputs for linear in shape.linears]
    return max([shape.vocabulary * shape.hidden_size, *matrices])


def begun_bytes(setup: TrainingSetup) -> int:
    """Return the bytes of what adapters began with, in fp32, where they are a part of the weights."""
    return 4 * (setup.trained_parameters - setup.saved_parameters) if setup.mutates_weights else 0


def state_bytes(shape: ModelShape, setup: TrainingSetup, trained: int) -> int:
    """What an optimizer keeps beside so many weights that train, in memory and in a checkpoint the same."""
    optimizer = OPTIMIZERS[setup.optim]
    if optimizer.hidden_state_bytes is not None:
        hidden = sum(linear.matrix_parameters for linear in shape.linears if not linear.is_head)
        # Of layers that train in part, as many as of all.
        hidden = hidden * trained // shape.parameters if setup.freezes_layers else hidden
        return int(optimizer.hidden_state_bytes * hidden + optimizer.state_bytes * (trained - hidden))
    if not optimizer.factored_state:
        return int(optimizer.state_bytes * trained)
    tensors = [*(AdapterMemory(shape, setup).adapter_matrices() if setup.has_adapter else _weights(shape))]
    if setup.has_adapter and (rest := trained - sum(map(prod, tensors))):
        # What else trains are modules that are saved, as wide as the layers.
        tensors.append((max(rest, 0) // shape.hidden_size, shape.hidden_size, 1))
    found = FLOAT * sum(count * (rows + columns) for rows, columns, count in tensors)
    # Of those that train, as many of each size as of all.
    return found * trained // shape.parameters if setup.freezes_layers else found


def _weights(shape: ModelShape) -> Iterator[tuple[int, int, int]]:
    """(rows, columns, how many) of all weights; a vector has no columns. A head that is the embedding counts once."""
    for linear in shape.linears:
        if not (linear.is_head and shape.tied_embeddings):
            yield linear.outputs, linear.inputs, linear.count
        if linear.has_bias:
            yield linear.outputs, 0, linear.count
    for part in shape.parts:
        # Of a table that is known by its size alone, rows are as wide as the layers.
        rows = part.rows or (part.parameters_each // shape.hidden_size if part.is_embedding else 0)
        yield (rows, part.parameters_each // rows, part.count) if rows else (part.parameters_each, 0, part.count)
