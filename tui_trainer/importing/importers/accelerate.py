"""YAML of `accelerate config`: the number of devices, how the model is split, and the precision.

Source: src/accelerate/commands/config/config_args.py and utils/dataclasses.py of accelerate 1.x."""

from typing import Any

from tui_trainer.importing import groups, rules
from tui_trainer.importing.conversion import Conversion, Given, Importer, Keys
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import Automatic, NotNeeded, NotSupported, Off, Only, Refused, Same, To, Why, whole
from tui_trainer.planning.processes import STRATEGY

_SHARDING = "fsdp_config.fsdp_sharding_strategy fsdp_config.fsdp_reshard_after_forward"
_NUMBERED = {1: "full_shard", 2: "shard_grad_op", 3: "no_shard", 4: "hybrid_shard", 5: "hybrid_shard_zero2"}
_ZERO = "deepspeed_config.zero_stage"
_OFFLOAD_DEVICES = "deepspeed_config.offload_optimizer_device deepspeed_config.offload_param_device"
_USUAL_STAGE = 2  # default of accelerate's DeepSpeedPlugin
_ZERO_FILE = "deepspeed_config.deepspeed_config_file"
_WHOLE = "each process computes whole layers; distributed.strategy splits their weights"
_NO = {False: "no", "NO": "no"}


def _processes(
    conversion: Conversion, count: Given, machines: Given | None, address: Given | None, port: Given | None
) -> None:
    """Convert the number of processes on all machines, and the address where the machines meet."""
    machine_count, process_count = machines.whole if machines else 1, count.whole
    if not machine_count or not process_count or process_count % machine_count:
        conversion.leave(Why.DOES_NOT_FIT, "must be divisible by num_machines", count)
    elif machine_count <= 1:
        conversion.write("distributed.processes", process_count // machine_count, count)
    else:
        reason = "on each machine"
        conversion.write("distributed.processes", process_count // machine_count, count, machines, reason=reason)
        conversion.write("distributed.nodes", machine_count, machines)
        if port:
            meeting_point = f"{address.value if address else ''}:{port.value}"
            conversion.write("distributed.rendezvous", meeting_point, address, port)
        elif address:
            conversion.write("distributed.rendezvous", address.value, address)


def _strategy(
    conversion: Conversion, given: Given, sharding: Given | None, stage: Given | None, file: Given | None
) -> None:
    """Convert how processes split a model. FSDP and DeepSpeed have their own keys for this."""
    kind = str(given.value).upper()
    path = conversion.file(file)
    if kind in ("NO", "FALSE"):
        conversion.leave(Why.NOT_NEEDED, "one process trains the whole model", given)
    elif kind == "FSDP":
        word: Any = sharding.value if sharding and not isinstance(sharding.value, bool) else "full_shard"
        strategy = hf.fsdp_strategy(_NUMBERED.get(word, str(word).lower()))[0] or "fsdp"
        if strategy == "hsdp" and (whole(conversion.given.get("num_machines")) or 1) <= 1:
            strategy = "fsdp"
        conversion.write(STRATEGY, strategy, given, sharding, reason=hf.LAYER_BY_LAYER)
    elif kind == "DEEPSPEED" and stage:
        groups.write_zero(conversion, _ZERO, stage.value, map(conversion.given.get, _OFFLOAD_DEVICES.split()))
        conversion.leave(Why.NOT_NEEDED, "set by zero_stage", given)
    elif kind == "DEEPSPEED" and file and path:
        groups.convert_file(conversion, _ZERO_FILE, path, "deepspeed")
        conversion.leave(Why.NOT_NEEDED, f"set by {path.name}", given)
    elif kind == "DEEPSPEED" and file:
        conversion.leave(Why.REFUSED, f"the file {file.value}, which says what DeepSpeed splits, was not found", file)
        conversion.leave(Why.NOT_NEEDED, "set by deepspeed_config_file", given)
    elif kind == "DEEPSPEED":
        groups.write_zero(conversion, given.name, _USUAL_STAGE, ())
    elif kind.startswith("MULTI_"):
        conversion.write(STRATEGY, "ddp", given, reason="each device has the whole model")
    elif kind in ("MPS", "XLA", "TPU"):
        conversion.leave(Why.NOT_SUPPORTED, "training runs on NVIDIA GPUs or a CPU", given)
    else:
        conversion.leave(Why.REFUSED, "only FSDP and DeepSpeed can split a model", given)


IMPORTER = Importer(
    name="accelerate",
    title="accelerate's launch file",
    rank=10,
    telltale="""compute_environment distributed_type num_processes num_machines machine_rank main_training_function
    rdzv_backend same_network downcast_bf16 enable_cpu_affinity mixed_precision gpu_ids""",
    tables=(
        {
            "distributed_type": Refused("set distributed.strategy instead"),
            "num_processes": "distributed.processes",
            "num_machines": Same((1,), "there is one machine", "set num_processes to the total of all machines"),
            "mixed_precision": To(
                "training.mixed_precision", values={**_NO, "fp8": Refused("8-bit training is not supported")}
            ),
            "fp16": To("training.mixed_precision", values={True: "fp16", False: "no"}),
            "main_process_ip main_process_port": NotNeeded("only needed with several machines"),
            "machine_rank": NotNeeded("run `tui-trainer join --node-rank` on each further machine"),
            "rdzv_backend same_network main_training_function mpirun_config mpirun_config.*": NotNeeded(
                "tui-trainer starts its processes itself"
            ),
            "compute_environment": Only(("LOCAL_MACHINE",), "tui-trainer trains on the machine where you start it"),
            "gpu_ids": Automatic("the GPUs with the most free memory are used; choose with --gpu"),
            """enable_cpu_affinity debug ipex_* deepspeed_config.deepspeed_moe_layer_cls_names
            deepspeed_config.*""": hf.OTHER_TOOL,
            "downcast_bf16 tpu_* command_file commands": NotNeeded("training runs on an NVIDIA GPU or a CPU"),
            "use_cpu": Off("`--gpu none` trains on the CPU"),
            "dynamo_backend dynamo_config.dynamo_backend": To(
                "training.torch_compile",
                values={"no": False, "INDUCTOR": True},
                otherwise=NotSupported("only the inductor backend is supported"),
            ),
            "dynamo_config.dynamo_mode": hf.ARGUMENTS["torch_compile_mode"],
            "dynamo_config.*": Automatic("the inductor backend is used"),
            hf.OFFLOADS: To("distributed.cpu_offload", values={False: rules.OFF}),
            hf.RECOMPUTES: Off("must be true or false", Why.DOES_NOT_FIT),
            _SHARDING: Automatic("set by distributed.strategy"),
            "fsdp_* fsdp_config.*": Automatic("each layer is split together with its gradients and optimizer state"),
            _ZERO: NotNeeded("DeepSpeed is off in distributed_type"),
            _OFFLOAD_DEVICES: Same(
                ("none", "cpu"), "converted together with zero_stage", "offloading to disk is not supported"
            ),
            f"""deepspeed_config.gradient_accumulation_steps deepspeed_config.gradient_clipping {_ZERO_FILE}
            gradient_accumulation_steps gradient_clipping""": Automatic("set by the training script"),
            "fp8_* fp8_config.*": NotNeeded("mixed_precision decides whether fp8 is used"),
            """parallelism_config.parallelism_config_dp_replicate_size
            parallelism_config.parallelism_config_dp_shard_size""": NotNeeded("set by num_processes"),
            "parallelism_config.*_size": Only((1,), _WHOLE),
            "parallelism_config.*": NotNeeded("the sizes in parallelism_config decide whether layers are split"),
            "megatron_* parallelism_* *_config *_config.*": Refused(_WHOLE),
        },
    ),
    groups=(
        Keys(_processes, "num_processes", "num_machines", "main_process_ip", "main_process_port"),
        Keys(_strategy, "distributed_type", _SHARDING, _ZERO, _ZERO_FILE),
        hf.FSDP[1],
    ),
)
