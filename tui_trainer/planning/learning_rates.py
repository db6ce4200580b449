"""The peak learning rate: what `auto` becomes for each optimizer and method, and the range that each of them takes."""

import math

from tui_trainer.config.load import LoadedConfig, all_settings
from tui_trainer.config.sections import Config
from tui_trainer.methods.optimizers import ADAPTIVE, OPTIMIZERS, PeakRate, Start
from tui_trainer.planning.batch_cut import EFFECTIVE, effective_rows
from tui_trainer.planning.planned import Planned, exact

KEY = "training.learning_rate"
_WORDS: dict[Start, tuple[str, str]] = {
    "scratch": ("the model starts from scratch", "a model from random weights"),
    "lora": ("LoRA", "LoRA"),
    "full": ("all weights of a pretrained model", "a pretrained model"),
}


def learning_rate(loaded: LoadedConfig, rows: int | None = None) -> Planned[float]:
    """`rows`: behind a step, where a plan knows them: among how many processes may be up to the machine."""
    config, written = loaded.config, loaded.config.training.learning_rate
    if written != "auto":
        return _scaled(loaded, exact(written, f"from {loaded.where(KEY)}"), rows)
    reasons = (_WORDS[_start(config)][0], OPTIMIZERS[config.training.optim].learning_rate_reason)
    reason = f"auto: {'; '.join(filter(None, reasons))}"
    return _scaled(loaded, exact(peak_rate(config).auto, reason), rows)


def _scaled(loaded: LoadedConfig, rate: Planned[float], rows: int | None) -> Planned[float]:
    """As `training.lr_scaling` asks for, from the effective batch of the presets to that of the run."""
    scaling = loaded.config.training.lr_scaling
    if scaling == "none":
        return rate
    if loaded.config.training.learning_rate != "auto" and loaded.origin(KEY).by_user:
        return rate.model_copy(update={"reason": f"{rate.reason}; your own rate is not scaled"})
    written = loaded.recipe.values.get("training", {}).get("effective_batch_size") if loaded.recipe else None
    before, now = written or all_settings()[EFFECTIVE].default, rows or effective_rows(loaded)
    where = f"recipe {loaded.recipe.name}" if written and loaded.recipe else "the default"
    if before == now:
        return rate.model_copy(update={"reason": f"{rate.reason}; it is for {now} rows, and not scaled"})
    factor = math.sqrt(now / before) if scaling == "sqrt" else now / before
    value = float(f"{rate.value * factor:.3g}")
    how = f"{scaling} scaling from {before} rows ({where}) to {now}: {rate.value:g} -> {value:g}"
    return exact(value, f"{rate.reason}; {how}")


def peak_rate(config: Config) -> PeakRate:
    """Of its optimizer and method."""
    return OPTIMIZERS[config.training.optim].learning_rates[_start(config)]


def what_trains(config: Config) -> str:
    """In words that a range is given for."""
    optimizer = OPTIMIZERS[config.training.optim]
    return _WORDS[_start(config)][1] + ("" if optimizer.learning_rates is ADAPTIVE else f" with {optimizer.label}")


def _start(config: Config) -> Start:
    if config.is_from_scratch:
        return "scratch"
    return "lora" if config.tuning.has_adapter else "full"
