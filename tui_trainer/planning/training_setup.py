"""How a model is trained, as far as memory and time depend on it."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from tui_trainer.hardware.diagnosis import Device
from tui_trainer.methods.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.models.adapter_targets import ExpertTensor
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.heads import CAUSAL, CLASSIFYING, Head
from tui_trainer.models.modules import Linear, in_chunks
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import adapted

Dtype = Literal["float32", "bfloat16", "float16"]
Precision = Literal["fp32", "bf16", "fp16"]

LAYER_KEY: Final = "layer key"
"""Marks a field that the memory of a layer depends on: each value needs a dry run (`planning/memory/dry_run.py`)."""
RARE_LAYER_KEY: Final = "rare layer key"
"""Marks such a field that is part of the key only if it is set, so that earlier dry runs stay valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Bytes of one token in one layer, counted by a dry run: `kept` are saved for the backward pass, `made` are all
    that a forward pass allocates. `wide` are fp32 bytes that are not saved, `evaluated` those of an evaluation.
    `made_per_pair` is how much each further token of the row adds to `made`."""

    kept: int
    made: int
    wide: int = 0
    evaluated: int = 0
    largest_kept: int = 0
    largest_made: int = 0
    made_per_pair: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak:
    """Peak memory, in bytes, of runs with these rows in a pass of training and of evaluation."""

    rows: int
    eval_rows: int
    bytes: int
    runs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingSetup:
    """Choices that decide the speed and the memory of training.

    `precision` is the data type of matmuls, `weights` that of the model's own weights. They differ under autocast: fp32
    weights with matmuls in bf16. Adapters are always fp32.
    """

    device: Annotated[Device, LAYER_KEY] = "cpu"
    precision: Annotated[Precision, LAYER_KEY] = "fp32"
    weights: Annotated[Dtype, LAYER_KEY] = "float32"
    method: Annotated[str, LAYER_KEY] = "full"
    four_bits: FourBits | None = None
    """With `qlora`: how the frozen matrices are packed; `weights` is then what all others are kept in."""
    trained_parameters: int = 0
    """All of them with `full`; else those of the adapters and of the modules that are saved."""
    saved_parameters: int = 0
    """With an adapter: those of them that are trained as a whole, in `weights`, with a copy in fp32 where that is 16
    bits."""
    saves_head: bool = False
    """With an adapter or frozen layers: whether the matrix that makes logits is trained as a whole."""
    trained_tokens: int = 0
    """With an adapter: new tokens whose rows of embedding and head train, in a copy of these that each pass makes."""
    freezes_layers: bool = False
    """With `full`: whether a part of the model is frozen (`tuning.trainable_layers`)."""
    backward_layers: int = 0
    """Where a part is frozen: how many layers the backward pass goes through, the last ones."""
    lora_rank: Annotated[int, LAYER_KEY] = 0
    lora_targets: Annotated[tuple[str, ...], LAYER_KEY] = ()
    """Names of the linear layers with an adapter, as in `ModelShape.linears`, or a regular expression."""
    lora_linears: tuple[Linear, ...] = ()
    """The same layers, if their names do not identify them (`models/adapter_targets.py`)."""
    lora_experts: tuple[ExpertTensor, ...] = ()
    """Expert tensors with an adapter; each pass copies them with their update."""
    lora_parameters: Annotated[tuple[str, ...], RARE_LAYER_KEY] = ()
    """Names in `tuning.target_parameters`."""
    lora_dropout: Annotated[bool, LAYER_KEY] = False
    use_dora: Annotated[bool, RARE_LAYER_KEY] = False
    merged_parameters: int = 0
    """Count of the parameters of an adapter that is merged into the model before training; 0 without one."""
    mutates_weights: bool = False
    """True for an adapter that is initialized from the frozen weights, and saved with twice its rank."""
    optim: str = DEFAULT_OPTIMIZER
    gradient_checkpointing: bool = False
    packed: Annotated[bool, LAYER_KEY] = False
    """Attention with a mask of documents (on a CPU) or by their lengths (on a GPU)."""
    eager_attention: Annotated[bool, LAYER_KEY] = False
    math_attention: Annotated[bool, RARE_LAYER_KEY] = False
    """torch has no fused kernel for it on this card: all scores are there, in fp32."""
    repeats_keys: Annotated[bool, RARE_LAYER_KEY] = False
    """Keys and values of fewer heads are copied for each head of queries."""
    loss_chunk_tokens: int = 0
    """Tokens whose logits are there at one time; 0: those of the whole micro-batch."""
    router_logits: int = 0
    """Of each token, where routers have a loss: numbers of all of them together."""
    fused_loss: bool = False
    """A chunk's logits become their gradient in one kernel, in the dtype of matmuls."""
    compiled: Annotated[bool, LAYER_KEY] = False
    tf32: bool = True
    """TF32 matmuls, on cards that have them."""
    longest_row: int = 0
    """Tokens of the longest row that a pass gets; 0: `data.max_length`."""
    row_documents: int = 1
    """Documents of a row at the most: packed they share a row of a pass, padded each of them is one."""
    most_rows: int = 0
    """Rows that a step can have at the most; 0: those of the effective batch."""
    document_tokens: float = 0.0
    """Mean labels of a document where rows are padded; 0: they are full."""
    narrowest_pass: int = 0
    """Tokens of the narrowest pass where rows are padded; 0: not known."""
    label_share: float = 1.0
    """Of what a causal model reads, the share that is learnt: of a chat the assistant's turns."""
    head: Annotated[Head, LAYER_KEY] = CAUSAL
    provider: str = "transformers"
    """Who loads and adapts the model."""
    target_tokens: int = 0
    """Behind an encoder: tokens of the longest answer, with which every row is reckoned."""
    processes: int = 1
    """Processes that train the model together."""
    shards: int = 1
    """Processes over which weights, gradients and the optimizer's state are split."""
    zero_stage: int = 0
    """Of DeepSpeed: 2 splits gradients and the optimizer's state alone, 3 the weights as well."""
    cpu_offload: bool = False
    """All of these are on the host, and go to the card layer by layer."""
    host_towers: bool = False
    """Towers for images are kept in the machine's memory."""
    counted: LayerBytes | None = None
    """What a dry run has counted; None where it failed."""
    measured_peaks: tuple[MeasuredPeak, ...] = ()
    """Memory peaks of runs with the same model, settings and machine."""

    def chunks_loss(self, labels: int) -> bool:
        """Return whether the logits of a pass with this count of labels are computed in chunks."""
        return in_chunks(labels, self.loss_chunk_tokens) or (self.fused_loss and self.loss_chunk_tokens > 0)

    def adapted(self, shape: ModelShape) -> tuple[Linear, ...]:
        """Return the linear layers with an adapter."""
        looked_up = self.lora_linears or self.lora_experts
        return self.lora_linears if looked_up else adapted(shape, self.lora_targets)

    @property
    def towers_on_host(self) -> bool:
        """True if towers stay in host memory. With `cpu_offload` the whole model does, which counts separately."""
        return self.host_towers and self.device == "cuda" and not self.cpu_offload

    @property
    def compiles_each_size(self) -> bool:
        """Whether each number of rows that are multiplied costs a kernel: oneDNN compiles and keeps them for 16 bits on
        a CPU."""
        return self.device == "cpu" and self.precision != "fp32"

    @property
    def trains_head(self) -> bool:
        """Whether the matrix that makes logits is trained."""
        whole = (self.method == "full" and not self.freezes_layers) or self.saves_head
        return whole or (self.trained_tokens > 0 and self.head not in CLASSIFYING)

    @property
    def has_adapter(self) -> bool:
        """Whether the model's own weights are frozen, and LoRA adapters train."""
        return TUNING_METHODS[self.method].has_adapter
