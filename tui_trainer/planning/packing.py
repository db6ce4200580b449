"""Whether documents share rows, and how many rows a step then has.

A step learns from the same documents either way, so neither the gradient nor the number of steps depends on it; only
the time does.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from tui_trainer.config.load import LoadedConfig
from tui_trainer.config.sections import Config
from tui_trainer.errors import Problem
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.batching import ACCUMULATION, MICRO, TUNE, BatchCut
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.tasks.contract import DataFacts

KEY = "data.packing"
# Families whose layers do not take positions for the beginning of a document. Shown by tests/training/test_packing.py;
# for any other one the probe at the start of a run decides (`training/leak_probe.py`).
SEES_OTHERS = {
    "opt": "OPT counts positions through the whole row",
    "bloom": "Bloom measures distances through the whole row",
    "falcon": "Falcon's attention does not end at a document",
    "mamba": "Mamba carries its state through the whole row",
    "mamba2": "Mamba carries its state through the whole row",
    "mpt": "MPT measures distances through the whole row",
}
# Below this saving, rows are nearly full as they are.
_LEAST_SAVING = 0.1
# The rows of a step differ in number; so many more than the mean are still taken in as few passes.
_SPREAD = 1.2
# The tokens of a batch above their mean, and the longest document above the longest that was looked at.
_BATCH_SPREAD, _GUESSED_SPREAD = 1.3, 1.5


def packing(loaded: LoadedConfig, facts: DataFacts, shape: ModelShape, effective: int) -> Planned[bool]:
    requested = loaded.config.data.packing
    where = f", from {loaded.where(KEY)}"
    if requested is False:
        return exact(False, f"data.packing = false{where}")
    if facts.packed_rows is None:
        task = loaded.config.task.type
        why = "rows are cut from one long text: they are full" if facts.is_stream else f"{task} reads each row alone"
        return exact(False, why)
    if is_asked(loaded.config):
        return exact(False, "Unsloth attends over whole rows")
    if shape.model_type in SEES_OTHERS:
        return exact(False, f"{SEES_OTHERS[shape.model_type]}: packed documents would mix")
    rows = min(effective, facts.rows)
    saving = 1 - facts.packed_rows / rows
    fill = f"{rows} documents of about {facts.row_tokens:.0f} tokens fill {facts.packed_rows:.1f} rows"
    if requested is True:
        return Planned(value=True, exact=facts.exact, reason=f"{fill}{where}")
    if saving < _LEAST_SAVING:
        return Planned(value=False, exact=facts.exact, reason=f"{fill}: there is little to save")
    return Planned(value=True, exact=facts.exact, reason=fill)


def packing_problems(loaded: LoadedConfig, shape: ModelShape) -> list[Problem]:
    """Packing that was asked for, and would let documents see each other."""
    if loaded.config.data.packing is True and shape.model_type in SEES_OTHERS:
        return [loaded.problem(KEY, f"is true, but {SEES_OTHERS[shape.model_type]}", "set it to auto")]
    return []


def longest_row(config: Config, facts: DataFacts, packed: bool) -> int:
    """Tokens of the longest row that a pass gets: what memory is reckoned with, and what packing keeps to.

    Documents of a small batch that fit into one row do not fill it; otherwise packed rows are full.
    """
    length, longest = config.data.max_length, _longest(config, facts)
    if not packed:
        return longest
    together = min(config.training.effective_batch_size, facts.rows) * facts.row_tokens
    return min(length, max(longest, math.ceil(together * _BATCH_SPREAD)))


def _longest(config: Config, facts: DataFacts) -> int:
    length, spread = config.data.max_length, 1.0 if facts.exact else _GUESSED_SPREAD
    return min(length, math.ceil((facts.longest_row or length) * spread))


def most_rows(config: Config, facts: DataFacts, packed: bool, effective: int) -> int:
    """Rows that a step can have at the most.

    Best fit begins a row only with a document that no other row has room for, so all rows but the last hold as many
    documents as the longest would fit in.
    """
    documents = min(effective, facts.rows)
    if not packed:
        return documents
    return -(-documents // (longest_row(config, facts, packed) // _longest(config, facts)))


def packed_cut(
    loaded: LoadedConfig, cut: BatchCut, facts: DataFacts, widest: int, largest_fit: Callable[[int], int]
) -> BatchCut:
    """The cut of a step whose documents share rows: a micro-batch counts those rows."""
    in_one_row = widest < loaded.config.data.max_length
    most = -(-most_rows(loaded.config, facts, True, cut.effective) // cut.processes)
    rows = 1 if in_one_row else min(most, math.ceil((facts.packed_rows or 1) * _SPREAD / cut.processes))
    training = loaded.config.training
    parts = training.gradient_accumulation_steps
    if loaded.origin(MICRO).by_user and isinstance(training.per_device_train_batch_size, int):
        micro, reason = min(cut.micro, rows), cut.micro_reason
        reason += f"; a step has no more than {rows} packed rows" if micro < cut.micro else ""
    elif isinstance(parts, int) and training.per_device_train_batch_size != TUNE:
        micro, reason = -(-rows // min(parts, rows)), f"packed rows / {ACCUMULATION} from {loaded.where(ACCUMULATION)}"
    else:
        fits = largest_fit(rows)
        micro = -(-rows // -(-rows // fits))
        reason = "all packed rows of a step fit" if fits >= rows else f"{fits} packed rows fit in memory"
    accumulation = -(-rows // micro)
    return replace(
        cut,
        micro=micro,
        micro_reason=reason,
        accumulation=accumulation,
        accumulation_reason=f"up to {rows} packed rows in parts of {micro}"
        + ("; a step with more takes another pass" if most > accumulation * micro else ""),
    )
