"""How the effective batch is cut into micro-batches.

Effective batch = micro-batch x accumulation x processes, and any cut gives the same gradient (the loss is a sum and a
count), so the last micro-batch may be smaller. Recipes state the effective batch; hardware profiles and memory decide
the cut.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from tui_trainer.config.load import LoadedConfig
from tui_trainer.errors import Problem

EFFECTIVE = "training.effective_batch_size"
MICRO = "training.per_device_train_batch_size"
ACCUMULATION = "training.gradient_accumulation_steps"
PROCESSES = "distributed.processes"


TUNE = "tune"
"""The micro-batch is measured before the start (`planning/kept_micro_batches.py`)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchCut:
    """Rows behind one optimizer step, rows in one forward pass, and how many of those each process has in a step."""

    effective: int
    micro: int
    accumulation: int
    effective_reason: str
    micro_reason: str
    accumulation_reason: str
    processes: int = 1

    @property
    def share(self) -> int:
        """Rows of a step in one process, at the most."""
        return -(-self.effective // self.processes)


def batch_problems(loaded: LoadedConfig, processes: int | None = None) -> list[Problem]:
    """Three numbers from the user that contradict each other; `processes`: where it is known how many there are."""
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective = training.effective_batch_size
    if micro == TUNE and isinstance(accumulation, int) and loaded.origin(ACCUMULATION).by_user:
        message = f"is {accumulation}, but {MICRO} = {TUNE} is to find how the batch is cut"
        return [loaded.problem(ACCUMULATION, message, "set it to auto")]
    if not (isinstance(micro, int) and isinstance(accumulation, int)):
        return []
    if processes is None:
        # With auto there may be as many as make it right.
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
    return [loaded.problem(EFFECTIVE, message, "leave one of the three out")]


def effective_rows(loaded: LoadedConfig, processes: int | None = None) -> int:
    """Rows behind one optimizer step: the effective batch, or the product of the other numbers where both of a process
    were written.
    """
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    both_written = all(loaded.origin(key).by_user for key in (MICRO, ACCUMULATION))
    if both_written and isinstance(micro, int) and isinstance(accumulation, int):
        return micro * accumulation * (processes or _requested(loaded) or loaded.config.distributed.nodes)
    return training.effective_batch_size


def _requested(loaded: LoadedConfig) -> int:
    """Processes among which the rows of a step are shared; 0 with `auto`."""
    distributed = loaded.config.distributed
    return 0 if distributed.processes == "auto" else distributed.processes * distributed.nodes


def even_parts(rows: int) -> list[int]:
    """The micro-batches that cut so many rows into equal parts, the smallest first: 12 into 1, 2, 3, 4, 6 or 12."""
    return sorted({-(-rows // parts) for parts in range(1, rows + 1)})


def cut_batch(loaded: LoadedConfig, largest_fit: Callable[[int], int], processes: int = 1) -> BatchCut | Problem:
    """The cut that the config asks for. `largest_fit(limit)`: the most rows up to `limit` whose memory fits."""
    if problems := batch_problems(loaded, processes):
        return problems[0]
    training = loaded.config.training
    micro, accumulation = training.per_device_train_batch_size, training.gradient_accumulation_steps
    effective, effective_reason = training.effective_batch_size, f"from {loaded.where(EFFECTIVE)}"
    micro_written, accumulation_written = (loaded.origin(key).by_user for key in (MICRO, ACCUMULATION))
    share = -(-effective // processes)
    of = "the effective batch" if processes == 1 else f"a process's share of {share} rows"
    if isinstance(micro, int) and isinstance(accumulation, int) and micro_written and accumulation_written:
        product = "micro-batch x accumulation" + (" x processes" if processes > 1 else "")
        return _cut(effective_rows(loaded, processes), micro, product, f"from {loaded.where(MICRO)}", processes)
    if isinstance(micro, int) and micro_written:
        reason = f"from {loaded.where(MICRO)}"
        if micro > share:
            reason += f", which says {micro}: no more than {of}"
        return _cut(effective, min(micro, share), effective_reason, reason, processes)
    if isinstance(accumulation, int) and micro != TUNE:
        rows = "effective batch" if processes == 1 else f"{share} rows of a process"
        reason = f"{rows} / {ACCUMULATION} from {loaded.where(ACCUMULATION)}"
        cut = _cut(effective, -(-share // min(accumulation, share)), effective_reason, reason, processes)
        if cut.accumulation == accumulation:
            return cut
        uneven = f"{cut.accumulation_reason}; {accumulation}, as asked for, would leave a part empty"
        return replace(cut, accumulation_reason=uneven)
    limit = min(micro, share) if isinstance(micro, int) else share
    fits = largest_fit(limit)
    # Equal parts: 32 rows of which 20 fit are cut into 16 and 16, not into 20 and 12.
    even = -(-share // -(-share // fits))
    if fits < limit:
        reason = f"the largest equal part of {of} that fits in memory ({fits} rows would)"
    elif isinstance(micro, int) and micro < share:
        reason = f"the largest equal part of {of} up to {micro}, from {loaded.where(MICRO)}"
    else:
        reason = f"{of.replace('the effective', 'the whole effective')} fits"
    return _cut(effective, even, effective_reason, reason, processes)


def _cut(effective: int, micro: int, effective_reason: str, micro_reason: str, processes: int) -> BatchCut:
    share = -(-effective // processes)
    return BatchCut(
        effective=effective,
        micro=micro,
        accumulation=-(-share // micro),
        effective_reason=effective_reason,
        micro_reason=micro_reason,
        accumulation_reason=f"{share} rows in parts of {micro}",
        processes=processes,
    )
