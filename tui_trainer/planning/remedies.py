"""What would make a plan fit, in the order of what it costs, each with the memory that it would then take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.config.sections import Config
from tui_trainer.models.four_bits import FourBits
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.choices import is_from_scratch
from tui_trainer.planning.fit import needed_bytes
from tui_trainer.planning.regime import Dtype, Precision, Regime
from tui_trainer.units import format_bytes

_CHUNK_TOKENS = 1024
_SHORTEST = 128
_LORA_RANK = 16
# A change that saves less of the memory is not worth its price.
_LEAST_SAVING = 0.01
_BY_PRECISION: dict[Precision, Dtype] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True, slots=True)
class _Way:
    """How the model would be trained, as memory depends on it."""

    shape: ModelShape
    regime: Regime
    config: Config
    micro_batch: int

    @property
    def needed_bytes(self) -> int:
        return needed_bytes(self.shape, self.regime, self.config, self.micro_batch)

    @property
    def max_length(self) -> int:
        return self.config.data.max_length


def remedies(shape: ModelShape, regime: Regime, config: Config, micro_batch: int, budget: float) -> list[str]:
    """Sentences such as `training.gradient_checkpointing = true (12.1 GiB)`, each with all before it in force.

    What saves nothing here is left out. The list ends with the first that fits, or says that none does.
    """
    way = _Way(shape, regime, config, micro_batch)
    least, found = way.needed_bytes, []
    for change in _CHANGES:
        sentence, changed = change(way, budget)
        needed = changed.needed_bytes
        if needed > (1 - _LEAST_SAVING) * least:
            continue
        way, least = changed, needed
        found.append(f"{sentence} ({format_bytes(needed)})")
        if needed <= budget:
            return found
    return [*found, "none of this is enough: choose a smaller model" if found else "choose a smaller model"]


def _one_row(way: _Way, _budget: float) -> tuple[str, _Way]:
    return "training.per_device_train_batch_size = 1", replace(way, micro_batch=1)


def _chunked_loss(way: _Way, _budget: float) -> tuple[str, _Way]:
    chunk = min(way.regime.loss_chunk_tokens or _CHUNK_TOKENS, _CHUNK_TOKENS)
    regime = replace(way.regime, loss_chunk_tokens=chunk)
    return f"training.loss_chunk_tokens = {_CHUNK_TOKENS}", replace(way, regime=regime)


def _checkpointing(way: _Way, _budget: float) -> tuple[str, _Way]:
    regime = replace(way.regime, gradient_checkpointing=True)
    return "training.gradient_checkpointing = true, a quarter slower", replace(way, regime=regime)


def _adafactor(way: _Way, _budget: float) -> tuple[str, _Way]:
    """It takes AdamW's learning rate, `auto` or written (`planning/learning_rates.py`)."""
    return 'training.optim = "adafactor"', replace(way, regime=replace(way.regime, optim="adafactor"))


def _lora(way: _Way, _budget: float) -> tuple[str, _Way]:
    """LoRA on all linear layers, the frozen weights in what products take. Random weights cannot be frozen."""
    if way.regime.method != "full" or is_from_scratch(way.config):
        return "", way
    layers = [linear for linear in way.shape.linears if not linear.is_head]
    regime = replace(
        way.regime,
        method="lora",
        weights=_BY_PRECISION[way.regime.precision],
        trained_parameters=sum(_LORA_RANK * (linear.inputs + linear.outputs) * linear.count for linear in layers),
        lora_rank=_LORA_RANK,
        lora_targets=tuple(linear.name for linear in layers),
    )
    return 'tuning.method = "lora"', replace(way, regime=regime)


def _qlora(way: _Way, budget: float) -> tuple[str, _Way]:
    """The same with the frozen weights in 4 bits. They are unpacked on a GPU only."""
    if way.regime.four_bits or way.regime.device != "cuda" or is_from_scratch(way.config):
        return "", way
    _, adapted = _lora(way, budget)
    tuning = way.config.tuning.model_copy(update={"method": "qlora"})
    config = way.config.model_copy(update={"tuning": tuning})
    regime = replace(adapted.regime, method="qlora", four_bits=FourBits.of(config, way.shape))
    return 'tuning.method = "qlora", a quarter slower', replace(adapted, regime=regime)


def _shorter(way: _Way, budget: float) -> tuple[str, _Way]:
    """The first half, quarter, ... of the length that fits, or the shortest."""
    while way.max_length > _SHORTEST and way.needed_bytes > budget:
        data = way.config.data.model_copy(update={"max_length": way.max_length // 2})
        # In narrower rows a step may have one for each document.
        config, regime = way.config.model_copy(update={"data": data}), replace(way.regime, most_rows=0)
        way = replace(way, config=config, regime=regime)
    return f"data.max_length = {way.max_length}", way


_CHANGES: tuple[Callable[[_Way, float], tuple[str, _Way]], ...] = (
    _one_row,
    _chunked_loss,
    _checkpointing,
    _adafactor,
    _lora,
    _qlora,
    _shorter,
)
