"""Whether weights can be kept in 4 bits on this machine, and what works nearest to that where they cannot."""

from dataclasses import replace

from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import Problem
from tui_trainer.hardware.facts import Hardware
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.automatic_values import Target
from tui_trainer.planning.fit import needed_bytes, with_dry_run
from tui_trainer.planning.training_setup import TrainingSetup
from tui_trainer.units import format_bytes

_KEY = "tuning.method"


def four_bit_problems(
    loaded: LoadedConfig, hardware: Hardware, target: Target, shape: ModelShape, setup: TrainingSetup
) -> list[Problem]:
    """Weights in 4 bits without a GPU, or without the library that packs them. `setup` is the one with 4 bits."""
    if setup.four_bits is None:
        return []
    instead = _sixteen_bits(loaded, shape, setup)
    if target.device == "cpu":
        return [loaded.problem(_KEY, f"qlora needs a GPU, and this run is on the CPU ({target.reason})", instead)]
    if hardware.libraries.get("bitsandbytes") is None and not is_asked(loaded.config):
        hint = f"install it: uv pip install bitsandbytes; or {instead}"
        return [loaded.problem(_KEY, "qlora needs bitsandbytes, which is not installed", hint)]
    return []


def _sixteen_bits(loaded: LoadedConfig, shape: ModelShape, setup: TrainingSetup) -> str:
    """LoRA beside the same weights in 16 bits, with the memory that each takes at one row in a pass."""
    config = loaded.config
    whole, _ = with_dry_run(config, shape, replace(setup, method="lora", four_bits=None, weights="bfloat16"))
    wanted, packed = (format_bytes(needed_bytes(shape, way, config, 1)) for way in (whole, setup))
    ways = f'set {_KEY} = "lora" and model.dtype = "bfloat16"'
    return f"{ways}: about {wanted} of memory at one row in a pass, where 4 bits would take {packed}"
