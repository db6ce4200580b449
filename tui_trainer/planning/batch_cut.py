"""Cut the effective batch into micro-batches.

Effective batch = micro-batch x accumulation x processes, and any cut gives the same gradient (the loss is a sum and a
count), so the last micro-batch may be smaller. Recipes state the effective batch; hardware profiles and memory decide
the cut.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.config.load import LoadedConfig, Origin, ResolvedLoaded
from tui_trainer.config.sections import Config, ResolvedConfig, step_rows
from tui_trainer.data.batching.pack import PaddingShares
from tui_trainer.errors import Problem
from tui_trainer.models.shape import ModelShape
from tui_trainer.models.unsloth import is_asked
from tui_trainer.planning.planned import Planned, exact
from tui_trainer.tasks.contract import DataFacts
from tui_trainer.units import quantity

EFFECTIVE = "training.effective_batch_size"
MICRO = "training.per_device_train_batch_size"
ACCUMULATION = "training.gradient_accumulation_steps"
BASE = "training.base_batch_size"
PROCESSES = "distributed.processes"


TUNE = "tune"
"""Value of the micro-batch setting for measuring it before the start (`planning/measured_steps.py`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCut:
    """Cut of a step: its rows in all processes, the rows of a forward pass, and the passes of each process."""

    effective: int
    micro: int
    accumulation: int
    effective_reason: str
    micro_reason: str
    accumulation_reason: str
    processes: int = 1

    @property
    def share(self) -> int:
        """Largest number of rows of a step in one process."""
        return -(-self.effective // self.processes)

    def share_of(self, rows: int) -> int:
        """Return the largest number of rows of a step in one process, for data with `rows` rows."""
        return -(-min(self.effective, rows) // self.processes)


def batch_problems(loaded: LoadedConfig, processes: int | None = None) -> list[Problem]:
    """Return a problem if the user set three sizes that contradict each other. `processes` is None if not known yet."""
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective = training.effective_batch_size
    if micro == TUNE and isinstance(accumulation, int) and loaded.origin(ACCUMULATION).by_user:
        message = f"is {accumulation}, but {MICRO} = {TUNE} determines the accumulation"
        return [loaded.problem(ACCUMULATION, message, "set it to auto")]
    if effective == "auto" or not (isinstance(micro, int) and isinstance(accumulation, int)):
        return []
    if processes is None:
        # With auto the count of processes can still make the sizes agree.
        others, rest = divmod(effective, micro * accumulation)
        processes = _requested(loaded) or (1 if rest else others)
    if micro * accumulation * processes == effective:
        return []
    if not all(loaded.origin(key).by_user for key in (EFFECTIVE, MICRO, ACCUMULATION)):
        return []
    product, numbers = f"{MICRO} x {ACCUMULATION}", f"{micro} x {accumulation}"
    if processes > 1:
        product, numbers = f"{product} x {PROCESSES}", f"{numbers} x {processes}"
    message = f"is {effective}, but {product} = {numbers} = {micro * accumulation * processes}"
    return [loaded.problem(EFFECTIVE, message, "remove one of these settings")]


def effective_rows(loaded: LoadedConfig, processes: int | None = None) -> int:
    """Return the rows per optimizer step: the effective batch, or the product of micro-batch, accumulation and
    processes if the user set the first two.
    """
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    both_written = all(loaded.origin(key).by_user for key in (MICRO, ACCUMULATION))
    if both_written and isinstance(micro, int) and isinstance(accumulation, int):
        return micro * accumulation * (processes or _requested(loaded) or loaded.config.distributed.nodes)
    return base_rows(loaded)[0] if training.effective_batch_size == "auto" else training.effective_batch_size


def base_rows(loaded: LoadedConfig) -> tuple[int, str]:
    """Return the rows per step that the learning rate is meant for, and the source of this number: the setting
    `base_batch_size`, or the recipe's effective batch."""
    recipe, written = loaded.recipe, loaded.origin(BASE) is not Origin.DEFAULT
    rows = recipe.values.get("training", {}).get("effective_batch_size") if recipe and not written else None
    if isinstance(rows, int) and recipe:
        return rows, f"recipe {recipe.name}"
    return loaded.config.training.base_batch_size, loaded.where(BASE) if written else "default"


def _requested(loaded: LoadedConfig) -> int:
    """Return the number of processes that share the rows of a step; 0 if it is `auto`."""
    distributed = loaded.config.distributed
    return 0 if distributed.processes == "auto" else distributed.processes * distributed.nodes


def even_parts(rows: int) -> list[int]:
    """Return the micro-batches that cut `rows` into equal parts, the smallest first: 1, 2, 3, 4, 6, 12 for 12."""
    return sorted({-(-rows // parts) for parts in range(1, rows + 1)})


def cut_batch(loaded: ResolvedLoaded, largest_fit: Callable[[int], int], processes: int = 1) -> BatchCut | Problem:
    """Return the cut for the config, or a problem. `largest_fit(limit)` returns the largest micro-batch that fits."""
    if problems := batch_problems(loaded, processes):
        return problems[0]
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective, effective_reason = step_rows(loaded.config), f"from {loaded.where(EFFECTIVE)}"
    micro_written, accumulation_written = (loaded.origin(key).by_user for key in (MICRO, ACCUMULATION))
    share = -(-effective // processes)
    of = "the effective batch" if processes == 1 else f"a process's share of {quantity(share, 'row')}"
    if isinstance(micro, int) and isinstance(accumulation, int) and micro_written and accumulation_written:
        product = "micro-batch x accumulation" + (" x processes" if processes > 1 else "")
        return _cut(effective_rows(loaded, processes), micro, product, f"from {loaded.where(MICRO)}", processes)
    if isinstance(micro, int) and micro_written:
        reason = f"from {loaded.where(MICRO)}"
        if micro > share:
            reason += f", where it is {micro}: limited to {of}"
        return _cut(effective, min(micro, share), effective_reason, reason, processes)
    if isinstance(accumulation, int) and micro != TUNE:
        rows = "effective batch" if processes == 1 else f"{quantity(share, 'row')} of a process"
        reason = f"{rows} / {ACCUMULATION} from {loaded.where(ACCUMULATION)}"
        cut = _cut(effective, -(-share // min(accumulation, share)), effective_reason, reason, processes)
        if cut.accumulation == accumulation:
            return cut
        uneven = f"{cut.accumulation_reason}; {accumulation} micro-batches, as requested, would leave one of them empty"
        return replace(cut, accumulation_reason=uneven)
    limit = min(micro, share) if isinstance(micro, int) else share
    fits = largest_fit(limit)
    # Parts are equal: if 20 rows fit, 32 rows are cut into 16 and 16, not into 20 and 12.
    even = -(-share // -(-share // fits))
    if fits < limit:
        reason = f"the largest equal part of {of} that fits in memory (up to {fits} rows fit)"
    elif isinstance(micro, int) and micro < share:
        reason = f"the largest equal part of {of} with at most {micro} rows, from {loaded.where(MICRO)}"
    else:
        reason = f"{of.replace('the effective', 'the whole effective')} fits in memory"
    return _cut(effective, even, effective_reason, reason, processes)


def _cut(effective: int, micro: int, effective_reason: str, micro_reason: str, processes: int) -> BatchCut:
    share = -(-effective // processes)
    return BatchCut(
        effective=effective,
        micro=micro,
        accumulation=-(-share // micro),
        effective_reason=effective_reason,
        micro_reason=micro_reason,
        accumulation_reason=f"{quantity(share, 'row')} in micro-batches of {micro}",
        processes=processes,
    )


def is_cut_freely(loaded: LoadedConfig) -> bool:
    """Return whether the plan may choose the micro-batch. A number in a hardware profile is only an upper limit."""
    training = loaded.config.training
    micro = training.per_device_train_batch_size
    is_open = micro == "auto" or (micro != TUNE and not loaded.origin(MICRO).by_user)
    return is_open and training.gradient_accumulation_steps == "auto"


def cut_by_length(cut: BatchCut, facts: DataFacts, padding: Callable[[int], float], starting_tokens: float) -> BatchCut:
    """Return a cut into smaller passes, of rows of similar length, if it computes clearly less padding; else `cut`.

    `padding(micro)` is the share of padding with passes of `micro` rows. Starting a pass takes as long as computing
    `starting_tokens`.
    """
    rows = cut.share_of(facts.rows)

    def tokens(micro: int) -> float:
        return rows * facts.row_tokens / (1 - padding(micro)) + -(-rows // micro) * starting_tokens

    halves = [min(cut.micro, rows)]
    while halves[-1] > 1:
        halves.append(-(-halves[-1] // 2))
    costs = {micro: tokens(micro) for micro in halves}
    fastest = min(costs, key=lambda micro: costs[micro])
    if costs[fastest] > (1 - LEAST_SAVING) * costs[halves[0]]:
        return cut
    shares = f"{padding(fastest):.0%} padding instead of {padding(halves[0]):.0%} with {halves[0]} rows per pass"
    reason = f"rows of similar length share a pass: {shares}"
    return _cut(cut.effective, fastest, cut.effective_reason, reason, cut.processes)


# These functions decide whether documents share rows, and how many rows a step then has.
#
# A step trains on the same documents either way, so packing changes neither the gradient nor the number of steps, but
# only the time.

PACKING, GROUP_BY_LENGTH = "data.packing", "data.group_by_length"
# Families whose layers do not use positions to find the beginning of a document, as tests/training/test_packing.py
# shows. For all other families the probe at the start of a run decides (`training/probes.py`).
SEES_OTHERS = {
    "opt": "OPT counts positions through the whole row",
    "bloom": "Bloom measures distances through the whole row",
    "falcon": "Falcon's attention crosses the boundaries of documents",
    "mamba": "Mamba carries its state through the whole row",
    "mamba2": "Mamba carries its state through the whole row",
    "mpt": "MPT measures distances through the whole row",
    "qwen3_5": "Qwen 3.5's recurrent layers carry their state through the whole row",
    "qwen3_5_text": "Qwen 3.5's recurrent layers carry their state through the whole row",
}
# With a smaller saving, rows are nearly full without packing.
LEAST_SAVING = 0.1
# The number of packed rows differs from step to step; passes have room for this many times the mean.
_SPREAD = 1.2
# Tokens of the largest batch, in means of all batches; and of the longest document, in lengths of the longest sampled.
_BATCH_SPREAD, _GUESSED_SPREAD = 1.3, 1.5


def packing(loaded: LoadedConfig, facts: DataFacts, shape: ModelShape, effective: int) -> Planned[bool]:
    requested = loaded.config.data.packing
    where = f", from {loaded.where(PACKING)}"
    if requested is False:
        return exact(False, f"data.packing = false{where}")
    if facts.packed_rows is None:
        task = loaded.config.task.type
        why = "rows are cut from one long text, so they are full" if facts.is_stream else f"{task} never packs rows"
        return exact(False, why)
    if is_asked(loaded.config):
        return exact(False, "Unsloth's attention covers whole rows: packed documents would mix")
    if why := against_packing(shape.model_type):
        return exact(False, why)
    rows = min(effective, facts.rows)
    saving = 1 - facts.packed_rows / rows
    fill = f"{rows} documents of about {facts.row_tokens:.0f} tokens fill {facts.packed_rows:.1f} rows"
    if requested is True:
        return Planned(value=True, exact=facts.exact, reason=f"{fill}{where}")
    if saving < LEAST_SAVING:
        return Planned(value=False, exact=facts.exact, reason=f"{fill}: packing would save little")
    return Planned(value=True, exact=facts.exact, reason=fill)


def grouping(loaded: LoadedConfig, shares: PaddingShares | None, *, is_exact: bool) -> Planned[bool]:
    """Return whether each batch gets rows of similar length. `shares` is None if rows have no padding."""
    requested = loaded.config.data.group_by_length
    if requested != "auto":
        where = loaded.where(GROUP_BY_LENGTH)
        return exact(requested, f"data.group_by_length = {str(requested).lower()}, from {where}")
    if shares is None:
        return exact(False, "there is no padding")
    reason = f"{shares.padded:.0%} padding in random batches, {shares.grouped:.0%} in batches grouped by length"
    return Planned(value=spares_padding(shares), exact=is_exact, reason=reason)


def spares_padding(shares: PaddingShares) -> bool:
    """Return whether batches of similar length avoid enough padding."""
    return shares.padded > LEAST_SAVING and shares.grouped <= shares.padded - LEAST_SAVING / 2


def packing_problems(loaded: LoadedConfig, shape: ModelShape) -> list[Problem]:
    """Return a problem if packing was requested and documents of this model would attend to each other."""
    if loaded.config.data.packing is True and (why := against_packing(shape.model_type)):
        return [loaded.problem(PACKING, f"is true, but {why}", "set it to auto")]
    return []


def against_packing(model_type: str) -> str:
    """Return why rows for this kind of model are not packed, as a clause; empty if the probe of a run decides."""
    return f"{SEES_OTHERS[model_type]}: packed documents would mix" if model_type in SEES_OTHERS else ""


def longest_row(config: ResolvedConfig, facts: DataFacts, packed: bool) -> int:
    """Return the tokens of the longest row in a pass. The plan reserves memory for it, and packing makes no row longer.

    Packed rows are full, unless all documents of a small batch fit into one. Documents of one prepared row stay in one
    row even if together they exceed `data.max_length`, which limits each of them.
    """
    longest = _longest(config, facts)
    if not packed:
        return longest
    whole = longest * facts.row_documents
    together = min(step_rows(config), facts.rows) * facts.row_tokens
    return min(max(config.data.max_length, whole), max(whole, math.ceil(together * _BATCH_SPREAD)))


def _longest(config: Config, facts: DataFacts) -> int:
    """Return the tokens of the longest document."""
    length, spread = config.data.max_length, 1.0 if facts.exact else _GUESSED_SPREAD
    return min(length, math.ceil((facts.longest_row or length) * spread))


def most_rows(config: ResolvedConfig, facts: DataFacts, packed: bool, effective: int) -> int:
    """Return the largest number of rows that a step can have.

    Best-fit packing opens a row only for a document that fits into no other row. So all rows but the last hold at least
    as many documents as if each document were as long as the longest.
    """
    documents = min(effective, facts.rows)
    if not packed:
        return documents
    return -(-documents // (longest_row(config, facts, packed) // (_longest(config, facts) * facts.row_documents)))


def packed_cut(
    loaded: ResolvedLoaded, cut: BatchCut, facts: DataFacts, widest: int, largest_fit: Callable[[int], int]
) -> BatchCut:
    """Return the cut of a step with packed rows, in which a micro-batch counts packed rows."""
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
        reason = "all packed rows of a step fit in memory" if fits >= rows else f"{fits} packed rows fit in memory"
    accumulation = -(-rows // micro)
    return replace(
        cut,
        micro=micro,
        micro_reason=reason,
        accumulation=accumulation,
        accumulation_reason=f"up to {rows} packed rows in micro-batches of {micro}"
        + ("; a step with more rows needs another forward pass" if most > accumulation * micro else ""),
    )
