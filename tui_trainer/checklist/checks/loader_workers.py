"""Heavy preprocessing is done once, before the training; what is left for loader threads is to copy tokens.

Source: the documentation of torch.utils.data.
"""

from typing import Any

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_WORKERS, _PROCESSES = "dataloader.num_workers", "data.num_proc"
# Batches are cut from prepared tokens: nothing is decoded on the way, and more threads only take turns.
_MOST_WORKERS = 8


@check(
    order=252,
    title="Loader threads suit the cores",
    is_for_speed=True,
)
def look(context: Context) -> Verdict:
    plan, cores = context.planned, context.hardware.usable_cores
    workers, processes = plan.loader_workers.value, context.config.data.num_proc
    if not workers and processes == "auto":
        return not_applicable("batches are made by the training thread itself, and rows are tokenised by one process")
    most = max(1, min(_MOST_WORKERS, round(cores) - 2))
    fix: dict[str, Any] = {}
    if workers > most:
        fix[_WORKERS] = most if plan.device == "cuda" else 0
    if isinstance(processes, int) and processes > max(cores, 1):
        fix[_PROCESSES] = max(1, int(cores))
    tokenised = "one process" if processes == "auto" else f"{processes} processes"
    sentence = f"{workers} loader threads (at most {most} for {cores:g} cores), rows are tokenised once by {tokenised}"
    return warned(sentence, fix=fix) if fix else passed(sentence)
