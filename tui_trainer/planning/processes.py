"""Decide how many processes train one model together, on which GPUs, and with which strategy."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal

from tui_trainer.config.fields import names_in
from tui_trainer.config.load import LoadedConfig, ResolvedLoaded
from tui_trainer.config.sections import Config, step_rows
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.diagnosis import GpuChoice, usable_gpus
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.processor import training_threads
from tui_trainer.models.heads import CLASSIFYING_HEADS
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.automatic_values import INIT_KEY, TrainingDevice
from tui_trainer.planning.batch_cut import EFFECTIVE_BATCH_KEY, PROCESSES
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tasks import find_task
from tui_trainer.units import quantity

# Strategies that divide training over processes, and the settings that they do not support.

Strategy = Literal["ddp", "fsdp", "hsdp", "deepspeed-2", "deepspeed-3"]
SPLITTING: tuple[Strategy, ...] = ("fsdp", "hsdp")
"""Strategies that shard the model: over all processes, or over those of one node."""
NODES, STRATEGY, OFFLOAD = "distributed.nodes", "distributed.strategy", "distributed.cpu_offload"
ZERO_STAGES: Mapping[Strategy, int] = {"deepspeed-2": 2, "deepspeed-3": 3}
"""ZeRO stages of DeepSpeed, by strategy."""
INSTALL_DEEPSPEED = "install it: uv pip install deepspeed"
# Optimizers whose state torch shards in the same way as the weights.
_SHARDABLE_OPTIMIZERS = ("adamw_torch_fused", "sgd")
_Refusal = tuple[str, str, str]
"""(key of a setting, why it is refused, what to set instead)"""


def split_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return problems of settings that contradict a model that is split over processes."""
    cause = f"{OFFLOAD} = true" if loaded.config.distributed.cpu_offload else f"{STRATEGY} = fsdp or hsdp"
    return [
        loaded.problem(key, f"{message}, but {cause} shards the model", hint)
        for key, message, hint in sharding_refusals(loaded.config)
    ]


def sharding_refusals(config: Config) -> Iterator[_Refusal]:
    """Yield a refusal for each setting that does not work with a sharded model."""
    if config.tuning.in_four_bits:
        condition = f" without {OFFLOAD}" if config.distributed.cpu_offload else ""
        hint = f"set tuning.method = lora, or {STRATEGY} = ddp{condition}"
        yield "tuning.method", "4-bit weights cannot be sharded", hint
    if config.training.torch_compile:
        yield "training.torch_compile", "compiled layers cannot be sharded", "set it to false"
    yield from _optimizer_refusals(config)
    yield from _frozen_part_refusals(config)


def _frozen_part_refusals(config: Config) -> Iterator[_Refusal]:
    if config.tuning.mutates_weights:
        hint = f"set it to default, or {STRATEGY} = ddp"
        yield INIT_KEY, "sharding has not been tested with adapters that are initialised from the weights", hint
    if config.tuning.trainable_layers:
        hint = f"leave it empty, or set {STRATEGY} = ddp"
        yield "tuning.trainable_layers", "a partly frozen model cannot be sharded", hint
    trained_ids = range(0)
    with suppress(ConfigError):  # the model is missing, which another check reports
        trained_ids = find_task(config.task.type).trained_token_ids(config)
    if config.model.add_tokens or trained_ids:
        hint = f"leave it empty, or set {STRATEGY} = ddp"
        yield "model.add_tokens", "embeddings with new tokens cannot be sharded", hint


def _optimizer_refusals(config: Config) -> Iterator[_Refusal]:
    if config.training.optim not in _SHARDABLE_OPTIMIZERS:
        hint = f"set it to {' or '.join(_SHARDABLE_OPTIMIZERS)}"
        yield "training.optim", f"the optimizer state of {config.training.optim} cannot be sharded", hint


def deepspeed_problems(
    loaded: LoadedConfig, hardware: Hardware, strategy: Strategy, setup: TrainingSetup
) -> list[Problem]:
    """Return problems of settings that contradict DeepSpeed's ZeRO; empty if another strategy is planned."""
    if strategy not in ZERO_STAGES:
        return []
    if hardware.libraries.get("deepspeed") is None:
        message = f"{strategy} needs DeepSpeed, which is not installed"
        return [loaded.problem(STRATEGY, message, f"{INSTALL_DEEPSPEED}; or set {STRATEGY} = fsdp")]
    return [
        loaded.problem(key, f"{message} with {STRATEGY} = {strategy}", hint)
        for key, message, hint in _deepspeed_refusals(loaded.config, setup)
    ]


def _deepspeed_refusals(config: Config, setup: TrainingSetup) -> Iterator[_Refusal]:
    if config.tuning.in_four_bits:
        yield "tuning.method", "4-bit weights cannot be trained", f"set tuning.method = lora, or {STRATEGY} = ddp"
    if config.training.torch_compile:
        yield "training.torch_compile", "layers cannot be compiled", "set it to false"
    if setup.precision == "fp16":
        hint = f"set it to bf16 or no, or {STRATEGY} = ddp"
        yield "training.mixed_precision", "fp16 loss scaling is not supported", hint
    yield from _optimizer_refusals(config)
    if setup.weights == "float16" and setup.method == "full":
        yield "model.dtype", "float16 weights cannot be trained", "set it to bfloat16 or float32"
    saves_modules = names_in(config.tuning.modules_to_save) or setup.head in CLASSIFYING_HEADS
    if setup.has_adapter and setup.weights != "float32" and saves_modules:
        # The model's weights have 16 bits and adapters fp32, but a flat tensor has one data type.
        message = "16-bit modules that are trained whole, beside adapters, cannot be sharded"
        yield "model.dtype", message, f"set it to float32, or {STRATEGY} = fsdp"
    yield from _frozen_part_refusals(config)
    if config.tuning.loraplus_lr_ratio != 1:
        yield "tuning.loraplus_lr_ratio", "all weights share one learning rate", f"set it to 1, or {STRATEGY} = fsdp"
    if config.tuning.use_dora and setup.has_adapter:
        yield "tuning.use_dora", "weights that DoRA reads in other layers cannot be gathered", "set it to false"


NOT_SHARDED: Planned[Strategy] = exact("ddp", "one process")
ONE_PROCESS: Planned[int] = exact(1, "one process")
NO_OFFLOAD: Planned[bool] = exact(False, "weights stay on the device that uses them")


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Processes of a run, with the GPU of each if there are several."""

    count: Planned[int] = ONE_PROCESS
    nodes: int = 1
    strategy: Planned[Strategy] = NOT_SHARDED
    cpu_offload: Planned[bool] = NO_OFFLOAD
    gpu_uuids: tuple[str, ...] = ()
    """UUIDs of the GPUs of the first node's processes."""

    @property
    def per_node(self) -> int:
        return self.count.value // self.nodes


def tightest_device(hardware: Hardware, target: TrainingDevice, gpu_uuids: tuple[str, ...]) -> TrainingDevice:
    """Return the device of the process with the least free memory."""
    gpus = [gpu for gpu in hardware.gpus if gpu.cuda_uuid in gpu_uuids]
    return replace(target, gpu=min(gpus, key=lambda gpu: gpu.memory_free_bytes or 0)) if gpus else target


def processes_of(
    loaded: ResolvedLoaded, hardware: Hardware, target: TrainingDevice, chosen_gpu: GpuChoice = None
) -> Group:
    """Return the processes of a run. `auto` gives one for each GPU of the same model as the GPU of `target`.

    Every node has as many processes as this one. Raises ConfigError if the number is not possible.
    """
    node_group, nodes = _on_one_node(loaded, hardware, target, chosen_gpu), loaded.config.distributed.nodes
    if nodes == 1:
        return node_group
    count = node_group.count.value
    node_words = f"{count} {'process' if count == 1 else 'processes'} each: {node_group.count.reason}"
    reason = f"{nodes} nodes (from {loaded.where(NODES)}) with {node_words}"
    return replace(node_group, nodes=nodes, count=exact(_with_rows(loaded, nodes * count), reason))


def _on_one_node(loaded: ResolvedLoaded, hardware: Hardware, target: TrainingDevice, chosen_gpu: GpuChoice) -> Group:
    requested = loaded.config.distributed.processes
    if is_asked(loaded.config):
        return Group(count=exact(1, "Unsloth trains in one process"))
    if target.gpu is None:
        if requested in ("auto", 1):
            return Group(count=exact(1, "one process uses all cores of the CPU"))
        return Group(count=exact(_with_rows(loaded, int(requested)), f"from {loaded.where(PROCESSES)}"))
    cards = cards_for(hardware, target.gpu)
    if requested == "auto":
        return _automatic(loaded, cards, chosen_gpu)
    requested_count = _with_rows(loaded, int(requested))
    if requested_count > len(cards):
        message = f"is {requested_count}, but only {quantity(len(cards), 'GPU')} can be used"
        raise ConfigError(loaded.problem(PROCESSES, message, f"set it to {len(cards)}, or to auto"))
    return _group_on(cards[:requested_count], f"from {loaded.where(PROCESSES)}")


def strategy_of(
    loaded: LoadedConfig, group: Group, fits: Callable[[int], bool], *, offloads: bool = False
) -> Planned[Strategy]:
    """Return the strategy: each process has a copy of the model, or a shard of it.

    `fits(shards)` returns whether passes of one row fit into memory if the model is sharded over that many processes.
    `offloads` is true for CPU offload. Raises ConfigError for a setup that cannot be sharded.
    """
    requested_strategy, processes = loaded.config.distributed.strategy, group.count.value
    if processes == 1 and not offloads:
        return NOT_SHARDED
    has_nodes = group.nodes > 1 and group.per_node > 1
    if requested_strategy == "ddp":
        if offloads:
            message = f"is ddp, which keeps all weights on each GPU, but {OFFLOAD} = true keeps them on the host"
            raise ConfigError(loaded.problem(STRATEGY, message, "set it to fsdp"))
        return exact(requested_strategy, f"from {loaded.where(STRATEGY)}")
    if requested_strategy == "auto" and offloads:
        if problems := split_problems(loaded):
            raise ConfigError(problems)
        return exact("fsdp", "offloaded weights are copied to a GPU layer by layer")
    if requested_strategy == "auto":
        if fits(1):
            return exact("ddp", "the model and its gradients fit in each process")
        if problems := split_problems(loaded):
            return exact("ddp", f"the model and its gradients do not fit, but {problems[0].key} prevents sharding")
        if has_nodes and fits(group.per_node):
            return exact("hsdp", "the model fits when it is sharded within each node")
        if not fits(processes):
            return exact("fsdp", "the model does not fit even when sharded, but sharding comes closest")
        return exact("fsdp", "the model fits only when sharded")
    if requested_strategy not in ZERO_STAGES and (problems := split_problems(loaded)):
        raise ConfigError(problems)
    if requested_strategy == "hsdp" and not has_nodes:
        message = "is hsdp, which needs several nodes with several processes each"
        raise ConfigError(loaded.problem(STRATEGY, message, "set it to fsdp, which shards over all processes"))
    return exact(requested_strategy, f"from {loaded.where(STRATEGY)}")


def split_over(setup: TrainingSetup, strategy: Strategy, processes: int, per_node_count: int) -> TrainingSetup:
    """Return the setup of one process, with the number of shards and the ZeRO stage of the strategy."""
    shards = {"ddp": 1, "hsdp": per_node_count}.get(strategy, processes)
    return replace(setup, shards=shards, zero_stage=ZERO_STAGES.get(strategy, 0))


def offload_of(loaded: LoadedConfig, strategy: Strategy, on_card: bool) -> Planned[bool]:
    """Return whether weights, gradients and optimizer state stay on the host."""
    if not loaded.config.distributed.cpu_offload:
        return NO_OFFLOAD
    reason = f"from {loaded.where(OFFLOAD)}"
    if on_card:
        return exact(True, reason)
    return exact(strategy in (*SPLITTING, *ZERO_STAGES), f"{reason}, which has no effect on a CPU")


def cards_for(hardware: Hardware, first: Gpu) -> list[Gpu]:
    """Return the usable GPUs: the given one, then GPUs of the same name, then the others."""
    other_gpus = [gpu for gpu in usable_gpus(hardware) if gpu.index != first.index]
    return [first, *sorted(other_gpus, key=lambda gpu: (gpu.name != first.name, gpu.index))]


def _automatic(loaded: ResolvedLoaded, cards: list[Gpu], chosen_gpu: GpuChoice) -> Group:
    if isinstance(chosen_gpu, int):
        return Group(count=exact(1, f"GPU {chosen_gpu} was chosen"))
    alike_gpus = [gpu for gpu in cards if gpu.name == cards[0].name]
    if len(alike_gpus) == 1:
        return Group(count=exact(1, "one GPU" if len(cards) == 1 else "the other GPUs are different models"))
    rows = step_rows(loaded.config)
    if rows < len(alike_gpus):
        return _group_on(alike_gpus[:rows], f"{len(alike_gpus)} GPUs, but a step has only {rows} rows")
    return _group_on(alike_gpus, f"{len(alike_gpus)} identical GPUs")


def _group_on(cards: list[Gpu], reason: str) -> Group:
    gpu_uuids = tuple(gpu.cuda_uuid for gpu in cards) if len(cards) > 1 else ()
    return Group(count=exact(len(cards), reason), gpu_uuids=gpu_uuids)


def _with_rows(loaded: ResolvedLoaded, count: int) -> int:
    rows = step_rows(loaded.config)
    if count > rows:
        key, value_text, hint = PROCESSES, str(count), f"set it to {rows} or less, or raise {EFFECTIVE_BATCH_KEY}"
        if (nodes := loaded.config.distributed.nodes) > 1:
            key, value_text = NODES, f"{nodes}, which makes {count} processes"
            hint = f"use fewer nodes, or raise {EFFECTIVE_BATCH_KEY}"
        message = f"is {value_text}, but a step has {rows} rows, and each process needs at least one"
        raise ConfigError(loaded.problem(key, message, hint))
    return count


def requested_threads(loaded: LoadedConfig, hardware: Hardware, processes: int = 1) -> Planned[int]:
    """Return the number of threads of torch's kernels in each process: the setting, or the machine's for `auto`."""
    requested_count, key = loaded.config.training.cpu_threads, "training.cpu_threads"
    if requested_count == "auto":
        return threads_of(hardware, processes)
    return exact(requested_count, f"from {loaded.where(key)}")


def threads_of(hardware: Hardware, processes: int = 1) -> Planned[int]:
    """Return the number of threads of torch's kernels in each of `processes` processes, which share the cores."""
    cores, thread_count = hardware.usable_cores, training_threads(hardware.usable_cores)
    reason = f"{cores} usable cores, one left for other work" if thread_count < cores else f"all {cores} usable cores"
    if processes > 1:
        thread_count, reason = max(1, thread_count // processes), f"{reason}, shared by {processes} processes"
    return exact(thread_count, reason)
