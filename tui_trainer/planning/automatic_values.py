"""Decide values of `auto` on this machine, each with its reason: device, precision, weights, loss, loader."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from tui_trainer.config.fields import names_in
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import Device, GpuChoice, choose_gpu, lack_of_compiler, training_device
from tui_trainer.hardware.environment import determinism_problems
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.gpu_models import FLASH_KERNELS, version_text
from tui_trainer.hardware.processor import BF16_FLAGS
from tui_trainer.methods.optimizers import ADAFACTOR, OPTIMIZER_KEY, OPTIMIZERS
from tui_trainer.models import targets
from tui_trainer.models.adapter_targets import ExpertTensor, find_adapted, needs_built_model
from tui_trainer.models.adapters import should_continue_adapter, starting_adapter
from tui_trainer.models.added_tokens import row_parameters
from tui_trainer.models.config_json import OVERFLOWS_IN_FP16
from tui_trainer.models.facts import ADAPTER_WEIGHTS
from tui_trainer.models.files.weights import read_file_header
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.heads import CLASSIFYING_HEADS
from tui_trainer.models.modules import FEW_LABELS, Linear
from tui_trainer.models.routers import ROUTER_LOSS_KEY, Routers, routers_of
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.attention import EAGER, MATH, Attention, AttentionMachine, AttentionRows, attention_of
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.planning.training_setup import Dtype, Precision, TrainingSetup
from tui_trainer.tasks import find_task
from tui_trainer.tuning.freeze_layers import planned_part

PRECISION_KEY = "training.mixed_precision"
DTYPE_KEY = "model.dtype"
INIT_KEY = "tuning.init_lora_weights"
# Autocast copies each weight and input. From this width on bf16 was faster on both CPUs that were measured
# (`duration.BF16_GAIN`), and kernels that oneDNN compiles for each size are a small part of the memory.
CPU_BF16_LEAST_WIDTH = 512


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingDevice:
    """The device of a run. `gpu` is None for a CPU."""

    device: Device
    reason: str
    gpu: Gpu | None

    @classmethod
    def of(cls, hardware: Hardware, chosen_gpu: GpuChoice = None) -> Self:
        gpu, _ = choose_gpu(hardware, chosen_gpu)
        device, reason = training_device(hardware, gpu, chosen_gpu)
        return cls(device=device, reason=reason, gpu=gpu if device == "cuda" else None)

    @classmethod
    def planned(cls, hardware: Hardware, device: Device, reason: str, gpu_uuid: str) -> Self:
        """Return the device of a plan as it is on this machine now. If its GPU is gone, the device is chosen again."""
        if device == "cpu":
            return cls(device=device, reason=reason, gpu=None)
        gpus = [gpu for gpu in hardware.gpus if gpu_uuid and gpu.cuda_uuid == gpu_uuid]
        return cls(device=device, reason=reason, gpu=gpus[0]) if gpus else cls.of(hardware)

    @property
    def has_native_bf16(self) -> bool | None:
        """True for a GPU that computes bf16 natively; None if it does not report its capability."""
        abilities = self.gpu.abilities if self.gpu else None
        return abilities.bf16 if abilities else None


def precision(
    loaded: LoadedConfig, hardware: Hardware, target: TrainingDevice, shape: ModelShape
) -> Planned[Precision]:
    """Return the data type of matmuls, requested or chosen. `precision_problems` checks whether it is possible."""
    requested = loaded.config.training.mixed_precision
    if requested != "auto":
        return exact("fp32" if requested == "no" else requested, f"from {loaded.where(PRECISION_KEY)}")
    return best_precision(hardware, target, shape)


def best_precision(hardware: Hardware, target: TrainingDevice, shape: ModelShape) -> Planned[Precision]:
    """Return the data type of matmuls that `auto` chooses here."""
    if target.device == "cuda":
        return _gpu_precision(target, shape)
    bf16_flags = sorted(hardware.cpu_flags & BF16_FLAGS)
    if not bf16_flags:
        return exact("fp32", "this CPU only emulates bf16, which is slower than fp32")
    if shape.hidden_size < CPU_BF16_LEAST_WIDTH:
        return exact("fp32", f"at hidden size {shape.hidden_size}, casts to bf16 cost more time than bf16 saves")
    return exact("bf16", f"native on this CPU ({', '.join(bf16_flags)})")


def _gpu_precision(target: TrainingDevice, shape: ModelShape) -> Planned[Precision]:
    capability = target.gpu.capability if target.gpu else None
    if target.has_native_bf16 is None or capability is None:
        return exact("fp32", "the GPU does not report its capability")
    if target.has_native_bf16:
        return exact("bf16", f"native from compute capability 8.0; this GPU has {version_text(capability)}")
    lack = f"no bf16 with compute capability {version_text(capability)}"
    if shape.model_type in OVERFLOWS_IN_FP16:
        return exact("fp32", f"{lack}, and {shape.model_type} overflows in fp16")
    return exact("fp16", f"{lack}; the loss is scaled")


def precision_problems(loaded: LoadedConfig, hardware: Hardware, target: TrainingDevice) -> list[Problem]:
    """Return a problem for each setting that this device or its libraries do not support."""
    problems = [loaded.problem(*refusal) for refusal in _refusals(loaded.config, hardware, target)]
    if loaded.config.training.deterministic and target.device == "cuda":
        problems += [loaded.with_source(problem) for problem in determinism_problems()]
    return problems


def _refusals(config: Config, hardware: Hardware, target: TrainingDevice) -> Iterator[tuple[str, str, str]]:
    """Yield the key, the message and the hint of each unsupported setting."""
    requested_type, on_cpu, libraries = config.training.mixed_precision, target.device == "cpu", hardware.libraries
    clause, bf16_flags = "and this run is on the CPU", hardware.cpu_flags & BF16_FLAGS
    if requested_type == "fp16" and on_cpu:
        alternative = "bf16, which this CPU supports" if bf16_flags else "auto"
        yield PRECISION_KEY, f"fp16 needs a GPU, {clause}", f"set it to {alternative}"
    if requested_type == "bf16" and target.has_native_bf16 is False:
        hint = "set it to auto, which chooses fp16 with a scaled loss, or fp32 for models that overflow in fp16"
        yield PRECISION_KEY, f"{target.reason} does not support bf16", hint
    if requested_type == "bf16" and on_cpu and hardware.cpu_flags and not bf16_flags:
        message = "this CPU does not support bf16 (neither avx512_bf16 nor amx_bf16), and emulation is slower than fp32"
        yield PRECISION_KEY, message, "set it to auto"
    if config.model.dtype == "float16" and not config.tuning.has_adapter:
        message = "trainable weights cannot be float16, because their small updates would be lost"
        yield DTYPE_KEY, message, "set it to auto; training.mixed_precision sets the type of matmuls"
    key, name = OPTIMIZER_KEY, config.training.optim
    optimizer = OPTIMIZERS[name]
    if optimizer.needs_gpu and on_cpu:
        yield key, f"{name} needs a GPU, {clause}", f"use {ADAFACTOR}, which has almost no state and runs on a CPU"
    elif optimizer.library and libraries.get(optimizer.library) is None:
        hint = f"install it: uv pip install {optimizer.library}; or use {ADAFACTOR}"
        yield key, f"{name} needs {optimizer.library}, which is not installed", hint
    elif optimizer.compiles and (lack := lack_of_compiler(libraries, target.device)):
        yield key, f"{name} compiles its step, but {lack}", f"install what is missing, or use {ADAFACTOR}"
    key, name = "model.attn_implementation", config.model.attn_implementation
    kernel, capability = FLASH_KERNELS.get(name), target.gpu.capability if target.gpu else None
    if (kernel or name == "flex_attention") and on_cpu:
        yield key, f"{name} needs a GPU, {clause}", "set it to auto"
    elif kernel and (lack := kernel.missing_reason(libraries)):
        yield key, f"{name} {lack}", "set it to auto, because torch has its own flash kernel"
    elif kernel and capability and (refusal := kernel.too_old(capability)):
        yield key, f"{name} {refusal}", "set it to auto"


def weights_dtype(
    loaded: LoadedConfig, target: TrainingDevice, chosen: Precision, shape: ModelShape, processes: int = 1
) -> Planned[Dtype]:
    """Return the data type of the model's own weights. Frozen weights have that of matmuls. Trained weights have fp32,
    or on one GPU bf16 with fp32 copies, which saves the casts of autocast and the bytes of fp32 activations."""
    setting, trains = loaded.config.model.dtype, not loaded.config.tuning.has_adapter
    if setting != "auto":
        copies_text = "; bf16 weights are copies of the fp32 master weights that the optimizer updates"
        return exact(
            setting, f"from {loaded.where(DTYPE_KEY)}{copies_text if trains and setting == 'bfloat16' else ''}"
        )
    is_alone = target.device == "cuda" and processes == 1 and not loaded.config.distributed.cpu_offload
    if trains and is_alone and chosen == "bf16" and shape.stored_dtype in ("bfloat16", "float16"):
        return exact("bfloat16", f"stored in {shape.stored_dtype}; the optimizer updates fp32 master weights")
    if trains:
        reason = "the weights are trained, and 16 bits would lose small updates"
        if shape.has_grouped_experts and chosen != "fp32":
            reason += "; without FSDP2, experts are computed in fp32 too, because autocast does not cover grouped_mm"
        return exact("float32", reason)
    dtype_by_precision: dict[Precision, Dtype] = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    if loaded.config.tuning.in_four_bits:
        reason = "dtype of the weights that are not in 4 bits; 4-bit weights are unpacked to this dtype"
        return exact(dtype_by_precision[chosen], reason)
    return exact(dtype_by_precision[chosen], "the weights are frozen, so matmuls use them without a cast")


def _expert_wait_clause(weights: Dtype, target: TrainingDevice, shape: ModelShape) -> str:
    """Return the end of a sentence about experts that are multiplied one by one; empty if they are not.

    Source: torch has a kernel for all experts with bf16 on compute capability 9 and 10 only (`_grouped_mm_cuda` in
    aten/native/cuda/GroupedBlas.cpp); its fallback asks the card for the number of tokens of each expert.
    """
    capability = target.gpu.capability if target.gpu else None
    if not shape.has_grouped_experts or capability is None or (weights == "bfloat16" and capability[0] in (9, 10)):
        return ""
    condition = f"on compute capability {version_text(capability)}" if weights == "bfloat16" else f"in {weights}"
    return f"; {condition}, experts are computed one by one, and the host waits for the GPU in each layer"


def loss_chunk(loaded: LoadedConfig, target: TrainingDevice, shape: ModelShape) -> Planned[int]:
    """Return the number of tokens whose logits exist at one time; 0 for all tokens of a micro-batch."""
    requested_tokens, key = loaded.config.training.loss_chunk_tokens, "training.loss_chunk_tokens"
    if shape.logits is None:
        if shape.head in CLASSIFYING_HEADS:
            return exact(0, "a classifier has few logits")
        reason = f"{shape.model_type} changes its logits in a way that cannot be split into chunks"
        return exact(0, f"{reason}, so they are computed all at once")
    if requested_tokens != "auto":
        return exact(requested_tokens, f"from {loaded.where(key)}")
    if target.device == "cuda":
        reason = "auto: on a GPU, computing all logits at once takes much memory and saves little time"
        tuning = loaded.config.tuning
        trains_rows = find_task(loaded.config.task.type).trained_token_ids(loaded.config)
        if tuning.has_adapter and not targets.saves_head(shape, tuning.modules_to_save) and not trains_rows:
            return exact(FEW_LABELS, reason)
        # Each chunk adds to the gradient of the head and moves 12 bytes for each number of it. A fused loss moves 6
        # bytes for each token and word. Both take equally long in chunks of 2 x hidden size tokens.
        chunk_tokens = max(FEW_LABELS, 2 * shape.hidden_size)
        return exact(chunk_tokens, f"{reason}; chunks are larger because the head is trained")
    return exact(0, "auto: on a CPU, computing all logits at once is faster")


class Chosen(NamedTuple):
    """Values that `choose` has decided, as figures of a plan. Only a mixture of experts has a router loss."""

    precision: Planned[Precision]
    weights_dtype: Planned[Dtype]
    loss_chunk_tokens: Planned[int]
    attention: Attention
    router_aux_loss_coef: Planned[float] | None


def choose(
    loaded: LoadedConfig, hardware: Hardware, target: TrainingDevice, shape: ModelShape, initial_setup: TrainingSetup
) -> tuple[TrainingSetup, Chosen]:
    """Return the training setup, and its decided values as figures of a plan.

    `initial_setup` has what no setting decides: the rows of the data, and the counts of a dry run. It is not changed.
    Raises ConfigError for targets that match nothing.
    """
    precision_figure = precision(loaded, hardware, target, shape)
    dtype = weights_dtype(loaded, target, precision_figure.value, shape, initial_setup.processes)
    dtype = dtype.model_copy(update={"reason": dtype.reason + _expert_wait_clause(dtype.value, target, shape)})
    chunk_figure = loss_chunk(loaded, target, shape)
    config, training, tuning = loaded.config, loaded.config.training, loaded.config.tuning
    has_lora = tuning.has_adapter
    # A classifier's head is trained with the adapters, named or not.
    saved_names = ",".join((*names_in(tuning.modules_to_save), *targets.head_modules(shape)))
    lora_targets: tuple[str, ...] = ()
    if has_lora:
        lora_targets = targets.match_targets(shape, tuning.target_modules, saved_names, tuning.target_parameters)
    linears, experts = targets.adapted_linears(shape, lora_targets), tuple[ExpertTensor, ...]()
    needs_model = has_lora and needs_built_model(shape, tuning)
    if needs_model:
        model = find_task(config.task.type).model_config(config, shape.vocabulary, shape.labels)
        parts = find_adapted(model, shape, tuning, saved_names)
        linears, experts = parts.linears, parts.experts
        if targets.is_all_linear(tuning.target_modules):
            lora_targets = (targets.ALL_LINEAR,)
    trained_count, saved_count, token_count = shape.parameters, 0, 0
    if has_lora:
        token_count = len(find_task(config.task.type).trained_token_ids(config))
        saved_count = targets.saved_module_parameters(shape, saved_names)
        trained_count = targets.adapter_parameters(linears, tuning.r, tuning.use_dora) + saved_count
        trained_count += sum(tensor.adapter_parameters for tensor in experts) + token_count * row_parameters(shape)
    if tuning.mutates_weights:
        _require_rank(loaded, linears)
    trained_part = None
    if (layer_pattern := tuning.trainable_layers) and not has_lora:
        model = find_task(config.task.type).model_config(config, shape.vocabulary, shape.labels)
        trained_part = planned_part(model, shape.head, shape.labels, layer_pattern)
        trained_count = trained_part.parameters
    routers, router_weight = _router_loss(loaded, shape)
    attention = _attention(config, hardware, target, shape, initial_setup, precision_figure.value)
    setup = replace(
        initial_setup,
        device=target.device,
        precision=precision_figure.value,
        weights=dtype.value,
        method=tuning.method,
        four_bits=FourBits.of(config, shape),
        trained_parameters=trained_count,
        saved_parameters=saved_count,
        trained_tokens=token_count,
        saves_head=trained_part.trains_output if trained_part else has_lora and targets.saves_head(shape, saved_names),
        freezes_layers=trained_part is not None,
        backward_layers=trained_part.backward_layers if trained_part else 0,
        lora_rank=tuning.r if has_lora else 0,
        lora_targets=lora_targets,
        lora_linears=linears if needs_model else (),
        lora_experts=experts,
        lora_parameters=names_in(tuning.target_parameters) if has_lora else (),
        lora_dropout=has_lora and tuning.lora_dropout > 0,
        use_dora=has_lora and tuning.use_dora,
        mutates_weights=tuning.mutates_weights,
        merged_parameters=_merged_parameters(config, shape),
        optim=training.optim,
        gradient_checkpointing=training.gradient_checkpointing,
        eager_attention=attention.kernel == EAGER,
        math_attention=target.device == "cuda" and attention.kernel == MATH,
        repeats_keys=target.device == "cuda" and attention.repeats_keys,
        head=shape.head,
        provider=config.model.provider,
        host_towers=bool(shape.towers) and config.model.towers == "host",
        loss_chunk_tokens=chunk_figure.value,
        router_logits=routers.logits if routers and router_weight and router_weight.value else 0,
        compiled=training.torch_compile,
        tf32=training.tf32,
    )
    return setup, Chosen(precision_figure, dtype, chunk_figure, attention, router_weight)


def _router_loss(loaded: LoadedConfig, shape: ModelShape) -> tuple[Routers | None, Planned[float] | None]:
    """Return the routers of a mixture of experts and their loss's weight; None for other models. Raises ConfigError."""
    config = loaded.config
    requested_weight = config.training.router_aux_loss_coef
    if requested_weight == 0:
        return None, None
    model = find_task(config.task.type).model_config(config, shape.vocabulary, shape.labels)
    routers = routers_of(model, shape)
    if routers is None or not routers.logits:
        if requested_weight == "auto":
            return None, None
        message = f"is {requested_weight}, but transformers computes no router loss for {shape.model_type}"
        raise ConfigError(loaded.problem(ROUTER_LOSS_KEY, message, "set it to auto, or to 0"))
    source = f"from {loaded.where(ROUTER_LOSS_KEY)}"
    if requested_weight == "model":
        return routers, exact(routers.coefficient, f"{source}: the coefficient of the model's config")
    if requested_weight != "auto":
        return routers, exact(requested_weight, source)
    if routers.is_on:
        return routers, exact(routers.coefficient, "auto: from the model's config, which requests router logits")
    reason = f"auto: off, as in the model's config, whose coefficient is {routers.coefficient:g}"
    return routers, exact(0.0, reason)


def _merged_parameters(config: Config, shape: ModelShape) -> int:
    """Return how many parameters the adapter has that is merged into the model; 0 without one, or if its file is
    damaged, which other code reports."""
    adapter = starting_adapter(config, shape.head)
    if adapter is None or should_continue_adapter(config.tuning):
        return 0
    with suppress(ConfigError):
        return sum(tensor.parameters for tensor in read_file_header(adapter.folder / ADAPTER_WEIGHTS).values())
    return 0


def _require_rank(loaded: LoadedConfig, linears: Sequence[Linear]) -> None:
    """Raise ConfigError if a matrix is too small for the rank of adapters that start from it."""
    tuning = loaded.config.tuning
    max_rank = min((min(linear.inputs, linear.outputs) for linear in linears), default=tuning.r)
    if tuning.r > max_rank:
        message = f"is {tuning.r}, but {tuning.init_lora_weights} allows at most {max_rank} for the narrowest matrix"
        hint = f"set it to {max_rank} or less, or {INIT_KEY} to default"
        raise ConfigError(loaded.problem("tuning.r", message, hint))


def _attention(
    config: Config,
    hardware: Hardware,
    target: TrainingDevice,
    shape: ModelShape,
    setup: TrainingSetup,
    chosen: Precision,
) -> Attention:
    longest_row = setup.longest_row or config.data.max_length
    # The last token of a row is a label alone.
    lengths_vary = 0 < setup.document_tokens < longest_row - 1
    widths_vary = lengths_vary and not setup.packed and not config.training.torch_compile
    rows = AttentionRows(packed=setup.packed, longest=longest_row, widths_vary=widths_vary)
    machine = AttentionMachine(
        device=target.device,
        capability=target.gpu.capability if target.gpu else None,
        precision=chosen,
        libraries=hardware.libraries,
        deterministic=config.training.deterministic,
    )
    return attention_of(shape, rows, machine, config.model.attn_implementation)


def loader_workers(loaded: LoadedConfig, target: TrainingDevice) -> Planned[int]:
    """Return the number of threads that prepare batches ahead of the training.

    Rows are tokens on the disk when training begins, also with `data.streaming`, and only need to be copied. The rule
    `data_loading` suggests more than one thread after it has measured a wait.
    """
    requested_count, key = loaded.config.dataloader.num_workers, "dataloader.num_workers"
    if requested_count != "auto":
        return exact(requested_count, f"from {loaded.where(key)}")
    if target.device == "cuda":
        return exact(1, "auto: rows are already tokenised, and one thread makes batches while the GPU computes")
    return exact(0, "auto: the CPU is busy training, so batches are made between steps")
