"""Find settings that contradict each other, and settings that do not suit the machine."""

from dataclasses import replace

from tui_trainer.config.editing import refused_values
from tui_trainer.config.fields import is_pattern, names_in
from tui_trainer.config.load import LoadedConfig, ResolvedLoaded, all_settings
from tui_trainer.config.mixture import WEIGHTS_KEY, parse_weights
from tui_trainer.errors import ConfigError, Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.methods.lr_schedules import LR_SCHEDULES, schedules_with
from tui_trainer.methods.optimizers import DEFAULT as DEFAULT_OPTIMIZER
from tui_trainer.methods.optimizers import OPTIMIZER_KEY, OPTIMIZERS
from tui_trainer.methods.tuning_methods import BITSANDBYTES, METHOD_KEY
from tui_trainer.models.adapter_targets import PARAMETERS_KEY
from tui_trainer.models.routers import ROUTER_LOSS_KEY
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.targets import MODULES_KEY
from tui_trainer.models.unsloth import PACKAGE_NAME as UNSLOTH
from tui_trainer.models.unsloth import PROVIDER, is_asked
from tui_trainer.planning.automatic_values import INIT_KEY, TrainingDevice
from tui_trainer.planning.batch_cut import PROCESSES, batch_problems
from tui_trainer.planning.disk import space_words
from tui_trainer.planning.fit import MemoryBudget, needed_bytes, with_dry_run
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.tasks import find_task, task_names
from tui_trainer.tasks.parts.scores import METRIC_KEY, metric_problems
from tui_trainer.terminal.safe_text import one_line
from tui_trainer.tracking.contract import tracker_problems
from tui_trainer.units import format_bytes

# Free space that stays free: file systems slow down and other programs fail on a full disk.
DISK_MARGIN = 1.05


def shape_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return problems with the sizes in [model.scratch]."""
    scratch = loaded.config.model.scratch
    width, heads, key_value_heads = scratch.hidden_size, scratch.num_attention_heads, scratch.key_value_heads
    problems = []
    if width % heads or (width // heads) % 2:
        message = f"is {heads}, which does not divide hidden_size {width} into heads of an even size"
        valid_counts = [n for n in range(1, width // 2 + 1) if width % n == 0 and (width // n) % 2 == 0]
        nearest_counts = sorted(sorted(valid_counts, key=lambda n: abs(n - heads))[:4])
        hint = "valid values: " + ", ".join(map(str, nearest_counts)) if nearest_counts else ""
        problems.append(loaded.problem("model.scratch.num_attention_heads", message, hint))
    elif heads % key_value_heads:
        message = f"is {key_value_heads}, which does not divide num_attention_heads {heads}"
        fit = [str(n) for n in range(1, heads + 1) if heads % n == 0]
        problems.append(loaded.problem("model.scratch.num_key_value_heads", message, "valid values: " + ", ".join(fit)))
    return problems


def setting_problems(loaded: LoadedConfig, eval_rows: int | None = None) -> list[Problem]:
    """Return problems of settings that contradict each other, which are known without the machine. `eval_rows` is the
    number of held-out rows; None before the data is read."""
    config = loaded.config
    problems = [*shape_problems(loaded), *batch_problems(loaded), *provider_problems(loaded)]
    has_no_eval_data = config.data.eval_fraction == 0 and not config.data.eval_path
    if config.evaluation.early_stopping_patience and has_no_eval_data and eval_rows == 0:
        message = "needs held-out data, but data.eval_fraction is 0"
        problems.append(loaded.problem("evaluation.early_stopping_patience", message, "set data.eval_fraction = 0.1"))
    problems += _task_problems(loaded)
    if not any(problem.key == WEIGHTS_KEY for problem in problems):
        try:
            parse_weights(config.data.paths, config.data.weights)
        except ConfigError as error:
            problems += [loaded.with_source(problem) for problem in error.problems]
    problems += [loaded.with_source(problem) for problem in tracker_problems(names_in(config.logging.report_to))]
    if config.targets.score and config.evaluation.metric_for_best_model == "loss":
        message = f"is {config.targets.score:g}, which needs a score, but {METRIC_KEY} is set to loss"
        hint = f"set {METRIC_KEY} to a score, or set targets.loss instead"
        problems.append(loaded.problem("targets.score", message, hint))
    if config.tuning.trainable_layers and (config.tuning.has_adapter or config.is_from_scratch):
        reason = "random weights cannot be frozen" if config.is_from_scratch else "the model's own weights are frozen"
        hint = "leave it empty" if config.is_from_scratch else f'leave it empty, or set {METHOD_KEY} = "full"'
        message = f"is {config.tuning.trainable_layers}, but {reason}"
        problems.append(loaded.problem("tuning.trainable_layers", message, hint))
    training = config.training
    if OPTIMIZERS[training.optim].hidden_keys and config.tuning.has_adapter:
        message = f"is {training.optim}, which is meant for full weight matrices, but {config.tuning.method} trains "
        message += "narrow adapters"
        hint = f'set it to {DEFAULT_OPTIMIZER}, or tuning.method = "full"'
        problems.append(loaded.problem(OPTIMIZER_KEY, message, hint))
    schedule = LR_SCHEDULES[training.lr_scheduler_type]
    if training.min_lr_rate and not schedule.has_floor:
        message = f"is {training.min_lr_rate:g}, but the {training.lr_scheduler_type} schedule has no minimum rate"
        hint = f"set it to 0, or choose the schedule {schedules_with('has_floor', 'or')}"
        problems.append(loaded.problem("training.min_lr_rate", message, hint))
    if config.tuning.loraplus_lr_ratio != 1 and not config.tuning.has_adapter:
        message = f"is {config.tuning.loraplus_lr_ratio:g}, but tuning.method = {config.tuning.method} has no adapter"
        problems.append(loaded.problem("tuning.loraplus_lr_ratio", message, "set it to 1, or tuning.method to lora"))
    if (target_parameters := config.tuning.target_parameters) and not config.tuning.has_adapter:
        message = f"is {one_line(target_parameters, 80)}, but tuning.method = {config.tuning.method} has no adapter"
        problems.append(loaded.problem(PARAMETERS_KEY, message, "leave it empty, or set tuning.method to lora"))
    problems += _init_problems(loaded)
    for name in ("num_decay_steps", "decay_type"):
        key, value = f"training.{name}", getattr(training, name)
        if not schedule.has_decay_steps and loaded.origin(key).by_user and value != all_settings()[key].default:
            message = f"is {value:g}" if isinstance(value, float) else f"is {value}"
            message += f", but the {training.lr_scheduler_type} schedule does not use it"
            hint = f"remove it, or choose the schedule {schedules_with('has_decay_steps', 'or')}"
            problems.append(loaded.problem(key, message, hint))
    peak_rate, end_rate = training.learning_rate, schedule.end_rate
    if peak_rate != "auto" and peak_rate <= end_rate:
        message = f"is {peak_rate:g}, but the {training.lr_scheduler_type} schedule decays to {end_rate:g}"
        problems.append(loaded.problem("training.learning_rate", message, "choose a higher rate or another schedule"))
    return problems


def _init_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return problems with initial values of adapters that the tuning method does not support."""
    tuning = loaded.config.tuning
    init, reason, hint = tuning.init_lora_weights, "", "set it to default"
    if init != "default" and not tuning.has_adapter:
        reason, hint = f"tuning.method = {tuning.method} has no adapter", f"{hint}, or tuning.method to lora"
    elif tuning.mutates_weights and tuning.in_four_bits:
        reason = "4-bit weights cannot be decomposed: the remaining weights would be rounded to 4 bits again, "
        reason += "and the saved adapter would not fit the original weights"
        hint += ", or tuning.method to lora"
    elif tuning.mutates_weights and tuning.use_dora:
        reason, hint = (
            f"{init} changes the weights whose norms DoRA learns",
            f"{hint}, or tuning.use_dora to false",
        )
    elif tuning.mutates_weights and tuning.target_parameters:
        reason, hint = "this is not tested with tensors of experts", f"{hint}, or leave {PARAMETERS_KEY} empty"
    elif tuning.mutates_weights and loaded.config.model.add_tokens:
        reason, hint = "this is not tested with new tokens", f"{hint}, or leave model.add_tokens empty"
    return [loaded.problem(INIT_KEY, f"is {init}, but {reason}", hint)] if reason else []


def _task_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return problems with an unknown task, and with settings that the task does not support."""
    try:
        task = find_task(loaded.config.task.type)
        problems = [loaded.with_source(problem) for problem in task.problems(loaded.config)]
    except ConfigError as error:
        return [loaded.with_source(problem) for problem in error.problems]
    # A task's own problem with the metric is more precise than the general one.
    if not any(problem.key == METRIC_KEY for problem in problems):
        unknown_metrics = metric_problems(loaded.config, task.metrics, f"by {task.name}")
        problems += map(loaded.with_source, unknown_metrics)
    return problems


def memory_problem(loaded: LoadedConfig, room: MemoryBudget, needed_bytes: int) -> Problem:
    """Return the problem of a plan that needs more memory than there is."""
    message = f"needs about {format_bytes(needed_bytes)} of memory; {room.where} has {format_bytes(room.total_bytes)}"
    return loaded.problem("training.per_device_train_batch_size", message)


def disk_problems(loaded: LoadedConfig, disk_bytes: int, free_bytes: int | None) -> list[Problem]:
    if free_bytes is None or disk_bytes * DISK_MARGIN <= free_bytes:
        return []
    hint = "lower checkpoint.save_total_limit, or choose another disk"
    return [loaded.problem("output.runs_dir", space_words("the run writes up to", disk_bytes, free_bytes), hint)]


def provider_problems(loaded: LoadedConfig) -> list[Problem]:
    """Return problems with settings that Unsloth does not support, or applies on its own."""
    config = loaded.config
    if not is_asked(config):
        return []
    allowed_values: dict[str, tuple[object, tuple[object, ...]]] = {
        "task.type": (config.task.type, tuple(name for name in task_names() if find_task(name).supports_unsloth)),
        "model.init": (config.model.init, ("pretrained",)),
        "model.add_tokens": (config.model.add_tokens, ("",)),
        "model.rope_scaling.rope_type": (config.model.rope_scaling.rope_type, ("default",)),
        "model.attn_implementation": (config.model.attn_implementation, ("auto",)),
        "model.kernels": (config.model.kernels, ("auto", "none")),
        "tuning.trainable_layers": (config.tuning.trainable_layers, ("",)),
        "tuning.use_dora": (config.tuning.use_dora, (False,)),
        PARAMETERS_KEY: (config.tuning.target_parameters, ("",)),
        INIT_KEY: (config.tuning.init_lora_weights, ("default",)),
        "training.neftune_noise_alpha": (config.training.neftune_noise_alpha, (0.0,)),
        "training.torch_compile": (config.training.torch_compile, (False,)),
        "data.packing": (config.data.packing, ("auto", False)),
        PROCESSES: (config.distributed.processes, ("auto", 1)),
        "distributed.nodes": (config.distributed.nodes, (1,)),
        "distributed.cpu_offload": (config.distributed.cpu_offload, (False,)),
    }
    if is_pattern(config.tuning.target_modules):
        allowed_values[MODULES_KEY] = (config.tuning.target_modules, ("all-linear",))
    message = f"is not supported with {PROVIDER} = {UNSLOTH}"
    return [*map(loaded.with_source, refused_values(allowed_values, message, f", or {PROVIDER} = transformers"))]


def expert_problems(loaded: LoadedConfig, strategy: str, setup: TrainingSetup) -> list[Problem]:
    """Return problems of settings that are not tested with adapters of experts, or with a router loss."""
    features_in_use = []
    if setup.lora_experts:
        names = ", ".join(dict.fromkeys(tensor.path for tensor in setup.lora_experts))
        alternative = f"name only linear layers in {MODULES_KEY} and leave {PARAMETERS_KEY} empty"
        features_in_use.append((f"adapters of experts ({one_line(names, 120)})", alternative))
    if setup.router_logits:
        features_in_use.append(("a router loss", f"set {ROUTER_LOSS_KEY} = 0"))
    allowed_values: dict[str, tuple[object, tuple[object, ...]]] = {
        "distributed.strategy": (strategy, ("ddp",)),
        "training.torch_compile": (setup.compiled, (False,)),
        PROVIDER: (setup.provider, ("transformers",)),
    }
    return [
        loaded.with_source(problem)
        for feature, alternative in features_in_use
        for problem in refused_values(allowed_values, f"is not tested with {feature}", f", or {alternative}")
    ]


def four_bit_problems(
    loaded: ResolvedLoaded, hardware: Hardware, target: TrainingDevice, shape: ModelShape, setup: TrainingSetup
) -> list[Problem]:
    """Return problems of 4-bit weights without a GPU, or without the library that packs them. `setup` is the planned
    one, with 4-bit weights."""
    if setup.four_bits is None:
        return []
    remedy = _sixteen_bits(loaded, shape, setup)
    if target.device == "cpu":
        return [loaded.problem(METHOD_KEY, f"qlora needs a GPU, and this run is on the CPU ({target.reason})", remedy)]
    if hardware.libraries.get(BITSANDBYTES) is None and not is_asked(loaded.config):
        hint = f"install it: uv pip install {BITSANDBYTES}; or {remedy}"
        return [loaded.problem(METHOD_KEY, f"qlora needs {BITSANDBYTES}, which is not installed", hint)]
    return []


def _sixteen_bits(loaded: ResolvedLoaded, shape: ModelShape, setup: TrainingSetup) -> str:
    """Return a hint that suggests LoRA on 16-bit weights, with the memory of both methods at one row per pass."""
    config = loaded.config
    sixteen_bit, _ = with_dry_run(config, shape, replace(setup, method="lora", four_bits=None, weights="bfloat16"))
    in_16_bits, packed_text = (format_bytes(needed_bytes(shape, option, config, 1)) for option in (sixteen_bit, setup))
    change_text = f'set {METHOD_KEY} = "lora" and model.dtype = "bfloat16"'
    return f"{change_text}: about {in_16_bits} of memory with a micro-batch of 1; 4 bits would take {packed_text}"
