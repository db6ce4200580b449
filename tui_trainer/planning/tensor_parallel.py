"""Layers split by width over the processes of a node (`distributed.strategy = "tp"`): for which models and settings."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import Problem
from tui_trainer.models.shape import ModelShape

STRATEGY = "distributed.strategy"
FAMILIES = frozenset("gemma gemma2 llama mistral phi qwen2 qwen3".split())
"""Whose plan splits attention and MLP both, and of which it is shown that they learn the same
(`tests/distributed/test_tensor_parallel.py`). Source: `base_model_tp_plan` in the configuration files of transformers
5.23; those of phi3 and olmo2 compute the attention whole in each process, gpt2, opt, bloom and falcon have none."""
_PLANS = Path("distributed", "tensor_parallel.py")
_OTHERWISE = f"set {STRATEGY} = fsdp, which splits any model"


def tensor_parallel_problems(loaded: LoadedConfig, shape: ModelShape, processes: int, nodes: int) -> list[Problem]:
    """What does not go together with layers that are split by width over so many processes."""
    config, found = loaded.config, []

    def refuse(key: str, message: str, hint: str) -> None:
        found.append(loaded.problem(key, message, hint))

    if nodes > 1:
        message = f"is tp, and there are {nodes} nodes: what layers send each other is too much for the network"
        refuse(STRATEGY, message, f"set {STRATEGY} = hsdp or fsdp")
    if config.tuning.method == "lora":
        message = f"is lora: with {STRATEGY} = tp adapters would have to be split by width"
        refuse("tuning.method", message, f"set {STRATEGY} = fsdp, or tuning.method = full")
    if config.model.kernels not in ("auto", "none"):
        message = f"{config.model.kernels}: kernels of libraries take whole weights, and {STRATEGY} = tp has parts"
        refuse("model.kernels", message, "set it to auto or none")
    if why_not := split_lack(shape, processes):
        refuse(STRATEGY, f"is tp, and {why_not}", _OTHERWISE)
    return found


def split_lack(shape: ModelShape, processes: int) -> str:
    """Why this model is not split by width, as a clause; empty where it can be."""
    if shape.model_type not in FAMILIES:
        return f"no plan is known that splits the layers of {shape.model_type or 'this model'}"
    if not has_plans():
        return "the transformers that is installed has no transformers.distributed.tensor_parallel"
    heads = {"attention heads": shape.attention_heads, "heads of keys and values": shape.key_value_heads}
    odd = next(((name, count) for name, count in heads.items() if count % processes), None)
    return f"{odd[1]} {odd[0]} are not divided by {processes} processes" if odd else ""


def has_plans(find: Callable[[str], object] = find_spec) -> bool:
    """Whether the installed transformers splits layers by its models' plans."""
    found = find("transformers")
    places = getattr(found, "submodule_search_locations", None) or ()
    return any((Path(place) / _PLANS).is_file() for place in places)
