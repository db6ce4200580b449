"""How the effective batch is cut into micro-batches.

Effective batch = micro-batch x accumulation, and any cut gives the same gradient (the loss is a sum and a count), so
the last micro-batch may be smaller. Recipes state the effective batch; hardware profiles and memory decide the cut.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import Problem

EFFECTIVE = "training.effective_batch_size"
MICRO = "training.per_device_train_batch_size"
ACCUMULATION = "training.gradient_accumulation_steps"


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCut:
    """Rows behind one optimizer step, rows in one forward pass, and how many of those make one step."""

    effective: int
    micro: int
    accumulation: int
    effective_reason: str
    micro_reason: str
    accumulation_reason: str


def batch_problems(loaded: LoadedConfig) -> list[Problem]:
    """Three numbers from the user that contradict each other."""
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective = training.effective_batch_size
    if not (isinstance(micro, int) and isinstance(accumulation, int)) or micro * accumulation == effective:
        return []
    if not all(loaded.origin(key).by_user for key in (EFFECTIVE, MICRO, ACCUMULATION)):
        return []
    message = f"is {effective}, but {MICRO} x {ACCUMULATION} = {micro} x {accumulation} = {micro * accumulation}"
    return [loaded.problem(EFFECTIVE, message, "leave one of the three out")]


def cut_batch(loaded: LoadedConfig, largest_fit: Callable[[int], int]) -> BatchCut | Problem:
    """The cut that the config asks for. `largest_fit(limit)`: the most rows up to `limit` whose memory fits."""
    if problems := batch_problems(loaded):
        return problems[0]
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective, effective_reason = training.effective_batch_size, f"from {loaded.where(EFFECTIVE)}"
    micro_written, accumulation_written = (loaded.origin(key).by_user for key in (MICRO, ACCUMULATION))
    if isinstance(micro, int) and isinstance(accumulation, int) and micro_written and accumulation_written:
        return _cut(micro * accumulation, micro, "micro-batch x accumulation", f"from {loaded.where(MICRO)}")
    if isinstance(micro, int) and micro_written:
        reason = f"from {loaded.where(MICRO)}"
        if micro > effective:
            reason += f", which says {micro}: no more than the effective batch"
        return _cut(effective, min(micro, effective), effective_reason, reason)
    if isinstance(accumulation, int):
        reason = f"effective batch / {ACCUMULATION} from {loaded.where(ACCUMULATION)}"
        cut = _cut(effective, -(-effective // min(accumulation, effective)), effective_reason, reason)
        if cut.accumulation == accumulation:
            return cut
        uneven = f"{cut.accumulation_reason}; {accumulation}, as asked for, would leave a part empty"
        return replace(cut, accumulation_reason=uneven)
    limit = min(micro, effective) if isinstance(micro, int) else effective
    fits = largest_fit(limit)
    # Equal parts: 32 rows of which 20 fit are cut into 16 and 16, not into 20 and 12.
    even = -(-effective // -(-effective // fits))
    return _cut(effective, even, effective_reason, _auto_reason(loaded, micro, fits, limit, effective))


def _cut(effective: int, micro: int, effective_reason: str, micro_reason: str) -> BatchCut:
    return BatchCut(
        effective=effective,
        micro=micro,
        accumulation=-(-effective // micro),
        effective_reason=effective_reason,
        micro_reason=micro_reason,
        accumulation_reason=f"{effective} rows in parts of {micro}",
    )


def _auto_reason(loaded: LoadedConfig, requested: int | str, fits: int, limit: int, effective: int) -> str:
    if fits < limit:
        return f"the largest equal part of the effective batch that fits in memory ({fits} rows would)"
    if isinstance(requested, int) and requested < effective:
        return f"the largest equal part of the effective batch up to {requested}, from {loaded.where(MICRO)}"
    return "the whole effective batch fits"
