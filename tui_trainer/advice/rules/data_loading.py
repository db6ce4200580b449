"""How rows come from the disk into a step."""

from typing import Any

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Rule, Verdict, failed, not_applicable, passed, percent, symptom, warned
from tui_trainer.advice.run_view import RunView
from tui_trainer.planning.disk import space_words
from tui_trainer.tasks import find_task
from tui_trainer.units import MIB, format_bytes, format_seconds

WORKERS, _PROCESSES = "dataloader.num_workers", "data.num_proc"
_MOST_FETCHING_SHARE, _SOME_WORKERS = 0.05, 2
# Batches are cut from prepared tokens: nothing is decoded on the way, and more threads only take turns.
_MOST_WORKERS = 8
_FASTER_DISK = "move the prepared data to a faster disk: export TUI_TRAINER_HOME=FOLDER"
_LEAST_BYTES_PER_SECOND = 0.5 * MIB
_STALLED_SHARE = 0.5
# Of what a batch has in prepared data: less comes from storage where other files of the run are read.
_LEAST_READ_SHARE, _TOKEN_BYTES = 0.5, 4
_MOST_READING_SHARE = 0.1
# What the data takes is estimated from its beginning.
_EASY_TIMES = 2


class DataCache(Rule):
    """Tokens are cached by content and settings, so that later starts do not tokenise again."""

    name, title, order = "data_cache", "Data is prepared once", 240

    def before(self, context: Context) -> Verdict:
        plan, folder = context.planned, context.cache.path
        tokens = context.all_tokens or plan.train_tokens.value
        data = context.config.data
        tokens = min(tokens, data.max_chars * len(data.paths) or tokens)
        needed = _TOKEN_BYTES * tokens
        rows = plan.train_rows
        if rows.exact:
            return passed(f"{rows.value:,} rows are already prepared ({format_bytes(needed)}): the run reuses them")
        if context.cache.writable is False:
            advice = "choose another folder: export TUI_TRAINER_HOME=FOLDER"
            return failed(f"{folder} is not writable, so data cannot be prepared", advice=advice)
        free = context.cache.free_bytes
        waiting = tokens * find_task(context.config.task.type).waiting_bytes
        if free is not None and free < _EASY_TIMES * (needed + waiting):
            sentence = space_words(f"preparing the data in {folder} needs about", needed + waiting, free)
            advice = f"free up space (du -sh {folder} shows what is used)"
            return (failed if free < needed + waiting else warned)(sentence, advice=advice)
        return passed(
            f"the first start prepares about {rows.value:,} rows ({format_bytes(needed)}), later starts reuse them"
        )


@symptom("Waiting for data")
def waiting_for_data(view: RunView) -> Cause | None:
    """A processor that waits for its next batch is idle."""
    share, workers = view.share(view.data_seconds), view.plan.loader_workers if view.plan else None
    if _disk_bytes_per_second(view) is not None:
        return None
    fix, advice = None, ""
    if workers is not None:
        more = min(2 * workers or 1, _most_workers(view.mean("usable_cores"), on_gpu=view.on_gpu))
        fix = {WORKERS: more} if more > workers else None
        advice = "loader threads prepare batches while the previous step computes" if fix else _FASTER_DISK
    return Cause(
        cause="Training waits for its data.",
        evidence=f"{percent(share)} of the time, {view.of_whole(view.data_seconds)}",
        share=share,
        fix=fix,
        advice=advice,
    )


class DataLoading(Rule):
    """Workers help if rows are decoded or tokenised during training; for small data they cost more than they gain.

    Source: the documentation of torch.utils.data.
    """

    name, title, order = "data_loading", "Training does not wait for data", 250
    settings = (WORKERS,)
    is_for_speed = True
    during = (waiting_for_data,)

    def before(self, context: Context) -> Verdict:
        earlier, workers, on_gpu = context.earlier, context.planned.loader_workers, bool(context.basis.target.gpu)
        how, most = _how(context), _most_workers(context.hardware.usable_cores, on_gpu=on_gpu)
        switch = f"non-blocking copies{_copies(context)}"
        if workers.value == 0 and on_gpu:
            sentence = f"{how}, while the GPU waits: num_workers is 0, {workers.reason}"
            return warned(sentence, fix={WORKERS: "auto"}, switch=switch)
        if workers.value > most and not on_gpu:
            sentence = f"{how}, on the cores that train: num_workers is {workers.value}, {workers.reason}"
            return warned(sentence, fix={WORKERS: "auto"}, switch=switch)
        other = {WORKERS: 0 if workers.value else _SOME_WORKERS}
        if earlier is None or earlier.data_share is None:
            sentence = f"{how}; the first run of this kind measures how long steps wait for batches"
            return not_applicable(sentence, opposite=other, switch=switch)
        sentence = f"run {earlier.name} waited for data {earlier.data_share:.1%} of the time in {earlier.steps:,} steps"
        if earlier.data_share <= _MOST_FETCHING_SHARE:
            return passed(f"{sentence}; {how}", opposite=other, switch=switch)
        sentence = f"{sentence}; at most {_MOST_FETCHING_SHARE:.0%} is good"
        if 0 < workers.value < most:
            return warned(sentence, fix={WORKERS: most}, advice=f"or {_FASTER_DISK}", switch=switch)
        return warned(sentence, advice=_FASTER_DISK, switch=switch)


def _most_workers(cores: float | None, *, on_gpu: bool) -> int:
    """Beside a GPU two cores are left to the training; on a CPU all of them train, and one thread fetches."""
    return max(1, min(_MOST_WORKERS, round(cores or _MOST_WORKERS + 2) - 2)) if on_gpu else 1


def _how(context: Context) -> str:
    workers, loader = context.planned.loader_workers.value, context.config.dataloader
    source = "batches are read from a memory-mapped file"
    if not workers:
        return f"{source} between steps"
    pinned = ", into pinned memory" if _is_pinned(context) else ""
    threads = "1 thread" if workers == 1 else f"{workers} threads"
    return f"{source} by {threads}, {workers * loader.prefetch_factor} steps ahead{pinned}"


def _is_pinned(context: Context) -> bool:
    """Whether batches are made in memory that a card copies from by itself, as `Prefetcher` does."""
    loader = context.config.dataloader
    return bool(context.planned.loader_workers.value and loader.pin_memory and context.basis.target.gpu)


def _copies(context: Context) -> str:
    """Whether a step waits for its batch to be copied to the card: torch copies beside the work from pinned memory
    only, whatever `non_blocking` says."""
    if context.basis.target.gpu is None:
        return ": no GPU"
    return " on, from pinned memory" if _is_pinned(context) else ": off, batches are not in pinned memory"


def _disk_bytes_per_second(view: RunView) -> float | None:
    """What the run waits for when it waits for data: much comes from storage, or what a batch has, and storage stalls
    this machine. None where it lies in memory already, or that is not counted."""
    read, seconds = view.mean("disk_read_bytes"), view.seconds_between_readings
    if read is None or not seconds:
        return None
    rate, stall = read / seconds, view.mean("io_stall_share") or 0.0
    batch_bytes = _TOKEN_BYTES * view.sums.input_tokens / max(view.sums.steps, 1)
    from_storage = rate > 0 and rate * view.whole_seconds >= _LEAST_READ_SHARE * batch_bytes
    return rate if rate >= _LEAST_BYTES_PER_SECOND or (from_storage and stall >= _STALLED_SHARE) else None


class LoaderWorkers(Rule):
    """The right number depends on the cost of a row: a tokenised row costs a copy, a row that is tokenised during
    training part of a core.

    Source: the documentation of torch.utils.data; min(8, cores - 2) and min(16, cores - 1) are rules of thumb of guides
    for rows that are tokenised while the training runs, the second for heavy preprocessing.
    """

    name, title, order = "loader_workers", "Loader threads", 252
    settings = (WORKERS, _PROCESSES)
    is_for_speed = True

    def before(self, context: Context) -> Verdict:
        plan, cores = context.planned, context.hardware.usable_cores
        workers, processes = plan.loader_workers.value, context.config.data.num_proc
        most = _most_workers(cores, on_gpu=True)
        tokenised = "an automatic number of processes" if processes == "auto" else f"{processes} processes"
        details = (
            f"rules of thumb for loader threads: min(8, cores - 2) = {max(1, min(8, cores - 2))} "
            "if rows are tokenised during training, "
            f"min(16, cores - 1) = {max(1, min(16, cores - 1))} for a slow tokenizer",
            "here, rows are tokenised before the first step, also with data.streaming; "
            + _which_rule(context, workers, most),
            f"rows are tokenised once, by {tokenised}",
        )
        if not workers and processes == "auto":
            return not_applicable("the training thread prepares batches itself", *details)
        fix: dict[str, Any] = {}
        if workers > most:
            fix[WORKERS] = most if plan.device == "cuda" else 0
        if isinstance(processes, int) and processes > max(cores, 1):
            fix[_PROCESSES] = max(1, int(cores))
        counted = f"{workers} loader threads (at most {most} for {cores:g} cores)"
        sentence = f"{counted}, rows are tokenised once by {tokenised}"
        return warned(sentence, *details, fix=fix) if fix else passed(sentence, *details)


def _which_rule(context: Context, workers: int, most: int) -> str:
    """By the wait that was measured, or that it was not."""
    earlier = context.earlier
    if earlier is None or earlier.data_share is None:
        return "one thread copies the tokenised rows; the first run of this kind measures how long steps wait for them"
    waited = f"run {earlier.name} waited for data {earlier.data_share:.1%} of the time"
    if earlier.data_share <= _MOST_FETCHING_SHARE:
        return f"{waited}, so these rules of thumb do not apply, and {workers} threads are enough"
    return f"{waited}, so these rules of thumb apply, up to {most} threads"


@symptom("Slow disk")
def slow_disk(view: RunView) -> Cause | None:
    """Prepared data is cached in free memory; data that does not fit there is read from the disk each time."""
    share, rate = view.share(view.data_seconds), _disk_bytes_per_second(view)
    if rate is None:
        return None
    return Cause(
        cause="Training waits for the disk that holds its data.",
        evidence=(
            f"{percent(share)} of the time, {view.of_whole(view.data_seconds)}, "
            f"while {format_bytes(rate)}/s are read from the disk"
        ),
        share=share,
        advice=f"{_FASTER_DISK}; or free memory, so that the data stays cached",
    )


class StorageSpeed(Rule):
    """A step cannot begin before its rows are read; data that was read once stays in free memory."""

    name, title, order = "storage_speed", "Disk speed", 254
    during = (slow_disk,)

    def before(self, context: Context) -> Verdict:
        plan, measured, step = context.planned, context.data_read, context.step_seconds
        if measured is None:
            return not_applicable(
                "nothing to measure: the data is small, not on this machine, or generated by this program"
            )
        sentence = f"{measured.path} is read at {format_bytes(measured.bytes_per_second)}/s, measured now"
        if step is None:
            return passed(sentence)
        needed, epoch = _TOKEN_BYTES * plan.train_tokens.value, step * plan.steps_per_epoch.value
        reading = needed / measured.bytes_per_second
        sentence += (
            f"; an epoch of {format_seconds(epoch)} reads {format_bytes(needed)}, which takes {format_seconds(reading)}"
        )
        if reading <= _MOST_READING_SHARE * epoch:
            return passed(sentence)
        return warned(sentence, advice=_FASTER_DISK)
