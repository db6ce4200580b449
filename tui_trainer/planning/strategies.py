"""How a model is split over processes, and what does not go together with that."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from tui_trainer.config.fields import names_in
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.heads import CLASSIFYING
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.training_setup import TrainingSetup

Strategy = Literal["ddp", "fsdp", "hsdp", "tp", "deepspeed-2", "deepspeed-3"]
SPLITTING: tuple[Strategy, ...] = ("fsdp", "hsdp")
"""Strategies of which a process has a part of the model: of all of them, or of those of its node."""
BY_WIDTH: Strategy = "tp"
"""Each process has a part of every layer, and all of them the same rows."""
NODES, STRATEGY, OFFLOAD = "distributed.nodes", "distributed.strategy", "distributed.cpu_offload"
ZERO_STAGES: Mapping[Strategy, int] = {"deepspeed-2": 2, "deepspeed-3": 3}
"""Strategies of DeepSpeed, by the stage of its ZeRO."""
INSTALL_DEEPSPEED = "install it: uv pip install deepspeed"
# Of those whose state torch splits over processes as it splits the weights.
_SPLIT_OPTIMIZERS = ("adamw_torch_fused", "sgd")
# What transformers splits layers by, in its folder.
_PLANS = Path("distributed", "tensor_parallel.py")
FAMILIES = frozenset("gemma gemma2 llama mistral phi qwen2 qwen3".split())
"""Whose plan splits attention and MLP both, and of which it is shown that they learn the same
(`tests/distributed/test_tensor_parallel.py`). Source: `base_model_tp_plan` in the configuration files of transformers
5.23; those of phi3 and olmo2 compute the attention whole in each process, gpt2, opt, bloom and falcon have none."""
_Refusal = tuple[str, str, str]
"""(key, what is not done, what to set instead)"""


def split_problems(loaded: LoadedConfig) -> list[Problem]:
    """What does not go together with a model that is split over processes."""
    distributed = loaded.config.distributed
    because = f"{STRATEGY} = {BY_WIDTH if distributed.strategy == BY_WIDTH else 'fsdp or hsdp'}"
    because = f"{OFFLOAD} = true" if distributed.cpu_offload else because
    return [
        loaded.problem(key, f"{message}: with {because} the model is split", hint)
        for key, message, hint in _whole_only(loaded.config)
    ]


def _whole_only(config: Config) -> Iterator[_Refusal]:
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


def tensor_parallel_problems(
    loaded: LoadedConfig, shape: ModelShape, processes: int, nodes: int, *, in_fp16: bool
) -> Iterator[Problem]:
    """What does not go together with layers that are split by width over so many processes."""
    config = loaded.config
    if in_fp16:
        # torch checks the gradients of parts and of whole weights for overflow together, which it cannot.
        message = f"fp16 has a loss scale, which does not go with {STRATEGY} = tp"
        yield loaded.problem("training.mixed_precision", message, f"set it to no, or {STRATEGY} = fsdp")
    if nodes > 1:
        message = f"is tp, and there are {nodes} nodes: what layers send each other is too much for the network"
        yield loaded.problem(STRATEGY, message, f"set {STRATEGY} = hsdp or fsdp")
    if config.tuning.method == "lora":
        message = f"is lora: with {STRATEGY} = tp adapters would have to be split by width"
        yield loaded.problem("tuning.method", message, f"set {STRATEGY} = fsdp, or tuning.method = full")
    if config.model.kernels not in ("auto", "none"):
        message = f"{config.model.kernels}: kernels of libraries take whole weights, and {STRATEGY} = tp has parts"
        yield loaded.problem("model.kernels", message, "set it to auto or none")
    if why_not := split_lack(shape, processes):
        yield loaded.problem(STRATEGY, f"is tp, and {why_not}", f"set {STRATEGY} = fsdp, which splits any model")


def split_lack(shape: ModelShape, processes: int) -> str:
    """Why this model is not split by width, as a clause; empty where it can be."""
    if shape.model_type not in FAMILIES:
        return f"no plan is known that splits the layers of {shape.model_type or 'this model'}"
    found = find_spec("transformers")
    if not any((Path(place) / _PLANS).is_file() for place in (found and found.submodule_search_locations) or ()):
        return "the transformers that is installed has no transformers.distributed.tensor_parallel"
    heads = {"attention heads": shape.attention_heads, "heads of keys and values": shape.key_value_heads}
    odd = next(((name, count) for name, count in heads.items() if count % processes), None)
    return f"{odd[1]} {odd[0]} are not divided by {processes} processes" if odd else ""


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
