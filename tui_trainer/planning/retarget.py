"""Adapt the plan of a run that resumes under other conditions: on another GPU or node, on the CPU, in another number of
processes, or in smaller passes.

The effective batch, the precision and the steps of the plan stay, so that training gives the same result. Only the
split of the batch into forward passes depends on the memory that is free.
"""

from dataclasses import replace
from typing import Any

from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.describe import full_name
from tui_trainer.hardware.diagnosis import GpuChoice, choose_gpu, training_device
from tui_trainer.hardware.facts import Gpu, Hardware
from tui_trainer.hardware.gpu_models import FLASH_KERNELS, version_text
from tui_trainer.hardware.processor import BF16_FLAGS
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.fit import MemoryBudget, largest_micro_batch, longest_row_tokens, parts_of_run, with_dry_run
from tui_trainer.planning.measured_steps import step_key
from tui_trainer.planning.memory import estimate as memory
from tui_trainer.planning.memory.host import host_memory, host_memory_problems
from tui_trainer.planning.plan import Plan
from tui_trainer.planning.planned import Planned, estimated, exact
from tui_trainer.planning.processes import cards_for, split_over, threads_of, tightest_device
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.runs.events import MicroBatchReduced
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.units import format_bytes, quantity


def retarget_plan(plan: Plan, hardware: Hardware, chosen: GpuChoice) -> tuple[Plan, str]:
    """Return the plan for the chosen device of this machine, and a clause about the changes, which may be empty.

    If `chosen` is None, a run stays on the CPU, or on its GPU if that is available, else it moves to the GPU with most
    free memory. Raises ConfigError if the run cannot resume here, and InputError for a choice that does not exist.
    """
    if plan.device == "cpu":
        gpu = choose_gpu(hardware, chosen)[0] if isinstance(chosen, int) else None
        device, reason = training_device(hardware, gpu, chosen)
        if gpu is None or device == "cpu":
            return plan, ""
        words = f"resuming on GPU {gpu.index} ({full_name(gpu)}) instead of the CPU"
        return _retarget_device(plan, hardware, TrainingDevice(device=device, reason=reason, gpu=gpu), words)
    if chosen == "none":
        words = f"resuming on the CPU instead of {_gpu_words(plan)}"
        return _retarget_device(plan, hardware, TrainingDevice.of(hardware, chosen), words)
    planned_gpu = _planned_gpu(plan, hardware)
    gpu = planned_gpu if chosen is None and planned_gpu else choose_gpu(hardware, chosen)[0]
    device, reason = training_device(hardware, gpu)
    if gpu is None or device == "cpu":
        hint = "resume on a machine with a GPU, or on the CPU: tui-trainer resume RUN --gpu none"
        message = f"this run trains on a GPU ({one_line(plan.device_name)}), and {reason}"
        raise ConfigError(Problem(message=message, hint=hint))
    if gpu.cuda_uuid == plan.gpu_uuid or (chosen is None and not plan.gpu_uuid):
        return plan, ""
    words = f"resuming on GPU {gpu.index} ({full_name(gpu)}) instead of {_gpu_words(plan)}"
    words += "" if planned_gpu else ", which is not available"
    return _retarget_device(plan, hardware, TrainingDevice(device=device, reason=reason, gpu=gpu), words)


def retarget_processes(plan: Plan, hardware: Hardware, count: int | None, nodes: int | None = None) -> tuple[Plan, str]:
    """Return the plan with `count` processes per node on `nodes` nodes, and a clause about the change, empty if there
    is none. None keeps the plan's number of nodes, and its processes per node as far as there are GPUs. Raises
    ConfigError for more processes than GPUs or rows."""
    old_count, planned_gpu, nodes = plan.processes.value, _planned_gpu(plan, hardware), nodes or plan.nodes
    uuids = [gpu.cuda_uuid for gpu in cards_for(hardware, planned_gpu)] if planned_gpu else []
    per_node = count or (min(plan.processes_per_node, len(uuids)) if uuids else plan.processes_per_node)
    total_count, gpu_uuids = per_node * nodes, tuple(uuids[:per_node]) if per_node > 1 else ()
    if is_asked(plan.config) and total_count > 1:
        raise ConfigError(Problem(message=f"Unsloth trains in one process, not in {total_count}"))
    if (total_count, nodes) == (old_count, plan.nodes) and set(gpu_uuids) == set(plan.gpu_uuids):
        return plan, ""
    if uuids and per_node > len(uuids):
        raise ConfigError(Problem(message=f"{per_node} processes need one GPU each, but only {len(uuids)} can be used"))
    if total_count > plan.effective_batch_size.value:
        message = f"{total_count} processes need a row each, but a step has only {plan.effective_batch_size.value} rows"
        raise ConfigError(Problem(message=message))
    change = f"resuming with {total_count} {'process' if total_count == 1 else 'processes'} instead of {old_count}"
    change += f", on {quantity(nodes, 'node')} instead of {plan.nodes}" if nodes != plan.nodes else ""
    step_rows_total = plan.per_device_train_batch_size.value * plan.gradient_accumulation_steps.value * old_count
    process_rows = -(-(step_rows_total if plan.packing.value else plan.effective_batch_size.value) // total_count)
    micro_batch, eval_batch = min(plan.per_device_train_batch_size.value, process_rows), plan.per_device_eval_batch_size
    if plan.config.evaluation.per_device_eval_batch_size == "auto":
        eval_batch = exact(min(eval_batch.value, micro_batch), eval_batch.reason)
    changes: dict[str, Any] = {
        "processes": exact(total_count, change),
        "nodes": nodes,
        "gpu_uuids": gpu_uuids,
        "threads": _threads(plan, hardware, per_node),
        "padding_share": plan.padding_share if micro_batch == plan.per_device_train_batch_size.value else None,
        "per_device_train_batch_size": exact(micro_batch, change),
        "gradient_accumulation_steps": exact(-(-process_rows // micro_batch), change),
        "per_device_eval_batch_size": eval_batch,
        **_unknown_times(change, change),
        # The old key is for measurements with another number of processes.
        "shape_key": "",
    }
    regrouped = plan.model_copy(update=changes)
    shape, setup = plan.model_shape(), _setup_of_process(plan.training_setup, regrouped, old_count)
    setup, _ = with_dry_run(plan.config, shape, setup)
    target = TrainingDevice.planned(hardware, plan.device, plan.device_reason, plan.gpu_uuid)
    room = MemoryBudget.of(hardware, tightest_device(hardware, target, gpu_uuids), per_node)
    return _split(regrouped, hardware, shape, setup, room, change)


def _setup_of_process(setup: TrainingSetup, plan: Plan, before: int) -> TrainingSetup:
    """Return the setup of one process of `plan`, from a setup of one of `before` processes."""
    strategy = plan.strategy.value if plan.is_group else "ddp"
    setup = split_over(setup, strategy, plan.processes.value, plan.processes_per_node)
    rows = -(-setup.most_rows * before // plan.processes.value)
    # The old peaks were measured with another number of processes.
    return replace(setup, most_rows=rows, measured_peaks=())


def _threads(plan: Plan, hardware: Hardware, processes: int) -> Planned[int]:
    return threads_of(hardware, processes) if plan.config.training.cpu_threads == "auto" else plan.threads


def _unknown_times(step_reason: str, duration_reason: str) -> dict[str, Any]:
    step_figure = estimated(None, f"known only after a measured step: {step_reason}")
    duration_figure = estimated(None, duration_reason)
    unknown_figures = {"step_seconds": step_figure, "duration_seconds": duration_figure}
    return {**unknown_figures, "beginning_seconds": None, "compute_rates": None, "busy_words": ""}


def with_smaller_passes(plan: Plan, event: MicroBatchReduced, reason: str, packed_width: int = 0) -> Plan:
    """Return the plan with the smaller passes of `event`, after memory ran out. `packed_width` is the new width of
    packed rows in tokens, 0 if unchanged.

    The plan loses its step key, because the next measured steps belong to another key.
    """
    changes: dict[str, Any] = {"out_of_memory_events": plan.out_of_memory_events + 1}
    if event.what == "evaluation":
        changes["per_device_eval_batch_size"] = exact(event.rows, reason)
    else:
        changes |= {
            "padding_share": None,
            "per_device_train_batch_size": exact(event.rows, reason),
            "gradient_accumulation_steps": exact(event.passes, reason),
            "packed_width": packed_width or plan.packed_width,
            "shape_key": "",
        }
    return plan.model_copy(update=changes)


def setup_of(plan: Plan, target: TrainingDevice) -> tuple[ModelShape, TrainingSetup]:
    """Return the shape of the model and the training setup of the plan on another device, for computing memory."""
    shape = plan.model_shape()
    is_offloaded = plan.cpu_offload.value and target.device == "cuda"
    setup = replace(plan.training_setup, device=target.device, cpu_offload=is_offloaded, measured_peaks=())
    return shape, with_dry_run(plan.config, shape, setup)[0]


def _gpu_words(plan: Plan) -> str:
    return f"the planned GPU ({one_line(plan.device_name)})"


def _planned_gpu(plan: Plan, hardware: Hardware) -> Gpu | None:
    """Return the GPU of the plan; None if it cannot be used here."""
    usable_gpus = (gpu for gpu in hardware.gpus if gpu.visible and not gpu.problem)
    return next((gpu for gpu in usable_gpus if gpu.cuda_uuid and gpu.cuda_uuid == plan.gpu_uuid), None)


def _retarget_device(plan: Plan, hardware: Hardware, target: TrainingDevice, words: str) -> tuple[Plan, str]:
    if obstacles := _obstacles(plan, hardware, target):
        raise ConfigError([Problem(message=f"{words}: {obstacle}", hint=hint) for obstacle, hint in obstacles])
    shape, setup = setup_of(plan, target)
    room = MemoryBudget.of(hardware, target, plan.processes_per_node)
    split_plan, words = _split(plan, hardware, shape, setup, room, words)
    gpu, config, processes = target.gpu, plan.config, plan.processes.value
    micro_batch, tokens = split_plan.per_device_train_batch_size.value, longest_row_tokens(config, setup)
    rows = -(-min(plan.effective_batch_size.value, plan.train_rows.value) // processes)
    key = step_key(config, hardware.libraries, shape, setup, micro_batch, rows, tokens, processes)
    changes: dict[str, Any] = {
        "device": target.device,
        "device_name": full_name(gpu) if gpu else hardware.cpu_name,
        "device_reason": target.reason,
        "gpu_uuid": gpu.cuda_uuid if gpu else "",
        "cpu_name": hardware.cpu_name,
        "threads": _threads(plan, hardware, plan.processes_per_node),
        **_unknown_times("the device changed", "the device changed since the start"),
        "shape_key": str(key),
    }
    return split_plan.model_copy(update=changes), words


def _obstacles(plan: Plan, hardware: Hardware, target: TrainingDevice) -> list[tuple[str, str]]:
    """Return (message, hint) for each feature that the run needs and this device lacks."""
    if target.device == "cuda":
        return _obstacles_on_gpu(plan, hardware, target)
    config, precision, optim = plan.config, plan.precision.value, plan.config.training.optim
    attention = config.model.attn_implementation
    is_emulated = precision == "bf16" and hardware.cpu_flags and not hardware.cpu_flags & BF16_FLAGS
    is_obstacle = {
        "4-bit weights need a GPU": config.tuning.in_four_bits,
        f"the optimizer {optim} runs on a GPU only": OPTIMIZERS[optim].needs_gpu,
        "the run computes in fp16, which needs a GPU": precision == "fp16",
        f"{attention} runs on a GPU only": attention.startswith(("flash_attention", "flex_attention")),
        "the run computes in bf16, which this CPU only emulates": is_emulated,
    }
    return [(obstacle, "resume on a machine with a GPU") for obstacle, applies in is_obstacle.items() if applies]


def _obstacles_on_gpu(plan: Plan, hardware: Hardware, target: TrainingDevice) -> list[tuple[str, str]]:
    config, obstacles = plan.config, []
    capability = target.gpu.capability if target.gpu else None
    if plan.precision.value == "bf16" and target.has_native_bf16 is False and capability:
        version = version_text(capability)
        message = f"the run computes in bf16, which a GPU of compute capability {version} does not support"
        obstacles.append((message, "choose a GPU of compute capability 8.0 or newer: --gpu N"))
    for library in sorted({library for _, library in config.libraries}):
        if hardware.libraries.get(library) is None:
            obstacles.append((f"the run needs {library}, which is not installed here", f"uv pip install {library}"))
    kernel_name = config.model.attn_implementation
    kernel = FLASH_KERNELS.get(kernel_name)
    if kernel and (
        missing := kernel.missing_reason(hardware.libraries) or (kernel.too_old(capability) if capability else "")
    ):
        obstacles.append((f"{kernel_name} {missing}", "install it here, or choose another GPU: --gpu N"))
    return obstacles


def _split(
    plan: Plan, hardware: Hardware, shape: ModelShape, setup: TrainingSetup, room: MemoryBudget, words: str
) -> tuple[Plan, str]:
    """Return the plan with its forward passes if they fit into free memory, and otherwise with the largest equal parts
    that fit. Also return `words`, extended if the passes change. Raises ConfigError if one row does not fit."""
    micro, eval_batch = plan.per_device_train_batch_size.value, plan.per_device_eval_batch_size.value
    accumulation = plan.gradient_accumulation_steps.value
    parts = parts_of_run(shape, setup, plan.config, micro, eval_batch)
    if room.free_bytes is not None and memory.total_bytes(parts) > room.usable_share * room.free_bytes:
        rows = micro * accumulation
        if not plan.packing.value:
            rows = -(-plan.effective_batch_size.value // plan.processes.value)
        fitting_rows = largest_micro_batch(shape, setup, plan.config, room, micro)
        micro = -(-rows // -(-rows // fitting_rows))
        if micro != plan.per_device_train_batch_size.value:
            words += f", with micro-batches of {quantity(micro, 'row')} instead of "
            words += f"{plan.per_device_train_batch_size.value}"
        accumulation, eval_batch = -(-rows // micro), min(eval_batch, micro)
        parts = parts_of_run(shape, setup, plan.config, micro, eval_batch)
    needed_bytes = memory.total_bytes(parts)
    if room.total_bytes is not None and needed_bytes > room.total_bytes:
        message = f"the run needs about {format_bytes(needed_bytes)} of memory with a micro-batch of {micro}, "
        message += f"but {room.where} has {format_bytes(room.total_bytes)}"
        raise ConfigError(Problem(message=message, hint="choose another GPU (--gpu N), or resume on another machine"))
    host_parts, host_bytes = host_memory(shape, setup, plan.config, plan.loader_workers.value, plan.processes_per_node)
    if problems := host_memory_problems(host_bytes, hardware):
        raise ConfigError(problems)
    changes = {
        "host_memory_parts": host_parts,
        "host_memory_bytes": host_bytes,
        "training_setup": setup,
        "memory_key": "",
        "padding_share": plan.padding_share if micro == plan.per_device_train_batch_size.value else None,
        "per_device_train_batch_size": exact(micro, words),
        "gradient_accumulation_steps": exact(accumulation, words),
        "per_device_eval_batch_size": exact(eval_batch, words),
        "memory_parts": parts,
        "memory_bytes": estimated(needed_bytes, plan.memory_bytes.reason),
    }
    return plan.model_copy(update=changes), words
