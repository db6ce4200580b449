"""The YAML of `accelerate config`: on how many devices a script trains, how the model is split, and in which numbers.

Source: src/accelerate/commands/config/config_args.py and utils/dataclasses.py of accelerate 1.x.
"""

from tui_trainer.importing.conversion import Conversion, Importer, KeyGroup
from tui_trainer.importing.groups import read_beside, write_zero
from tui_trainer.importing.importers import transformers as hf
from tui_trainer.importing.rules import (
    Automatic,
    NotNeeded,
    NotSupported,
    Off,
    Refused,
    Same,
    To,
    Why,
    file_near,
    whole,
)
from tui_trainer.planning.processes import STRATEGY

_SHARDING = ("fsdp_config.fsdp_sharding_strategy", "fsdp_config.fsdp_reshard_after_forward")
_NUMBERED = {1: "full_shard", 2: "shard_grad_op", 3: "no_shard", 4: "hybrid_shard", 5: "hybrid_shard_zero2"}
_ZERO = "deepspeed_config.zero_stage"
_OFFLOAD_DEVICES = ("deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_param_device")
_USUAL_STAGE = 2  # of accelerate's DeepSpeedPlugin
_ZERO_FILE = "deepspeed_config.deepspeed_config_file"
_ADDRESS = ("main_process_ip", "main_process_port")
_REPLICAS = (
    "parallelism_config.parallelism_config_dp_replicate_size", "parallelism_config.parallelism_config_dp_shard_size",
)  # fmt: skip
_WHOLE = "each process computes whole layers; distributed.strategy splits their weights"
_SCRIPT = Automatic("set by the training script")
_NO = {False: "no", "NO": "no"}


def _processes(done: Conversion) -> None:
    """It counts those of all machines."""
    count, machines = done.first("num_processes"), done.first("num_machines")
    if not count:
        return
    nodes = whole(machines[1]) if machines else 1
    total = whole(count[1])
    if not nodes or not total or total % nodes:
        done.leave(Why.DOES_NOT_FIT, "must be divisible by num_machines", count[0])
        return
    names = [count[0], *(machines[:1] if machines and nodes > 1 else ())]
    done.write("distributed.processes", total // nodes, *names, reason="on each machine" if nodes > 1 else "")
    if nodes > 1:
        done.write("distributed.nodes", nodes, "num_machines")
        address = {name: done.given[name] for name in _ADDRESS if done.has(name)}
        if address:
            text = f"{address.get(_ADDRESS[0], '')}:{address[_ADDRESS[1]]}" if _ADDRESS[1] in address else ""
            done.write("distributed.rendezvous", text or address[_ADDRESS[0]], *address)


def _strategy(done: Conversion) -> None:
    found = done.first("distributed_type")
    if not found:
        return
    name, kind = found[0], str(found[1]).upper()
    if kind in ("NO", "FALSE"):
        done.leave(Why.NOT_NEEDED, "one process trains the whole model", name)
    elif kind == "FSDP":
        _fsdp(done, name)
    elif kind == "DEEPSPEED":
        _deepspeed(done, name)
    elif kind.startswith("MULTI_"):
        done.write(STRATEGY, "ddp", name, reason="each device has the whole model")
    elif kind in ("MPS", "XLA", "TPU"):
        done.leave(Why.NOT_SUPPORTED, "training runs on NVIDIA GPUs or a CPU", name)
    else:
        done.leave(Why.REFUSED, "only FSDP and DeepSpeed can split a model", name)


def _fsdp(done: Conversion, name: str) -> None:
    said = done.first(*_SHARDING)
    word = _NUMBERED.get(said[1], str(said[1]).lower()) if said and not isinstance(said[1], bool) else "full_shard"
    strategy = hf.splits(word)[0] or "fsdp"
    several = (whole(done.given.get("num_machines")) or 1) > 1
    strategy = strategy if strategy != "hsdp" or several else "fsdp"
    done.write(STRATEGY, strategy, name, *(said[:1] if said else ()), reason=hf.LAYER_BY_LAYER)


def _deepspeed(done: Conversion, name: str) -> None:
    stage, file = done.first(_ZERO), done.first(_ZERO_FILE)
    if stage:
        write_zero(done, _ZERO, stage[1], [done.given.get(device) for device in _OFFLOAD_DEVICES])
        done.leave(Why.NOT_NEEDED, "set by zero_stage", name)
    elif file and (path := file_near(done.folder, str(file[1]))):
        read_beside(done, _ZERO_FILE, path, "deepspeed")
        done.leave(Why.NOT_NEEDED, f"set by {path.name}", name)
    elif file:
        done.leave(Why.REFUSED, f"the file {file[1]}, which says what DeepSpeed splits, was not found", _ZERO_FILE)
        done.leave(Why.NOT_NEEDED, "set by deepspeed_config_file", name)
    else:
        write_zero(done, name, _USUAL_STAGE, ())


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
            "num_machines": Same((1,), "one machine", "set num_processes, the number of processes on all machines"),
            "mixed_precision": To(
                "training.mixed_precision", values={**_NO, "fp8": Refused("8-bit training is not supported")}
            ),
            "fp16": To("training.mixed_precision", values={True: "fp16", False: "no"}),
            " ".join(_ADDRESS): NotNeeded("only needed with several machines"),
            "machine_rank": NotNeeded("set on each further machine with `tui-trainer join --node-rank`"),
            "rdzv_backend same_network main_training_function mpirun_config mpirun_config.*": NotNeeded(
                "tui-trainer starts its processes itself"
            ),
            "compute_environment": Same(("LOCAL_MACHINE",), *("training runs on this machine",) * 2, Why.REFUSED),
            "gpu_ids": Automatic("the GPUs with the most free memory are used; choose with --gpu"),
            "enable_cpu_affinity debug": hf.OTHER_TOOL,
            "downcast_bf16 tpu_* command_file commands": NotNeeded("training runs on an NVIDIA GPU or a CPU"),
            "use_cpu": Off("`--gpu none` trains on the CPU"),
            "dynamo_backend dynamo_config.dynamo_backend": To(
                "training.torch_compile",
                values={"no": False, "INDUCTOR": True},
                otherwise=NotSupported("only the inductor backend is supported"),
            ),
            "dynamo_config.dynamo_mode": To(
                "training.torch_compile_mode",
                values={"max-autotune": "max-autotune-no-cudagraphs"},
            ),
            "dynamo_config.*": Automatic("the inductor backend is used"),
            hf.OFFLOADS: To("distributed.cpu_offload", values={False: NotNeeded("turned off in the file")}),
            " ".join(hf.RECOMPUTES): Off("must be true or false", Why.DOES_NOT_FIT),
            " ".join(_SHARDING): Automatic("set by distributed.strategy"),
            "fsdp_* fsdp_config.*": Automatic("each layer is split together with its gradients and optimizer state"),
            _ZERO: NotNeeded("DeepSpeed is off in distributed_type"),
            " ".join(_OFFLOAD_DEVICES): Same(
                ("none", "cpu"), "read together with zero_stage", "offloading to disk is not supported"
            ),
            "deepspeed_config.gradient_accumulation_steps deepspeed_config.gradient_clipping": _SCRIPT,
            f"gradient_accumulation_steps gradient_clipping {_ZERO_FILE}": _SCRIPT,
            "deepspeed_config.deepspeed_moe_layer_cls_names": hf.OTHER_TOOL,
            "deepspeed_config.*": hf.OTHER_TOOL,
            "fp8_* fp8_config.*": NotNeeded("mixed_precision decides whether fp8 is used"),
            "ipex_*": hf.OTHER_TOOL,
            " ".join(_REPLICAS): NotNeeded("set by num_processes"),
            "parallelism_config.*_size": Same((1,), _WHOLE, _WHOLE, Why.REFUSED),
            "parallelism_config.*": NotNeeded("the sizes in parallelism_config decide whether layers are split"),
            "megatron_* parallelism_* *_config *_config.*": Refused(_WHOLE),
        },
    ),
    groups=(
        KeyGroup(("num_processes",), _processes),
        KeyGroup(("distributed_type", *_SHARDING), _strategy),
        hf.FSDP[1],
    ),
)
