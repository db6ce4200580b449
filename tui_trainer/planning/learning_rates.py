"""The peak learning rate: what `auto` becomes for each optimizer and method, and the range that each of them takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.config.training_section import Optimiser
from tui_trainer.planning.automatic_values import is_from_scratch
from tui_trainer.planning.planned import Planned

KEY = "training.learning_rate"
Start = Literal["scratch", "lora", "full"]
_WORDS: dict[Start, tuple[str, str]] = {
    "scratch": ("the weights start from random values", "a model from random weights"),
    "lora": ("LoRA", "LoRA"),
    "full": ("all weights of a pretrained model", "a pretrained model"),
}


@dataclass(frozen=True, slots=True)
class PeakRate:
    """What `auto` takes; below `least` weights hardly move, above `most` training tends to diverge."""

    auto: float
    least: float
    most: float


# Pretrained weights are only to be nudged, adapters begin at zero.
_ADAPTIVE: dict[Start, PeakRate] = {
    "scratch": PeakRate(1e-3, 1e-5, 1e-2),
    "lora": PeakRate(2e-4, 2e-5, 2e-3),
    "full": PeakRate(2e-5, 1e-6, 2e-4),
}
# AdamW moves each of P weights by about its rate, sqrt(P) times as far in all; SGD moves all of them together by its
# rate times the norm of the clipped gradient, at most 1. Measured on 90 k and 35 k weights of a small Llama, 80 steps:
# the drop of AdamW's loss at 2e-5 (full), 2e-4 (LoRA) and 1e-3 (scratch) is that of SGD at 0.005, 0.04 and 0.1.
_SGD: dict[Start, PeakRate] = {
    "scratch": PeakRate(0.1, 1e-2, 3.0),
    "lora": PeakRate(0.1, 3e-3, 3.0),
    "full": PeakRate(0.03, 3e-4, 0.3),
}
# Adafactor as it is built here does not scale its steps by the weights (`training/optimizers.py`).
_RATES: dict[Optimiser, dict[Start, PeakRate]] = {
    "adamw_torch_fused": _ADAPTIVE,
    "adamw_8bit": _ADAPTIVE,
    "paged_adamw_8bit": _ADAPTIVE,
    "paged_adamw_32bit": _ADAPTIVE,
    "adafactor": _ADAPTIVE,
    "sgd": _SGD,
}


def learning_rate(loaded: LoadedConfig) -> Planned[float]:
    """The peak rate."""
    config, written = loaded.config, loaded.config.training.learning_rate
    if written != "auto":
        return Planned(value=written, exact=True, reason=f"from {loaded.where(KEY)}")
    optimizer, reason = config.training.optim, _WORDS[_start(config)][0]
    if optimizer == "sgd":
        reason += "; SGD's steps are as long as the clipped gradient, however many weights share it"
    elif optimizer == "adafactor":
        reason += "; Adafactor takes AdamW's rates, its steps are not scaled by the weights"
    return Planned(value=peak_rate(config).auto, exact=True, reason=f"auto: {reason}")


def peak_rate(config: Config) -> PeakRate:
    """Of its optimizer and method."""
    return _RATES[config.training.optim][_start(config)]


def what_trains(config: Config) -> str:
    """In words that a range is given for."""
    return _WORDS[_start(config)][1] + (" with SGD" if config.training.optim == "sgd" else "")


def _start(config: Config) -> Start:
    if is_from_scratch(config):
        return "scratch"
    return "lora" if config.tuning.has_adapter else "full"
