"""JSON of DeepSpeed. DeepSpeed also trains ZeRO 2 and 3 here, but ZeRO 1 becomes torch's FSDP2.

A value "auto" stands for a value of the training script.
Source: "DeepSpeed Configuration JSON" of DeepSpeed 0.19."""

from typing import Any

from tui_trainer.importing import rules
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.groups import ZERO_STRATEGIES, switches
from tui_trainer.importing.importers.transformers import OPTIMIZER, OTHER_TOOL
from tui_trainer.importing.rules import Automatic, NotNeeded, Off, Only, Refused, Same, To, Why

_OF_THE_SCRIPT = Automatic("set by the training script")
_OFFLOADS = "zero_optimization.offload_optimizer zero_optimization.offload_param"
_BETAS, _LR, _PEAK = "optimizer.params.betas", "optimizer.params.lr", "scheduler.params.warmup_max_lr"
_MOST_LOGGING_STEPS = 10**6
_SIZES = NotNeeded("communication sizes are computed from the model")
_SCHEDULES = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_OPTIMIZERS = {**OPTIMIZER.values, **dict.fromkeys(("Adam", "AdamW"), "adamw_torch_fused")}


def _precision(conversion: Conversion, *given: Given | None) -> None:
    switch_keys, name_on, other_values = switches(conversion, *given)
    if name_on:
        conversion.write("training.mixed_precision", name_on.partition(".")[0], *switch_keys)
    elif "auto" in other_values:
        conversion.leave(Why.AUTOMATIC, _OF_THE_SCRIPT.reason, *switch_keys)
    elif switch_keys:
        conversion.write("training.mixed_precision", "no", *switch_keys, reason="neither bf16 nor fp16 is on")


def _offload(conversion: Conversion) -> None:
    stage = conversion.given.get("zero_optimization.stage")
    offload_items = ((name, conversion.given.get(name)) for name in _OFFLOADS.split())
    device_by_name = {name: value.get("device", "none") for name, value in offload_items if isinstance(value, dict)}
    names_on = [name for name, device in device_by_name.items() if device == "cpu"]
    off_names = [name for name, device in device_by_name.items() if device == "none"]
    conversion.leave(Why.NOT_NEEDED, rules.OFF.reason, *off_names)
    if names_on and stage in (2, 3):
        weights_note = ", as do parts of the weights" if stage == 3 else ""
        reason = f"gradients and optimizer state stay in host memory{weights_note}"
        conversion.write("distributed.cpu_offload", True, *names_on, reason=reason)
    else:
        conversion.leave(Why.NOT_SUPPORTED, "offloading needs ZeRO 2 or 3", *names_on)


def _betas(conversion: Conversion, betas: Given) -> None:
    if isinstance(betas.value, list) and len(betas.value) == 2:
        conversion.write("training.adam_beta1", betas.value[0], betas)
        conversion.write("training.adam_beta2", betas.value[1], betas)
    elif betas.value != "auto":
        conversion.leave(Why.DOES_NOT_FIT, "must be two numbers", betas)


def _learning_rate(conversion: Conversion, peak: Given, rate: Given | None) -> None:
    """Convert the peak rate of a schedule with warm-up, which overrides the optimizer's learning rate.

    Source: deepspeed/runtime/lr_schedules.py."""
    if peak.number is None:
        return
    conversion.write("training.learning_rate", peak.value, peak)
    if rate and rate.number is not None:
        conversion.leave(Why.NOT_NEEDED, "warmup_max_lr of the schedule takes precedence", rate)


def _logging_steps(value: Any) -> Any:
    """Return a logging interval, at most our limit. In DeepSpeed, one longer than the run turns logging off."""
    return min(steps, _MOST_LOGGING_STEPS) if (steps := rules.whole(value)) else value


def _to(key: str) -> To:
    return To(key, values={"auto": _OF_THE_SCRIPT})


IMPORTER = Importer(
    name="deepspeed",
    title="DeepSpeed JSON",
    rank=9,
    telltale="""zero_optimization.stage train_batch_size train_micro_batch_size_per_gpu gradient_clipping bf16.enabled
    fp16.enabled optimizer.type""",
    tables=(
        {
            "train_batch_size": _to("training.effective_batch_size"),
            "train_micro_batch_size_per_gpu": _to("training.per_device_train_batch_size"),
            "gradient_accumulation_steps": _to("training.gradient_accumulation_steps"),
            "gradient_clipping": _to("training.max_grad_norm"),
            "optimizer.type": To("training.optim", values=_OPTIMIZERS),
            _BETAS: _OF_THE_SCRIPT,
            "optimizer.params.eps": _to("training.adam_epsilon"),
            "optimizer.params.weight_decay": _to("training.weight_decay"),
            "optimizer.params.adam_w_mode": Only((True,), "weight decay is decoupled from gradients", "{} here"),
            "optimizer.params.bias_correction": Only((True,), "bias correction is always used", "{} here"),
            "optimizer.params.*": Refused("the only supported optimizer arguments are the settings in [training]"),
            "scheduler.type": To(
                "training.lr_scheduler_type",
                "the warm-up is linear, but in DeepSpeed it is logarithmic by default",
                values=_SCHEDULES,
            ),
            "scheduler.params.warmup_num_steps": _to("training.warmup_steps"),
            f"{_LR} {_PEAK}": _to("training.learning_rate"),
            "scheduler.params.warmup_min_lr": Only((0, "auto"), "the warm-up starts at 0", "{} here"),
            "scheduler.params.warmup_type": Only(("linear",), "the warm-up is linear", "{} here"),
            "scheduler.params.total_num_steps": Only(("auto",), "a schedule always ends with the run", "{} here"),
            "scheduler.params.cos_min_ratio": _to("training.min_lr_rate"),
            "scheduler.*": Refused("other arguments of schedules are not supported"),
            "zero_optimization.stage": To(
                "distributed.strategy",
                "stages 2 and 3 use DeepSpeed; stage 1 uses fsdp, which also splits weights and gradients",
                values=ZERO_STRATEGIES,
            ),
            _OFFLOADS: Off("offloading is supported to host memory only, not to disk"),
            "zero_optimization.*": _SIZES,
            "bf16.* fp16.*": Automatic("fp16 uses dynamic loss scaling"),
            "activation_checkpointing activation_checkpointing.*": Automatic(
                "training.gradient_checkpointing saves only the inputs of layers"
            ),
            "steps_per_print": To("logging.logging_steps", convert=_logging_steps),
            """wall_clock_breakdown memory_breakdown dump_state flops_profiler* tensorboard* wandb* csv_monitor* comet*
            monitor_config* comms_logger*""": NotNeeded("every step is logged in the journal"),
            "amp.*": Automatic("torch's mixed precision is used"),
            "amp.enabled": Same(
                (False, "auto"), "torch's mixed precision is used", "set training.mixed_precision instead"
            ),
            """zero_allow_untested_optimizer zero_force_ds_cpu_optimizer prescale_gradients communication_data_type
            fp32_allreduce gradient_predivide_factor sparse_gradients checkpoint* aio* data_types* comms_config*
            _comment* compile* disable_allgather seq_parallel_communication_data_type optimizer.*
            optimizer.params.torch_adam optimizer.params.fused""": OTHER_TOOL,
        },
    ),
    groups=(
        Keys(_precision, "bf16.enabled", "fp16.enabled"),
        Keys(_offload),
        Keys(_betas, _BETAS),
        Keys(_learning_rate, _PEAK, _LR),
    ),
)
