"""The peak learning rate of a config: the value of `auto`, and the usual range for optimizer, method and size."""

import math
from dataclasses import replace
from typing import Literal

from tui_trainer.config.changes import with_changes
from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.methods.learning_rates import ADAPTIVE_RATES, PeakRate, Start, rate_of_size
from tui_trainer.methods.optimizers import OPTIMIZERS
from tui_trainer.planning.batch_cut import BASE_BATCH_KEY, base_rows
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.tasks import find_task
from tui_trainer.units import format_count

LEARNING_RATE = "training.learning_rate"
_WORDS: dict[Start, tuple[str, str]] = {
    "scratch": ("from scratch", "from random weights"),
    "lora": ("LoRA", "with LoRA"),
    "full": ("all weights of a pretrained model", "with all weights trained"),
}


def learning_rate(loaded: LoadedConfig, parameters: int, rows: int) -> Planned[float]:
    """Return the peak learning rate for a model with `parameters` parameters and `rows` rows per step."""
    config, setting = loaded.config, loaded.config.training.learning_rate
    if setting != "auto":
        return _scaled(loaded, exact(setting, f"from {loaded.where(LEARNING_RATE)}"), parameters, rows)
    size_words = f"{_words(config)[0]}, {format_count(parameters)} parameters"
    factor, loss_title = find_task(config.task.type).rate_factor(config)
    loss_words = f"{factor:.3g} times the rate for supervised training, for {loss_title}" if loss_title else ""
    reasons = (size_words, loss_words, OPTIMIZERS[config.training.optim].learning_rate_reason)
    reason = f"auto: {'; '.join(filter(None, reasons))}"
    return _scaled(loaded, exact(peak_rate(config, parameters).auto, reason), parameters, rows)


def usual_learning_rate(loaded: LoadedConfig, parameters: int, rows: int) -> float:
    """Return the peak learning rate that `auto` gives, also if another rate is set."""
    config = with_changes(loaded.config, {LEARNING_RATE: "auto"})
    return learning_rate(replace(loaded, config=config), parameters, rows).value


def scaling_of(loaded: LoadedConfig) -> Literal["none", "sqrt", "linear"]:
    """Return how the learning rate grows with the effective batch. With `auto` it grows only if the recipe or the user
    sets `effective_batch_size = "auto"`."""
    training, recipe = loaded.config.training, loaded.recipe
    if training.lr_scaling != "auto":
        return training.lr_scaling
    recipe_rows = recipe.values.get("training", {}).get("effective_batch_size") if recipe else None
    if "auto" not in (training.effective_batch_size, recipe_rows):
        return "none"
    return usual_scaling(training.optim)


def usual_scaling(optim: str) -> Literal["sqrt", "linear"]:
    """Return the scaling that suits an optimizer: with the square root of the batch for Adam and similar ones (Malladi
    et al., arXiv:2205.10287), in proportion for SGD (Goyal et al., arXiv:1706.02677)."""
    return "linear" if optim == "sgd" else "sqrt"


def scaled(rate: float, scaling: Literal["none", "sqrt", "linear"], old_rows: int, rows: int) -> float:
    """Return a learning rate for `rows` rows per step, from a rate for `old_rows`. It is rounded to three digits."""
    factor = {"none": 1.0, "sqrt": math.sqrt(rows / old_rows), "linear": rows / old_rows}[scaling]
    return float(f"{rate * factor:.3g}")


def _scaled(loaded: LoadedConfig, rate: Planned[float], parameters: int, rows: int) -> Planned[float]:
    """Return the rate scaled by `training.lr_scaling` from the rows that it is meant for to `rows` rows per step."""
    scaling = scaling_of(loaded)
    if scaling == "none":
        return rate
    is_own_rate = loaded.config.training.learning_rate != "auto" and loaded.origin(LEARNING_RATE).by_user
    if is_own_rate and not loaded.origin(BASE_BATCH_KEY).by_user:
        return rate.model_copy(update={"reason": f"{rate.reason}; a rate that you set is not scaled"})
    base_row_count, source = base_rows(loaded)
    if base_row_count == rows:
        unscaled_clause = f"a step has the {rows} rows that this rate is meant for, so it is not scaled"
        return rate.model_copy(update={"reason": f"{rate.reason}; {unscaled_clause}"})
    new_rate, note = scaled(rate.value, scaling, base_row_count, rows), ""
    highest_rate = max(peak_rate(loaded.config, parameters).most, rate.value)
    if loaded.config.training.lr_scaling == "auto" and new_rate > highest_rate:
        new_rate, note = highest_rate, f", above which {what_trains(loaded.config, parameters)} tends to diverge"
    clause = f"{scaling} scaling from {base_row_count} ({source}) to {rows} rows: {rate.value:g} -> {new_rate:g}{note}"
    return exact(new_rate, f"{rate.reason}; {clause}")


def peak_rate(config: Config, parameters: int) -> PeakRate:
    """Return the usual peak learning rates for this task, optimizer, tuning method and model size."""
    rate = rate_of_size(OPTIMIZERS[config.training.optim].learning_rates, _start(config), parameters)
    factor, _ = find_task(config.task.type).rate_factor(config)
    return rate if factor == 1 else PeakRate(rate.auto * factor, rate.most * factor)


def what_trains(config: Config, parameters: int) -> str:
    """Return what the usual learning rates apply to: `a model of 82 M parameters with LoRA, using SGD`."""
    optimizer = OPTIMIZERS[config.training.optim]
    return f"a model of {format_count(parameters)} parameters {_words(config)[1]}" + (
        "" if optimizer.learning_rates is ADAPTIVE_RATES else f", using {optimizer.label}"
    )


def _start(config: Config) -> Start:
    if config.is_from_scratch:
        return "scratch"
    return "lora" if config.tuning.has_adapter and not _is_pissa(config) else "full"


def _words(config: Config) -> tuple[str, str]:
    pissa_text = "adapters initialised from the principal components of the weights"
    return (pissa_text, f"with {pissa_text}") if _is_pissa(config) else _WORDS[_start(config)]


def _is_pissa(config: Config) -> bool:
    """Return whether adapters start as a part of the pretrained weights and learn at the rate of full training. PiSSA's
    own rate for 7 B is 2e-5 (arXiv:2404.02948, section 5.1). OLoRA does not count: its rate is that of LoRA."""
    return config.tuning.mutates_weights and config.tuning.init_lora_weights != "olora"
