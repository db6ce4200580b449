"""Decide whether Liger's kernels compute the operations between a model's matmuls (`model.kernels`), and whether LoRA
layers are fused with their adapters.

Each run checks at its start that they give the same numbers with its model (`training/fused_kernels.py`).
"""

from typing import Literal

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem
from tui_trainer.hardware.diagnosis import lack_of_compiler
from tui_trainer.hardware.facts import Hardware
from tui_trainer.hardware.gpu_models import TENSOR_CORES_FROM, version_text
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.automatic_values import TrainingDevice
from tui_trainer.planning.planned import Planned, estimated, exact

Kernels = Literal["none", "liger"]

KERNELS, FUSED_ADAPTERS = "model.kernels", "tuning.fused_adapters"
LIBRARY = "liger-kernel"
# Decoders of text. Source: MODEL_TYPE_TO_APPLY_LIGER_FN in liger_kernel/transformers/monkey_patch.py of 0.8.5.
LIGER_FAMILIES = frozenset(
    "exaone4 gemma gemma2 gemma3_text glm4 granite hunyuan_v1_dense llama ministral mistral mixtral nemotron olmo2 "
    "olmo3 phi3 qwen2 qwen3 qwen3_moe smollm3".split()
)
NOT_USED: Planned[Kernels] = exact("none", "the model's own operations")


def fused_kernels(
    loaded: LoadedConfig, hardware: Hardware, target: TrainingDevice, shape: ModelShape
) -> Planned[Kernels]:
    """Return the requested kernels, or those that `auto` chooses. `kernel_problems` checks requested ones."""
    config = loaded.config
    if config.model.kernels != "auto":
        return exact(config.model.kernels, f"from {loaded.where(KERNELS)}")
    obstacle = "Unsloth has its own kernels" if is_asked(config) else fused_kernels_obstacle(hardware, target, shape)
    if not obstacle and config.training.torch_compile:
        # Compiled SwiGLU was 3.1 times as fast as Liger's (Liger-Kernel #1330, B300).
        obstacle = "compiled layers fuse the same operations"
    if not obstacle and config.training.deterministic:
        obstacle = "torch cannot check whether a library's kernels are deterministic"
    if obstacle:
        return exact("none", f"auto: {obstacle}")
    version = hardware.libraries.get(LIBRARY)
    return estimated("liger", f"auto: liger-kernel {version} supports {shape.model_type}")


def fuses_loss(loaded: LoadedConfig, hardware: Hardware, target: TrainingDevice, shape: ModelShape) -> bool:
    """Return whether a fused kernel computes the loss if logits are computed in chunks, which is not checked here."""
    return fused_kernels(loaded, hardware, target, shape).value == "liger"


def unfused_adapters_reason(config: Config, strategy: str) -> str:
    """Return why adapters are not fused with their layers, as a clause; empty if they are fused."""
    tuning = config.tuning
    if not tuning.has_adapter:
        return "there are no adapters"
    if not tuning.fused_adapters:
        return f"{FUSED_ADAPTERS} = false"
    if tuning.lora_dropout or tuning.use_dora:
        return "dropout and DoRA cannot be fused"
    if is_asked(config):
        return "Unsloth fuses adapters itself"
    if config.training.torch_compile:
        return "compiled layers fuse the same operations"
    if strategy == "deepspeed-3":
        return "deepspeed-3 gathers the weights of a layer only while that layer itself runs"
    return ""


def kernel_problems(
    loaded: LoadedConfig, hardware: Hardware, target: TrainingDevice, shape: ModelShape
) -> list[Problem]:
    """Return problems with kernels that were requested by name and are not possible here."""
    if loaded.config.model.kernels != "liger" or not (obstacle := fused_kernels_obstacle(hardware, target, shape)):
        return []
    return [loaded.problem(KERNELS, f"liger: {obstacle}", "set it to auto to use what is available")]


def fused_kernels_obstacle(hardware: Hardware, target: TrainingDevice, shape: ModelShape) -> str:
    """Return why this machine or this model has no fused kernels, as a clause; empty if it has them."""
    if target.device == "cpu":
        return "fused kernels need a GPU, and this run is on the CPU"
    if hardware.libraries.get(LIBRARY) is None:
        return f"{LIBRARY} is not installed"
    if missing_part := lack_of_compiler(hardware.libraries, target.device):
        return f"fused kernels cannot be compiled, because {missing_part}"
    capability = target.gpu.capability if target.gpu else None
    if capability and capability < TENSOR_CORES_FROM:
        return f"fused kernels need compute capability 7.0, and this GPU has {version_text(capability)}"
    if shape.model_type not in LIGER_FAMILIES:
        return f"liger-kernel does not support {shape.model_type}"
    return ""
