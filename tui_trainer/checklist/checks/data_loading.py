"""Workers help where rows are decoded or tokenised on the way; for small data they cost more than they give.

Source: the documentation of torch.utils.data.
"""

from tui_trainer.checklist.contract import Context, Verdict, check, not_applicable, passed, warned

_KEY, _MOST_SHARE, _SOME_WORKERS = "dataloader.num_workers", 0.05, 2


@check(
    order=250,
    title="Training does not wait for data",
    is_for_speed=True,
)
def look(context: Context) -> Verdict:
    earlier, workers = context.earlier, context.planned.loader_workers
    how = _how(context)
    if workers.value == 0 and context.basis.target.gpu:
        return warned(f"{how}, while the GPU waits: num_workers is 0, {workers.reason}", fix={_KEY: "auto"})
    if workers.value and context.basis.target.gpu is None:
        sentence = f"{how}, on the cores that train: num_workers is {workers.value}, {workers.reason}"
        return warned(sentence, fix={_KEY: "auto"})
    other = {_KEY: 0 if workers.value else _SOME_WORKERS}
    if earlier is None or earlier.data_share is None:
        return not_applicable(f"{how}; the wait is measured by the first run of this kind", opposite=other)
    sentence = f"fetching took {earlier.data_share:.1%} of {earlier.steps:,} steps of run {earlier.name}"
    if earlier.data_share <= _MOST_SHARE:
        return passed(f"{sentence}; {how}", opposite=other)
    more = f"raise {_KEY} above {workers.value}, or " if workers.value else ""
    advice = f"{more}move the prepared data to a faster disk: export TUI_TRAINER_HOME=FOLDER"
    return warned(f"{sentence}, at most {_MOST_SHARE:.0%} is good", advice=advice)


def _how(context: Context) -> str:
    workers, loader = context.planned.loader_workers.value, context.config.dataloader
    source = "batches are cut from a memory-mapped file"
    if not workers:
        return f"{source} between steps"
    pinned = ", in pinned memory" if loader.pin_memory and context.basis.target.gpu else ""
    threads = "1 thread" if workers == 1 else f"{workers} threads"
    return f"{source} by {threads}, {workers * loader.prefetch_factor} steps ahead{pinned}"
