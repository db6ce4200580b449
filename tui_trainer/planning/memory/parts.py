"""Parts of the memory table that every device has: weights, optimizer state, logits, and what a layer computes."""

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

FP32_BYTES, HALF_BYTES = 4, 2
KERNELS = "kernels"
"""Name of the memory part for kernels that are compiled for each size of a pass, and kept."""
# Results for each pair of tokens and head if attention is computed step by step: scores, and softmax's results.
_RESULTS_OF_SCORES = 2.9


@dataclass(frozen=True, slots=True)
class MemoryPart:
    name: str
    bytes: int
    formula: str


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSizes:
    """Sizes of one pass through the model. Each row has `row_tokens` tokens.

    The head computes logits for labels only, not for padding. `most_labels` is the largest count of labels in a pass; 0
    means that every token has a label. `label_count_per_row` is the count of labels of a row if it differs from the
    tokens: one for a text, the tokens of the answer for an encoder-decoder; 0 otherwise."""

    rows: int
    eval_rows: int
    row_tokens: int
    accumulation: int = 1
    most_labels: int = 0
    most_eval_labels: int = 0
    label_count_per_row: int = 0

    @property
    def tokens(self) -> int:
        return self.rows * self.row_tokens

    @property
    def labels(self) -> int:
        return self.rows * self.label_count_per_row or min(self.tokens, self.most_labels or self.tokens)

    @property
    def eval_tokens(self) -> int:
        return self.eval_rows * self.row_tokens

    @property
    def eval_labels(self) -> int:
        return self.eval_rows * self.label_count_per_row or min(
            self.eval_tokens, self.most_eval_labels or self.eval_tokens
        )


@dataclass(frozen=True)
class AdapterMemory:
    """Memory of adapters, except gradients, optimizer state and fp32 copies: `Static` counts those for all trained
    weights. Kernels on a CPU are in `cpu.py`, gradients of a layer's results on a GPU in `gpu.py`."""

    shape: ModelShape
    setup: TrainingSetup

    # Share of `adapter_temporaries` that a CPU needs in training, by bytes of a number: 16-bit ones reuse the memory of
    # fp32 results. The second is the share that exists at one time in an evaluation, on both devices.
    ADAPTER_SHARE: ClassVar = {FP32_BYTES: 0.45, HALF_BYTES: 0.22}
    EVALUATION_ADAPTER_SHARE: ClassVar = 0.25

    @property
    def weight_number_bytes(self) -> int:
        """Bytes of one number in the model's own weights."""
        return FP32_BYTES if self.setup.weights == "float32" else HALF_BYTES

    @property
    def compute_size(self) -> int:
        """Bytes of a number in the data type of matmuls."""
        return HALF_BYTES if self.setup.precision != "fp32" else self.weight_number_bytes

    def adapter_matrices(self) -> Iterator[tuple[int, int, int]]:
        """Yield (rows, columns, how many) of the adapters' matrices: two for each layer and each tensor of experts."""
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
        # Vectors that enter a matmul, for each token of the input.
        vectors_per_token = {"source": 1.0, "target": self.setup.target_tokens / row_tokens, "row": 1 / row_tokens}
        widened_numbers = (x.outputs * x.count * vectors_per_token[x.reads] for x in self.setup.adapted(self.shape))
        return int(3 * self.compute_size * sum(widened_numbers) / self.shape.layers)

    def adapted_experts(self) -> tuple[MemoryPart, ...]:
        """Return the copies of expert tensors that have an adapter: the sums of tensor and update, which peft keeps for
        the backward pass, and the gradient of one sum. Source: `ParamWrapper._activate_lora` of peft 0.21."""
        tensors = self.setup.lora_experts
        if not tensors:
            return ()
        layers_at_once = 1 if self.setup.gradient_checkpointing else max(tensor.count for tensor in tensors)
        sum_numbers = sum(tensor.numbers // tensor.count * min(tensor.count, layers_at_once) for tensor in tensors)
        gradient_numbers = max(tensor.numbers // tensor.count for tensor in tensors)
        size = self.weight_number_bytes
        formula = f"{size} bytes x expert tensors (weights plus adapter), and the largest one's gradient"
        return (MemoryPart("adapted experts", size * (sum_numbers + gradient_numbers), formula),)

    def dora_norms(self) -> tuple[MemoryPart, ...]:
        """Return the temporary tensors from which DoRA computes the norms of one layer: the update, the scaled update,
        the weight with the update, and an identity matrix. Source: `DoraLinearLayer.forward` of peft 0.21."""
        if not self.setup.use_dora:
            return ()
        numbers = max((3 * x.inputs * x.outputs + x.inputs**2 for x in self.setup.adapted(self.shape)), default=0)
        formula = "4 bytes x (3 x the largest adapted matrix + an identity matrix), for DoRA's norms"
        return (MemoryPart("DoRA norms", FP32_BYTES * numbers, formula),)

    def token_tables(self, labels: int) -> tuple[MemoryPart, ...]:
        """Return the memory of training the rows of new tokens; empty if none train.

        peft writes the rows into a copy of the head, which stays until the backward pass and has a gradient of its own
        size (with chunked logits it is part of the loss). The copy of the embedding is freed before.
        """
        if not self.setup.trained_tokens:
            return ()
        numbers = self.shape.vocabulary * self.shape.hidden_size
        cast_bytes = HALF_BYTES * (self.setup.precision != "fp32" and self.weight_number_bytes == FP32_BYTES)
        each = self.weight_number_bytes * (1 if self.setup.chunks_loss(labels) else 2) + cast_bytes
        return (MemoryPart("token tables", each * numbers, f"{each} bytes x embeddings with trainable new tokens"),)

    def first_adapters(self) -> Iterator[MemoryPart]:
        if size_bytes := initial_adapter_bytes(self.setup):
            yield MemoryPart("first adapters", size_bytes, "4 bytes x initial values of adapters")

    def _decomposition_bytes(self, linear: Linear) -> int:
        """Return the bytes of one matrix's singular value decomposition: a copy of the weight, and in fp32 the matrix,
        LAPACK's copy, the vectors of both sides and a workspace of 4 k^2 for the smaller side k (`LWORK` of gesdd)."""
        shorter = min(linear.inputs, linear.outputs)
        number_count = 2 * linear.inputs * linear.outputs + shorter * (linear.inputs + linear.outputs) + 4 * shorter**2
        return FP32_BYTES * number_count + self.weight_number_bytes * linear.inputs * linear.outputs

    @property
    def merge_bytes(self) -> int:
        """Bytes of the adapter and, for its largest matrix, of a copy and of updates in fp32 and the weights' width."""
        number_bytes = 2 * self.weight_number_bytes + FP32_BYTES
        return FP32_BYTES * self.setup.merged_parameters + number_bytes * max(
            (linear.inputs * linear.outputs for linear in self.shape.linears), default=0
        )


class Static(AdapterMemory):
    """Memory that does not depend on the batch, in bytes."""

    @property
    def trained_parameters(self) -> int:
        if trained_count := self.setup.trained_parameters:
            return trained_count
        trains_all = self.setup.method == "full"
        return self.shape.parameters if trains_all else sum(map(prod, self.adapter_matrices()))

    @property
    def class_count(self) -> int:
        """Count of logits for each label: words of the vocabulary, or classes."""
        return self.shape.labels or self.shape.vocabulary

    @property
    def has_masters(self) -> bool:
        """True for trained 16-bit weights: the optimizer updates an fp32 copy of them."""
        return self.setup.method == "full" and self.weight_number_bytes == HALF_BYTES

    def tokens_at_ends(self, batch: BatchSizes) -> int:
        """Return the count of tokens at the embedding and the head: those of the input and of the decoder's answers."""
        answer_tokens = self.setup.target_tokens if self.shape.decoder_layers else 0
        return batch.tokens + batch.rows * answer_tokens

    @property
    def end_parameters(self) -> int:
        """Count of the weights of the embedding and the head."""
        return self.shape.vocabulary * self.shape.hidden_size * (1 if self.shape.tied_embeddings else 2)

    @property
    def layer_parameters(self) -> int:
        """Count of the weights of one layer, on average."""
        layer_count = max(self.shape.layers + self.shape.decoder_layers, 1)
        return max(0, self.shape.parameters - self.end_parameters) // layer_count

    def weights(self) -> MemoryPart:
        on_host = self.setup.towers_on_host
        weight_bytes = (self.shape.parameters if on_host else self.shape.loaded_parameters) * self.weight_number_bytes
        if self.setup.method == "full":
            return MemoryPart("weights", weight_bytes, f"{self.weight_number_bytes} bytes x parameters")
        # Modules that train in full beside adapters have a 16-bit copy as well, which matmuls use.
        saved_bytes = HALF_BYTES * self.setup.saved_parameters if self.weight_number_bytes == HALF_BYTES else 0
        formula = f"{self.weight_number_bytes} bytes x frozen parameters, 4 bytes x trained parameters"
        if four_bits := self.setup.four_bits:
            packed_weights = sum(linear.matrix_parameters for linear in quantised_linears(self.shape, four_bits))
            weight_bytes += int(packed_weights * (four_bits.bits_per_weight / 8 - self.weight_number_bytes))
            formula = f"{four_bits.bits_per_weight:.3f} bits x matrices inside the layers, {formula}"
        return MemoryPart("weights", weight_bytes + FP32_BYTES * self.trained_parameters + saved_bytes, formula)

    def towers(self) -> MemoryPart:
        """Return the weights of towers, for example of vision, which training on text does not use."""
        size, towers = self.weight_number_bytes, self.shape.towers
        formula = f"{size} bytes x parameters of {' and '.join(towers)}, which stay frozen"
        return MemoryPart("towers", sum(towers.values()) * size, formula)

    def weight_parts(self) -> tuple[MemoryPart, ...]:
        """Return all weights, those of towers as a part of their own."""
        all_weights, tower_part = self.weights(), self.towers()
        if not tower_part.bytes or self.setup.towers_on_host:
            return (all_weights,)
        return replace(all_weights, bytes=all_weights.bytes - tower_part.bytes), tower_part

    def masters(self) -> tuple[MemoryPart, ...]:
        """Return the fp32 copies of trained 16-bit weights; empty if the weights have other types."""
        formula = "4 bytes x trained parameters: the fp32 copies that are updated"
        part = MemoryPart("master weights", FP32_BYTES * self.trained_parameters, formula)
        return (part,) if self.has_masters else ()

    def optimizer(self) -> MemoryPart:
        size_bytes = state_bytes(self.shape, self.setup, self.trained_parameters)
        formula = f"{size_bytes / max(self.trained_parameters, 1):.3g} bytes x trained parameters ({self.setup.optim})"
        return MemoryPart("optimizer", size_bytes, formula)

    def before_training(self, later_bytes: int) -> tuple[MemoryPart, ...]:
        """Return the memory that only the start needs, beyond the `later_bytes` of a step: decomposing a matrix,
        merging an adapter layer by layer, and loading towers for the host to the GPU with the weights."""
        later_bytes += self.optimizer().bytes + sum(part.bytes for part in self.masters())
        peaks: list[tuple[str, int, str]] = []
        if self.setup.mutates_weights:
            largest_bytes = max(map(self._decomposition_bytes, self.setup.adapted(self.shape)), default=0)
            peaks.append(("decomposition", largest_bytes, "the decomposition of the largest matrix"))
        if self.setup.merged_parameters and not self.setup.has_adapter:
            peaks.append(("merge", self.merge_bytes, "the adapter in fp32 and three copies of the largest matrix"))
        if self.setup.towers_on_host and (self.setup.shards == 1 or self.setup.zero_stage == 2):
            peaks.append(("towers loaded", self.towers().bytes, "towers, before they are copied to the host"))
        parts = []
        for name, size_bytes, formula in peaks:
            formula += ", in addition to the memory of a step"
            parts.append(MemoryPart(name, max(0, size_bytes - later_bytes), formula))
            later_bytes = max(0, later_bytes - size_bytes)
        return tuple(parts)

    @property
    def gradient_bytes(self) -> int:
        """Bytes of the gradients of one backward pass."""
        return self.trained_parameters * (HALF_BYTES if self.has_masters else FP32_BYTES)

    @property
    def cast_bytes(self) -> int:
        """Bytes of autocast's 16-bit copies of trained fp32 weights, from the forward to the backward pass."""
        if self.setup.precision == "fp32" or self.has_masters:
            return 0
        if self.setup.has_adapter:
            return HALF_BYTES * self.trained_parameters
        matrix_numbers = sum(linear.inputs * linear.outputs * linear.count for linear in self.shape.linears)
        if self.setup.freezes_layers:
            matrix_numbers = min(matrix_numbers, self.trained_parameters)
        return HALF_BYTES * matrix_numbers

    @property
    def largest_cast_bytes(self) -> int:
        """Bytes of the largest 16-bit copy of a weight. In inference mode torch's autocast keeps no other copy.

        Source: torch's autocast_mode.cpp (issue 158232); under no_grad it keeps those of weights that train.
        """
        if self.setup.precision == "fp32" or self.weight_number_bytes == HALF_BYTES:
            return 0
        return HALF_BYTES * max((linear.inputs * linear.outputs for linear in self.shape.linears), default=0)

    def router_loss(self, tokens: int) -> tuple[MemoryPart, ...]:
        """Return the routers' logits and their softmax, which the model keeps for the backward pass."""
        if not self.setup.router_logits:
            return ()
        size_bytes = 2 * FP32_BYTES * tokens * self.setup.router_logits
        return (MemoryPart("router loss", size_bytes, "8 bytes x tokens x experts x routers"),)

    def unpacking_bytes(self, tokens: int) -> int:
        """Return the bytes of unpacking 4-bit weights: the largest matrix, and peft's copy of the widest result."""
        four_bits = self.setup.four_bits
        linears = quantised_linears(self.shape, four_bits)
        dtype = (four_bits.compute_dtype if four_bits else "") or self.setup.weights
        number_size = FP32_BYTES if dtype == "float32" else HALF_BYTES
        matrix_numbers = max((x.inputs * x.outputs for x in linears), default=0)
        return number_size * matrix_numbers + self.compute_size * tokens * max((x.outputs for x in linears), default=0)

    @property
    def sum_bytes(self) -> int:
        """Bytes of the gradient sum between two passes, which is always fp32 (`training/optimizer.py`)."""
        return FP32_BYTES * self.trained_parameters

    def loss(self, tokens: int) -> MemoryPart:
        """Return the memory of head and loss for `tokens` labels.

        Without chunks these are logits, their log-softmax and two gradients: 12 bytes for each label and class or word
        of the vocabulary, and the tanh of a soft cap. With chunks they are one chunk's fp32 logits with their 16-bit
        copy or the slope of the cap (a fused kernel has only the copy), the gradients of the hidden states and, if the
        head trains, two of its weight: the chunk's, and the sum (fp32 if there are several chunks).
        """
        chunk, vocabulary, hidden_size = self.setup.loss_chunk_tokens, self.class_count, self.shape.hidden_size
        if not self.setup.chunks_loss(tokens):
            size = (12 + (self.compute_size if self._has_soft_cap else 0)) * tokens * vocabulary
            return MemoryPart("head and loss", size, "12 bytes x labels x vocabulary")
        trains_head = self.setup.trains_head
        sum_bytes = FP32_BYTES if tokens > chunk else self.compute_size
        head = (sum_bytes + self.compute_size) * vocabulary * hidden_size if trains_head else 0
        size = min(chunk, tokens) * vocabulary * self._chunk_size + 2 * self.compute_size * tokens * hidden_size + head
        return MemoryPart("head and loss", size, "logits of a chunk, gradients of the hidden states and of the head")

    @property
    def _chunk_size(self) -> int:
        """Bytes of a chunk for each label and word of the vocabulary."""
        if self.setup.fused_loss:
            return self.compute_size
        copy_bytes = 0 if self.compute_size == FP32_BYTES else self.compute_size
        return FP32_BYTES + (FP32_BYTES if self._has_soft_cap else copy_bytes)

    @property
    def _has_soft_cap(self) -> bool:
        return self.shape.logits is not None and self.shape.logits.soft_cap is not None

    def evaluation_logits(self, tokens: int) -> int:
        """Return the bytes of an evaluation's logits, of their fp32 copy if they have 16 bits, and of log-softmax."""
        vocabulary = self.class_count
        copy_bytes = 0 if self.compute_size == FP32_BYTES else self.compute_size
        if not self.setup.chunks_loss(tokens):
            return tokens * vocabulary * (2 * FP32_BYTES + copy_bytes)
        number_bytes = self.compute_size if self.setup.fused_loss else FP32_BYTES + copy_bytes
        return min(tokens, self.setup.loss_chunk_tokens) * vocabulary * number_bytes


@dataclass(frozen=True)
class ModelMemory(Static):
    """Memory of a model with what a layer computes for each token, in rows of `row_tokens`. The memory of a decoder is
    shared out among the encoder's layers and input tokens."""

    row_tokens: int

    @cached_property
    def layer_bytes(self) -> LayerBytes:
        """Bytes of one token in one layer, from the dry run, or else 34 bytes for each number of a 16-bit hidden state,
        and 5 bytes for each head and pair of tokens unless a fused kernel saves no scores. Source: Korthikanti et al.,
        arXiv:2205.05198, section 4.1."""
        if self.setup.counted:
            return self.setup.counted
        setup, width_factor, head_count = self.setup, self.compute_size / HALF_BYTES, self.shape.attention_heads
        has_scores = setup.eager_attention or setup.math_attention or self.shape.attention_dropout
        score_numbers = 5 * head_count * self.row_tokens if has_scores else 0
        saved = int(width_factor * (34 * self.shape.hidden_size + score_numbers))
        return LayerBytes(kept=saved, made=2 * saved, evaluated=2 * saved, largest_kept=saved, largest_made=2 * saved)

    @property
    def kept_layers(self) -> int:
        """Count of layers that save activations: the backward pass ends at the first layer that trains."""
        return self.setup.backward_layers if self.setup.freezes_layers else self.shape.layers

    @property
    def keeps_scores(self) -> bool:
        """Whether attention gives all scores to the backward pass."""
        return self.layer_bytes.made_per_pair >= _RESULTS_OF_SCORES * self.compute_size * self.shape.attention_heads

    @property
    def plain_temporary_bytes(self) -> int:
        """Bytes of one token's short-lived forward results in one layer, without those of adapters.

        fp32 results (of norms) of a 16-bit model are left out, because later results reuse their memory.
        """
        layer_bytes = self.layer_bytes
        wide_bytes = layer_bytes.wide if self.weight_number_bytes == HALF_BYTES and self.shape.head == CAUSAL else 0
        return int(max(0, layer_bytes.made - layer_bytes.kept - self.adapter_temporaries(self.row_tokens) - wide_bytes))

    @property
    def layer_input(self) -> int:
        """Bytes of a layer's input for one token, which gradient checkpointing stores in the weights' data type."""
        layer_count = self.shape.layers + self.shape.decoder_layers * self._answer_share
        return int(self.weight_number_bytes * self.shape.hidden_size * layer_count / self.shape.layers)

    @property
    def _answer_share(self) -> float:
        """Tokens of an answer for each token of the input."""
        return self.setup.target_tokens / self.row_tokens


def largest_parameter(shape: ModelShape) -> int:
    """Return the count of numbers in the largest matrix of the model."""
    matrix_numbers = [linear.inputs * linear.outputs for linear in shape.linears]
    return max([shape.vocabulary * shape.hidden_size, *matrix_numbers])


def initial_adapter_bytes(setup: TrainingSetup) -> int:
    """Return the bytes of adapters' initial fp32 values, if these are subtracted from the weights; otherwise 0."""
    return 4 * (setup.trained_parameters - setup.saved_parameters) if setup.mutates_weights else 0


def state_bytes(shape: ModelShape, setup: TrainingSetup, trained: int) -> int:
    """Return the bytes of the optimizer state of `trained` weights, both in memory and in a checkpoint."""
    optimizer = OPTIMIZERS[setup.optim]
    if optimizer.hidden_state_bytes is not None:
        hidden_numbers = sum(linear.matrix_parameters for linear in shape.linears if not linear.is_head)
        # Hidden matrices are assumed to be the same share of the trained weights as of all weights.
        hidden_numbers = hidden_numbers * trained // shape.parameters if setup.freezes_layers else hidden_numbers
        return int(optimizer.hidden_state_bytes * hidden_numbers + optimizer.state_bytes * (trained - hidden_numbers))
    if not optimizer.factored_state:
        return int(optimizer.state_bytes * trained)
    tensor_sizes = [*(AdapterMemory(shape, setup).adapter_matrices() if setup.has_adapter else _weights(shape))]
    if setup.has_adapter and (saved_numbers := trained - sum(map(prod, tensor_sizes))):
        # The other trained weights are modules saved in full, counted as one matrix as wide as the layers.
        tensor_sizes.append((max(saved_numbers, 0) // shape.hidden_size, shape.hidden_size, 1))
    size_bytes = FP32_BYTES * sum(count * (rows + columns) for rows, columns, count in tensor_sizes)
    # Sizes of the trained weights are assumed to be distributed as those of all weights.
    return size_bytes * trained // shape.parameters if setup.freezes_layers else size_bytes


def _weights(shape: ModelShape) -> Iterator[tuple[int, int, int]]:
    """Yield (rows, columns, count) of all weights. A vector has 0 columns, and a tied head counts once."""
    for linear in shape.linears:
        if not (linear.is_head and shape.tied_embeddings):
            yield linear.outputs, linear.inputs, linear.count
        if linear.has_bias:
            yield linear.outputs, 0, linear.count
    for part in shape.parts:
        # A table whose rows are unknown is taken to have rows as wide as the layers.
        rows = part.rows or (part.parameters_each // shape.hidden_size if part.is_embedding else 0)
        yield (rows, part.parameters_each // rows, part.count) if rows else (part.parameters_each, 0, part.count)
