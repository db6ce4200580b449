"""The peak learning rate: what `auto` becomes for each optimizer and method, and the range that each of them takes."""

from __future__ import annotations

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.optimizers import ADAPTIVE, OPTIMIZERS, PeakRate, Start
from tui_trainer.planning.automatic_values import is_from_scratch
from tui_trainer.planning.planned import Planned

KEY = "training.learning_rate"
_WORDS: dict[Start, tuple[str, str]] = {
    "scratch": ("the model starts from scratch", "a model from random weights"),
    "lora": ("LoRA", "LoRA"),
    "full": ("all weights of a pretrained model", "a pretrained model"),
}


def learning_rate(loaded: LoadedConfig) -> Planned[float]:
    """The peak rate."""
    config, written = loaded.config, loaded.config.training.learning_rate
    if written != "auto":
        return Planned(value=written, exact=True, reason=f"from {loaded.where(KEY)}")
    reasons = (_WORDS[_start(config)][0], OPTIMIZERS[config.training.optim].learning_rate_reason)
    return Planned(value=peak_rate(config).auto, exact=True, reason=f"auto: {'; '.join(filter(None, reasons))}")


def peak_rate(config: Config) -> PeakRate:
    """Of its optimizer and method."""
    return OPTIMIZERS[config.training.optim].learning_rates[_start(config)]


def what_trains(config: Config) -> str:
    """In words that a range is given for."""
    optimizer = OPTIMIZERS[config.training.optim]
    return _WORDS[_start(config)][1] + ("" if optimizer.learning_rates is ADAPTIVE else f" with {optimizer.label}")


def _start(config: Config) -> Start:
    if is_from_scratch(config):
        return "scratch"
    return "lora" if config.tuning.has_adapter else "full"
