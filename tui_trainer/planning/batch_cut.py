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

EFFECTIVE_BATCH_KEY = "training.effective_batch_size"
MICRO_BATCH_KEY = "training.per_device_train_batch_size"
ACCUMULATION_KEY = "training.gradient_accumulation_steps"
BASE_BATCH_KEY = "training.base_batch_size"
PROCESSES = "distributed.processes"
TUNE = "tune"
"""Value of the micro-batch setting for measuring it before the start (`planning/measured_steps.py`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCut:
    """Cut of a step: its rows in all processes, the rows of a forward pass, and the passes of each process."""

    effective_batch: int
    micro_batch: int
    accumulation: int
    effective_reason: str
    micro_reason: str
    accumulation_reason: str
    processes: int = 1

    @property
    def process_rows(self) -> int:
        """Largest number of rows of a step in one process."""
        return -(-self.effective_batch // self.processes)

    def process_rows_of(self, rows: int) -> int:
        """Return the largest number of rows of a step in one process, for data with `rows` rows."""
        return -(-min(self.effective_batch, rows) // self.processes)


def batch_problems(loaded: LoadedConfig, processes: int | None = None) -> list[Problem]:
    """Return a problem if the user set three sizes that contradict each other. `processes` is None if not known yet."""
    training = loaded.config.training
    micro_rows, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective_setting = training.effective_batch_size
    if micro_rows == TUNE and isinstance(accumulation, int) and loaded.origin(ACCUMULATION_KEY).by_user:
        message = f"is {accumulation}, but {MICRO_BATCH_KEY} = {TUNE} determines the accumulation"
        return [loaded.problem(ACCUMULATION_KEY, message, "set it to auto")]
    if effective_setting == "auto" or not (isinstance(micro_rows, int) and isinstance(accumulation, int)):
        return []
    if processes is None:
        # With auto the count of processes can still make the sizes agree.
        process_count, remainder = divmod(effective_setting, micro_rows * accumulation)
        processes = _requested_processes(loaded) or (1 if remainder else process_count)
    if micro_rows * accumulation * processes == effective_setting:
        return []
    if not all(loaded.origin(key).by_user for key in (EFFECTIVE_BATCH_KEY, MICRO_BATCH_KEY, ACCUMULATION_KEY)):
        return []
    product_text, numbers_text = f"{MICRO_BATCH_KEY} x {ACCUMULATION_KEY}", f"{micro_rows} x {accumulation}"
    if processes > 1:
        product_text, numbers_text = f"{product_text} x {PROCESSES}", f"{numbers_text} x {processes}"
    message = f"is {effective_setting}, but {product_text} = {numbers_text} = {micro_rows * accumulation * processes}"
    return [loaded.problem(EFFECTIVE_BATCH_KEY, message, "remove one of these settings")]


def effective_rows(loaded: LoadedConfig, processes: int | None = None) -> int:
    """Return the rows per optimizer step: the effective batch, or the product of micro-batch, accumulation and
    processes if the user set the first two.
    """
    training = loaded.config.training
    micro_rows, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    are_both_written = all(loaded.origin(key).by_user for key in (MICRO_BATCH_KEY, ACCUMULATION_KEY))
    if are_both_written and isinstance(micro_rows, int) and isinstance(accumulation, int):
        processes = processes or _requested_processes(loaded) or loaded.config.distributed.nodes
        return micro_rows * accumulation * processes
    return base_rows(loaded)[0] if training.effective_batch_size == "auto" else training.effective_batch_size


def base_rows(loaded: LoadedConfig) -> tuple[int, str]:
    """Return the rows per step that the learning rate is meant for, and the source of this number: the setting
    `base_batch_size`, or the recipe's effective batch."""
    recipe, is_written = loaded.recipe, loaded.origin(BASE_BATCH_KEY) is not Origin.DEFAULT
    rows = recipe.values.get("training", {}).get("effective_batch_size") if recipe and not is_written else None
    if isinstance(rows, int) and recipe:
        return rows, f"recipe {recipe.name}"
    return loaded.config.training.base_batch_size, loaded.where(BASE_BATCH_KEY) if is_written else "default"


def _requested_processes(loaded: LoadedConfig) -> int:
    """Return the number of processes that share the rows of a step; 0 if it is `auto`."""
    distributed = loaded.config.distributed
    return 0 if distributed.processes == "auto" else distributed.processes * distributed.nodes


def even_micro_batches(rows: int) -> list[int]:
    """Return the micro-batches that cut `rows` into equal parts, the smallest first: 1, 2, 3, 4, 6, 12 for 12."""
    return sorted({-(-rows // part_count) for part_count in range(1, rows + 1)})


def cut_batch(loaded: ResolvedLoaded, largest_fit: Callable[[int], int], processes: int = 1) -> BatchCut | Problem:
    """Return the cut for the config, or a problem. `largest_fit(limit)` returns the largest micro-batch that fits."""
    if problems := batch_problems(loaded, processes):
        return problems[0]
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    step_row_count, effective_reason = step_rows(loaded.config), f"from {loaded.where(EFFECTIVE_BATCH_KEY)}"
    is_micro_set, is_accumulation_set = (loaded.origin(key).by_user for key in (MICRO_BATCH_KEY, ACCUMULATION_KEY))
    micro_source = f"from {loaded.where(MICRO_BATCH_KEY)}"
    row_share = -(-step_row_count // processes)
    whole_name = "the effective batch" if processes == 1 else f"a process's share of {quantity(row_share, 'row')}"
    if isinstance(micro, int) and isinstance(accumulation, int) and is_micro_set and is_accumulation_set:
        product_text = "micro-batch x accumulation" + (" x processes" if processes > 1 else "")
        return _cut(effective_rows(loaded, processes), micro, product_text, micro_source, processes)
    if isinstance(micro, int) and is_micro_set:
        limit_clause = f", where it is {micro}, but limited to {whole_name}" if micro > row_share else ""
        return _cut(step_row_count, min(micro, row_share), effective_reason, micro_source + limit_clause, processes)
    if isinstance(accumulation, int) and micro != TUNE:
        rows = "effective batch" if processes == 1 else f"{quantity(row_share, 'row')} of a process"
        reason = f"{rows} / {ACCUMULATION_KEY} from {loaded.where(ACCUMULATION_KEY)}"
        cut = _cut(step_row_count, -(-row_share // min(accumulation, row_share)), effective_reason, reason, processes)
        if cut.accumulation == accumulation:
            return cut
        uneven = f"{cut.accumulation_reason}; {accumulation} micro-batches, as requested, would leave one of them empty"
        return replace(cut, accumulation_reason=uneven)
    most_allowed = min(micro, row_share) if isinstance(micro, int) else row_share
    fitting_rows = largest_fit(most_allowed)
    # Parts are equal: if 20 rows fit, 32 rows are cut into 16 and 16, not into 20 and 12.
    even_rows = -(-row_share // -(-row_share // fitting_rows))
    if fitting_rows < most_allowed:
        reason = f"the largest equal part of {whole_name} that fits in memory (up to {fitting_rows} rows fit)"
    elif isinstance(micro, int) and micro < row_share:
        reason = f"the largest equal part of {whole_name} with at most {micro} rows, {micro_source}"
    else:
        reason = f"{whole_name.replace('the effective', 'the whole effective')} fits in memory"
    return _cut(step_row_count, even_rows, effective_reason, reason, processes)


def _cut(effective: int, micro: int, effective_reason: str, micro_reason: str, processes: int) -> BatchCut:
    process_rows = -(-effective // processes)
    return BatchCut(
        effective_batch=effective,
        micro_batch=micro,
        accumulation=-(-process_rows // micro),
        effective_reason=effective_reason,
        micro_reason=micro_reason,
        accumulation_reason=f"{quantity(process_rows, 'row')} in micro-batches of {micro}",
        processes=processes,
    )


def is_cut_freely(loaded: LoadedConfig) -> bool:
    """Return whether the plan may choose the micro-batch. A number in a hardware profile is only an upper limit."""
    training = loaded.config.training
    micro_setting = training.per_device_train_batch_size
    is_open = micro_setting == "auto" or (micro_setting != TUNE and not loaded.origin(MICRO_BATCH_KEY).by_user)
    return is_open and training.gradient_accumulation_steps == "auto"


def cut_by_length(cut: BatchCut, facts: DataFacts, padding: Callable[[int], float], pass_tokens: float) -> BatchCut:
    """Return a cut into smaller passes, of rows of similar length, if it computes clearly less padding; else `cut`.

    `padding(micro)` is the share of padding with passes of `micro` rows. Starting a pass takes as long as computing
    `pass_tokens`.
    """
    rows = cut.process_rows_of(facts.rows)
    sizes = [min(cut.micro_batch, rows)]
    while sizes[-1] > 1:
        sizes.append(-(-sizes[-1] // 2))
    real_tokens = rows * facts.row_tokens
    cost_by_rows = {size: real_tokens / (1 - padding(size)) + -(-rows // size) * pass_tokens for size in sizes}
    fastest_rows = min(cost_by_rows, key=lambda size: cost_by_rows[size])
    if cost_by_rows[fastest_rows] > (1 - LEAST_SAVING) * cost_by_rows[sizes[0]]:
        return cut
    change = f"{padding(fastest_rows):.0%} padding instead of {padding(sizes[0]):.0%} with {sizes[0]} rows per pass"
    reason = f"rows of similar length share a pass: {change}"
    return _cut(cut.effective_batch, fastest_rows, cut.effective_reason, reason, cut.processes)


# These functions decide whether documents share rows, and how many rows a step then has.
#
# A step trains on the same documents either way: packing changes neither gradient nor number of steps, only the time.

PACKING, GROUP_BY_LENGTH = "data.packing", "data.group_by_length"
# Families whose layers do not use positions to find the beginning of a document, as tests/training/test_packing.py
# shows. For all other families the probe at the start of a run decides (`training/probes.py`).
UNPACKABLE_MODEL_TYPES = {
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
_PACKED_ROWS_FACTOR = 1.2
# Tokens of the largest batch, in means of all batches; and of the longest document, in lengths of the longest sampled.
_BATCH_SPREAD, _GUESSED_SPREAD = 1.3, 1.5


def decide_packing(loaded: LoadedConfig, facts: DataFacts, shape: ModelShape, effective: int) -> Planned[bool]:
    requested_packing = loaded.config.data.packing
    source_clause = f", from {loaded.where(PACKING)}"
    if requested_packing is False:
        return exact(False, f"data.packing = false{source_clause}")
    if facts.packed_rows is None:
        task = loaded.config.task.type
        reason = "rows are cut from one long text, so they are full" if facts.is_stream else f"{task} never packs rows"
        return exact(False, reason)
    if is_asked(loaded.config):
        return exact(False, "Unsloth's attention covers whole rows, so packed documents would mix")
    if reason := packing_obstacle(shape.model_type):
        return exact(False, reason)
    rows = min(effective, facts.rows)
    saved_share = 1 - facts.packed_rows / rows
    fill_text = f"{rows} documents of about {facts.row_tokens:.0f} tokens fill {facts.packed_rows:.1f} rows"
    if requested_packing is True:
        return Planned(value=True, exact=facts.exact, reason=f"{fill_text}{source_clause}")
    if saved_share < LEAST_SAVING:
        return Planned(value=False, exact=facts.exact, reason=f"{fill_text}, so packing would save little")
    return Planned(value=True, exact=facts.exact, reason=fill_text)


def decide_grouping(loaded: LoadedConfig, shares: PaddingShares | None, *, is_exact: bool) -> Planned[bool]:
    """Return whether each batch gets rows of similar length. `shares` is None if rows have no padding."""
    requested_value = loaded.config.data.group_by_length
    if requested_value != "auto":
        source = loaded.where(GROUP_BY_LENGTH)
        return exact(requested_value, f"data.group_by_length = {str(requested_value).lower()}, from {source}")
    if shares is None:
        return exact(False, "there is no padding")
    reason = f"{shares.padded:.0%} padding in random batches, {shares.grouped:.0%} in batches grouped by length"
    return Planned(value=spares_padding(shares), exact=is_exact, reason=reason)


def spares_padding(shares: PaddingShares) -> bool:
    """Return whether batches of similar length avoid enough padding."""
    return shares.padded > LEAST_SAVING and shares.grouped <= shares.padded - LEAST_SAVING / 2


def packing_problems(loaded: LoadedConfig, shape: ModelShape) -> list[Problem]:
    """Return a problem if packing was requested and documents of this model would attend to each other."""
    if loaded.config.data.packing is True and (why := packing_obstacle(shape.model_type)):
        return [loaded.problem(PACKING, f"is true, but {why}", "set it to auto")]
    return []


def packing_obstacle(model_type: str) -> str:
    """Return why rows for this kind of model are not packed, as a clause; empty if the probe of a run decides."""
    why = UNPACKABLE_MODEL_TYPES.get(model_type)
    return f"{why}, so packed documents would mix" if why else ""


def longest_row(config: ResolvedConfig, facts: DataFacts, packed: bool) -> int:
    """Return the tokens of the longest row in a pass. The plan reserves memory for it, and packing makes no row longer.

    Packed rows are full, unless all documents of a small batch fit into one. Documents of one prepared row stay in one
    row even if together they exceed `data.max_length`, which limits each of them.
    """
    longest_document = _longest(config, facts)
    if not packed:
        return longest_document
    whole_tokens = longest_document * facts.row_documents
    batch_tokens = min(step_rows(config), facts.rows) * facts.row_tokens
    return min(max(config.data.max_length, whole_tokens), max(whole_tokens, math.ceil(batch_tokens * _BATCH_SPREAD)))


def _longest(config: Config, facts: DataFacts) -> int:
    """Return the tokens of the longest document."""
    max_length, spread_factor = config.data.max_length, 1.0 if facts.exact else _GUESSED_SPREAD
    return min(max_length, math.ceil((facts.longest_row or max_length) * spread_factor))


def max_rows_of_step(config: ResolvedConfig, facts: DataFacts, packed: bool, effective: int) -> int:
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
    is_one_row = widest < loaded.config.data.max_length
    max_rows = -(-max_rows_of_step(loaded.config, facts, True, cut.effective_batch) // cut.processes)
    likely_rows = math.ceil((facts.packed_rows or 1) * _PACKED_ROWS_FACTOR / cut.processes)
    rows = 1 if is_one_row else min(max_rows, likely_rows)
    training = loaded.config.training
    parts = training.gradient_accumulation_steps
    if loaded.origin(MICRO_BATCH_KEY).by_user and isinstance(training.per_device_train_batch_size, int):
        micro, reason = min(cut.micro_batch, rows), cut.micro_reason
        reason += f"; a step has no more than {rows} packed rows" if micro < cut.micro_batch else ""
    elif isinstance(parts, int) and training.per_device_train_batch_size != TUNE:
        micro = -(-rows // min(parts, rows))
        reason = f"packed rows / {ACCUMULATION_KEY} from {loaded.where(ACCUMULATION_KEY)}"
    else:
        fits = largest_fit(rows)
        micro = -(-rows // -(-rows // fits))
        reason = "all packed rows of a step fit in memory" if fits >= rows else f"{fits} packed rows fit in memory"
    accumulation = -(-rows // micro)
    return replace(
        cut,
        micro_batch=micro,
        micro_reason=reason,
        accumulation=accumulation,
        accumulation_reason=f"up to {rows} packed rows in micro-batches of {micro}"
        + ("; a step with more rows needs another forward pass" if max_rows > accumulation * micro else ""),
    )
