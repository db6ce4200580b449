"""What would make a plan fit, in the order of what it costs, each with the memory that it would then take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tui_trainer.config.sections import Config
from tui_trainer.models.shape import ModelShape
from tui_trainer.planning.fit import needed_bytes
from tui_trainer.planning.regime import Regime
from tui_trainer.units import format_bytes

_CHUNK_TOKENS = 1024
_SHORTEST = 128
_MOST_SHOWN = 4


def remedies(shape: ModelShape, regime: Regime, config: Config, micro_batch: int, budget: float) -> list[str]:
    """Sentences such as `training.gradient_checkpointing = true (12.1 GiB)`, each with all before it in force.

    The list ends with the first that fits, or with what is left when none does.
    """
    found = []
    for what, changed, rows, settings in _steps(shape, regime, config, micro_batch):
        needed = needed_bytes(shape, changed, settings, rows)
        found.append(f"{what} ({format_bytes(needed)})")
        if needed <= budget:
            return found[-_MOST_SHOWN:]
    return [*found[-_MOST_SHOWN:], "none of this is enough: choose a smaller model"]


def _steps(
    shape: ModelShape, regime: Regime, config: Config, micro_batch: int
) -> Iterator[tuple[str, Regime, int, Config]]:
    """(sentence, regime, micro-batch, config) of each remedy added to those before it."""
    if micro_batch > 1:
        yield "training.per_device_train_batch_size = 1", regime, 1, config
    if not regime.loss_chunk_tokens and config.data.max_length > _CHUNK_TOKENS:
        regime = replace(regime, loss_chunk_tokens=_CHUNK_TOKENS)
        yield f"training.loss_chunk_tokens = {_CHUNK_TOKENS}", regime, 1, config
    if not regime.gradient_checkpointing:
        regime = replace(regime, gradient_checkpointing=True)
        yield "training.gradient_checkpointing = true, a quarter slower", regime, 1, config
    if regime.method == "full" and regime.optim == "adamw_torch_fused":
        yield 'training.optim = "adafactor"', replace(regime, optim="adafactor"), 1, config
    if regime.method == "full":
        regime = _as_lora(shape, regime)
        yield 'tuning.method = "lora"', regime, 1, config
    length = config.data.max_length
    while length > _SHORTEST:
        length //= 2
        data = config.data.model_copy(update={"max_length": length})
        yield f"data.max_length = {length}", regime, 1, config.model_copy(update={"data": data})


def _as_lora(shape: ModelShape, regime: Regime) -> Regime:
    """LoRA of rank 16 on all linear layers, the frozen weights in what products take."""
    rank = 16
    layers = [linear for linear in shape.linears if not linear.is_head]
    trained = sum(rank * (linear.inputs + linear.outputs) * linear.count for linear in layers)
    by_precision = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
    return replace(
        regime,
        method="lora",
        weights=by_precision[regime.precision],  # type: ignore[arg-type]
        trained_parameters=trained,
        lora_rank=rank,
        lora_targets=tuple(linear.name for linear in layers),
    )
