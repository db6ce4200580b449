"""How a model is split over processes, and what does not go together with that."""

from collections.abc import Iterator, Mapping
from typing import Literal

from tui_trainer.config.fields import names_in
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.heads import CLASSIFYING
from tui_trainer.planning.training_setup import TrainingSetup

Strategy = Literal["ddp", "fsdp", "hsdp", "deepspeed-2", "deepspeed-3"]
SPLITTING: tuple[Strategy, ...] = ("fsdp", "hsdp")
"""Strategies of which a process has a part of the model: of all of them, or of those of its node."""
NODES, STRATEGY, OFFLOAD = "distributed.nodes", "distributed.strategy", "distributed.cpu_offload"
ZERO_STAGES: Mapping[Strategy, int] = {"deepspeed-2": 2, "deepspeed-3": 3}
"""Strategies of DeepSpeed, by the stage of its ZeRO."""
INSTALL_DEEPSPEED = "install it: uv pip install deepspeed"
# Of those whose state torch splits over processes as it splits the weights.
_SPLIT_OPTIMIZERS = ("adamw_torch_fused", "sgd")
_Refusal = tuple[str, str, str]
"""(key, what is not done, what to set instead)"""


def split_problems(loaded: LoadedConfig) -> list[Problem]:
    """What does not go together with a model that is split over processes."""
    because = f"{OFFLOAD} = true" if loaded.config.distributed.cpu_offload else f"{STRATEGY} = fsdp or hsdp"
    return [
        loaded.problem(key, f"{message}: with {because} the model is split", hint)
        for key, message, hint in whole_only(loaded.config)
    ]


def whole_only(config: Config) -> Iterator[_Refusal]:
    """What does not go together with a model that is split, whatever splits it."""
    if config.tuning.in_four_bits:
        without = f" without {OFFLOAD}" if config.distributed.cpu_offload else ""
        hint = f"set tuning.method = lora, or {STRATEGY} = ddp{without}"
        yield "tuning.method", "weights in 4 bits are not split", hint
    if config.training.torch_compile:
        yield "training.torch_compile", "layers that are split are not compiled here", "set it to false"
    yield from _whole_states(config)


def _whole_states(config: Config) -> Iterator[_Refusal]:
    if config.training.optim not in _SPLIT_OPTIMIZERS:
        hint = f"set it to {' or '.join(_SPLIT_OPTIMIZERS)}"
        yield "training.optim", f"the state of {config.training.optim} is not split", hint


def deepspeed_problems(
    loaded: LoadedConfig, hardware: Hardware, strategy: Strategy, setup: TrainingSetup
) -> list[Problem]:
    """What does not go together with DeepSpeed's ZeRO; empty where another strategy is planned."""
    if strategy not in ZERO_STAGES:
        return []
    if hardware.libraries.get("deepspeed") is None:
        message = f"{strategy} needs DeepSpeed, which is not installed"
        return [loaded.problem(STRATEGY, message, f"{INSTALL_DEEPSPEED}; or set {STRATEGY} = fsdp")]
    return [
        loaded.problem(key, f"{message} with {STRATEGY} = {strategy}", hint)
        for key, message, hint in _not_by_deepspeed(loaded.config, setup)
    ]


def _not_by_deepspeed(config: Config, setup: TrainingSetup) -> Iterator[_Refusal]:
    if config.tuning.in_four_bits:
        yield "tuning.method", "weights in 4 bits are not trained", f"set tuning.method = lora, or {STRATEGY} = ddp"
    if config.training.torch_compile:
        yield "training.torch_compile", "layers are not compiled", "set it to false"
    if setup.precision == "fp16":
        hint = f"set it to bf16 or no, or {STRATEGY} = ddp"
        yield "training.mixed_precision", "the loss scale of fp16 is not kept", hint
    yield from _whole_states(config)
    if setup.weights == "float16" and setup.method == "full":
        yield "model.dtype", "weights of float16 are not trained", "set it to bfloat16 or float32"
    saves = names_in(config.tuning.modules_to_save) or setup.head in CLASSIFYING
    if setup.has_adapter and setup.weights != "float32" and saves:
        # They are of 16 bits beside adapters in fp32, and a flat tensor has one kind of numbers.
        message = "modules that train as a whole, in 16 bits beside their adapters, are not split"
        yield "model.dtype", message, f"set it to float32, or {STRATEGY} = fsdp"
    if config.tuning.use_dora and setup.has_adapter:
        yield "tuning.use_dora", "weights that DoRA reads in other layers are not gathered", "set it to false"
