"""The choices of a training setup that decide its memory and its speed."""

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from tui_trainer.hardware.diagnosis import Device
from tui_trainer.methods.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from tui_trainer.methods.tuning_methods import TUNING_METHODS
from tui_trainer.models.adapter_targets import ExpertTensor
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.heads import CAUSAL, CLASSIFYING_HEADS, Head
from tui_trainer.models.modules import Linear, uses_chunks
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import adapted_linears

Dtype = Literal["float32", "bfloat16", "float16"]
Precision = Literal["fp32", "bf16", "fp16"]

LAYER_KEY: Final = "layer key"
"""Mark of a field that decides the memory of a layer: a new value needs a dry run (`planning/memory/dry_run.py`)."""
RARE_LAYER_KEY: Final = "rare layer key"
"""Mark of a `LAYER_KEY` that joins the key of a dry run only if it is set, so that earlier dry runs stay valid."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerBytes:
    """Bytes of one token in one layer, counted by a dry run. `kept`: saved for the backward pass. `made`: all that a
    forward pass allocates. `wide`: fp32 bytes that are not saved. `evaluated`: allocated by an evaluation.
    `made_per_pair`: what each further token of the row adds to `made`."""

    kept: int
    made: int
    wide: int = 0
    evaluated: int = 0
    largest_kept: int = 0
    largest_made: int = 0
    made_per_pair: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredPeak:
    """Peak memory, in bytes, of runs with `rows` rows in a training pass and `eval_rows` in an evaluation pass."""

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
    """Settings of 4-bit weights with `qlora`, otherwise None. `weights` is then the data type of all other weights."""
    trained_parameters: int = 0
    """Count of trained parameters: all with `full`, otherwise those of adapters and of modules that train in full."""
    saved_parameters: int = 0
    """Count of the parameters in modules that train in full beside adapters. 16-bit modules have an fp32 copy."""
    saves_head: bool = False
    """True if the head trains in full beside adapters or frozen layers."""
    trained_tokens: int = 0
    """Count of new tokens whose rows of embedding and head train beside adapters. Each pass copies both matrices."""
    freezes_layers: bool = False
    """True if `full` freezes a part of the model (`tuning.trainable_layers`)."""
    backward_layers: int = 0
    """Count of the last layers, which the backward pass goes through if `freezes_layers`."""
    lora_rank: Annotated[int, LAYER_KEY] = 0
    lora_targets: Annotated[tuple[str, ...], LAYER_KEY] = ()
    """Names of the linear layers with an adapter, as in `ModelShape.linears`, or a regular expression."""
    lora_linears: tuple[Linear, ...] = ()
    """Linear layers with an adapter, if names do not identify them (`models/adapter_targets.py`)."""
    lora_experts: tuple[ExpertTensor, ...] = ()
    """Expert tensors with an adapter. Each pass adds the adapter's update to a copy of them."""
    lora_parameters: Annotated[tuple[str, ...], RARE_LAYER_KEY] = ()
    """Names in `tuning.target_parameters`."""
    lora_dropout: Annotated[bool, LAYER_KEY] = False
    use_dora: Annotated[bool, RARE_LAYER_KEY] = False
    merged_parameters: int = 0
    """Count of the parameters of an adapter that is merged into the model before training; 0 without one."""
    mutates_weights: bool = False
    """True if adapters are initialized from the frozen weights. They are then saved with twice their rank."""
    optim: str = DEFAULT_OPTIMIZER
    gradient_checkpointing: bool = False
    packed: Annotated[bool, LAYER_KEY] = False
    """True for packed rows. Attention then gets a mask of documents on a CPU, and their lengths on a GPU."""
    eager_attention: Annotated[bool, LAYER_KEY] = False
    math_attention: Annotated[bool, RARE_LAYER_KEY] = False
    """True if torch has no fused attention kernel on this GPU, so that all attention scores exist at once, in fp32."""
    repeats_keys: Annotated[bool, RARE_LAYER_KEY] = False
    """True if attention copies keys and values for each query head."""
    loss_chunk_tokens: int = 0
    """Count of tokens whose logits exist at one time; 0 for the whole micro-batch."""
    router_logits: int = 0
    """Count of logits of all routers for each token; 0 without a router loss."""
    fused_loss: bool = False
    """True if a fused kernel turns the logits of a chunk into their gradient, in the data type of matmuls."""
    compiled: Annotated[bool, LAYER_KEY] = False
    tf32: bool = True
    """True to use TF32 matmuls on GPUs that support them."""
    longest_row: int = 0
    """Count of tokens in the longest row of a pass; 0 for `data.max_length`."""
    row_documents: int = 1
    """Largest count of documents in a row of data. Packed documents share a row of a pass; others do not."""
    most_rows: int = 0
    """Largest count of rows in a step; 0 for the effective batch."""
    document_tokens: float = 0.0
    """Mean length of a document in tokens; 0 for packed rows, and if it is unknown."""
    narrowest_pass: int = 0
    """Width of the narrowest padded pass, in tokens; 0 if unknown."""
    label_share: float = 1.0
    """Share of a causal model's tokens that have labels; in conversations, those of the assistant turns."""
    head: Annotated[Head, LAYER_KEY] = CAUSAL
    provider: str = "transformers"
    """Library that loads and adapts the model."""
    target_tokens: int = 0
    """Tokens of the longest answer of an encoder-decoder, assumed for every row; otherwise 0."""
    processes: int = 1
    """Count of processes that train the model together."""
    shards: int = 1
    """Count of processes over which weights, gradients and optimizer state are sharded."""
    zero_stage: int = 0
    """Stage of DeepSpeed's ZeRO: 2 shards gradients and optimizer state, 3 the weights as well; 0 without it."""
    cpu_offload: bool = False
    """True if the shards are on the host, and are copied to the GPU layer by layer."""
    host_towers: bool = False
    """True if towers, for example of vision, are kept in host memory."""
    counted: LayerBytes | None = None
    """Counts of the dry run; None if it failed."""
    measured_peaks: tuple[MeasuredPeak, ...] = ()
    """Memory peaks of earlier runs with the same model, settings and machine."""

    def chunks_loss(self, labels: int) -> bool:
        """Return whether the logits of a pass with this count of labels are computed in chunks."""
        return uses_chunks(labels, self.loss_chunk_tokens) or (self.fused_loss and self.loss_chunk_tokens > 0)

    def adapted(self, shape: ModelShape) -> tuple[Linear, ...]:
        """Return the linear layers of the model that get an adapter."""
        is_looked_up = self.lora_linears or self.lora_experts
        return self.lora_linears if is_looked_up else adapted_linears(shape, self.lora_targets)

    @property
    def towers_on_host(self) -> bool:
        """True if only towers stay in host memory, and not the whole model as with `cpu_offload`."""
        return self.host_towers and self.device == "cuda" and not self.cpu_offload

    @property
    def compiles_each_size(self) -> bool:
        """True if oneDNN compiles and keeps a kernel for each size of a matmul, as on a CPU in 16 bits."""
        return self.device == "cpu" and self.precision != "fp32"

    @property
    def trains_head(self) -> bool:
        """True if the head trains."""
        is_whole = (self.method == "full" and not self.freezes_layers) or self.saves_head
        return is_whole or (self.trained_tokens > 0 and self.head not in CLASSIFYING_HEADS)

    @property
    def has_adapter(self) -> bool:
        """True if the model's own weights are frozen, and LoRA adapters train."""
        return TUNING_METHODS[self.method].has_adapter
