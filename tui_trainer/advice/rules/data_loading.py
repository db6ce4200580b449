"""Rules about loading rows from the disk and preparing batches."""

from tui_trainer.advice.context import Context
from tui_trainer.advice.contract import Cause, Verdict, failed, not_applicable, passed, rule, symptom, warned
from tui_trainer.advice.run_view import RunView
from tui_trainer.planning.disk import space_words
from tui_trainer.tasks import find_task
from tui_trainer.units import MIB, format_bytes, format_percent, quantity

GROUP = "Data"
WORKERS, _PROCESSES = "dataloader.num_workers", "data.num_proc"
# A run that waits for data for a larger share of its time gets a finding.
_MOST_FETCHING_SHARE = 0.05
# Number of loader threads with which a run without loader threads is compared.
_SOME_WORKERS = 2
# Batches are cut from prepared tokens without decoding, so more threads would only take turns.
_MOST_WORKERS = 8
_FASTER_DISK = "move the prepared data to a faster disk: export TUI_TRAINER_HOME=FOLDER"
# A run that only writes its journal and checkpoints reads less than this from storage.
_LEAST_BYTES_PER_SECOND = 0.5 * MIB
# Storage stalls the machine for this share of the time before a slower rate counts as well.
_STALLED_SHARE = 0.5
# Share of the bytes of a batch. A run that reads less than this from storage may be reading other files.
_LEAST_READ_SHARE = 0.5
_TOKEN_BYTES = 4
# The size of prepared data is estimated from the first rows, so twice the estimate must fit.
_FREE_SPACE_FACTOR = 2


@rule("Data is prepared once", 240)
def data_cache(context: Context) -> Verdict:
    """Tokens are cached by content and settings, so that later starts do not tokenise again."""
    plan, folder = context.required_plan, context.cache.path
    tokens = context.all_token_count or plan.train_tokens.value
    data = context.config.data
    tokens = min(tokens, data.max_chars * len(data.paths) or tokens)
    needed_bytes = _TOKEN_BYTES * tokens
    rows = plan.train_rows
    if rows.exact:
        return passed(f"{rows.value:,} rows are already prepared ({format_bytes(needed_bytes)}): the run reuses them")
    if context.cache.writable is False:
        advice = "choose another folder: export TUI_TRAINER_HOME=FOLDER"
        return failed(f"{folder} is not writable, so data cannot be prepared", advice=advice)
    free_bytes = context.cache.free_bytes
    waiting_bytes = tokens * find_task(context.config.task.type).waiting_bytes
    if free_bytes is not None and free_bytes < _FREE_SPACE_FACTOR * (needed_bytes + waiting_bytes):
        sentence = space_words(f"preparing the data in {folder} needs about", needed_bytes + waiting_bytes, free_bytes)
        advice = f"free up space (du -sh {folder} shows what is used)"
        return (failed if free_bytes < needed_bytes + waiting_bytes else warned)(sentence, advice=advice)
    size_text = f"{rows.value:,} rows ({format_bytes(needed_bytes)})"
    return passed(f"the first start prepares about {size_text}; later starts reuse them")


@symptom("Waiting for data")
def waiting_for_data(view: RunView) -> Cause | None:
    """A processor that waits for its next batch is idle."""
    share, workers = view.share_of_time(view.data_seconds), view.plan.loader_workers if view.plan else None
    if _disk_bytes_per_second(view) is not None:
        return None
    fix, advice = None, ""
    if workers is not None:
        more_workers = min(2 * workers or 1, _most_workers(view.mean("usable_cores"), on_gpu=view.on_gpu))
        fix = {WORKERS: more_workers} if more_workers > workers else None
        advice = "loader threads prepare batches while the previous step computes" if fix else _FASTER_DISK
    return Cause(
        cause="Training waits for its data.",
        evidence=f"{format_percent(share)} of the time, {view.seconds_of_step_words(view.data_seconds)}",
        share=share,
        fix=fix,
        advice=advice,
    )


@symptom("Slow disk")
def slow_disk(view: RunView) -> Cause | None:
    """Prepared data is cached in free memory; data that does not fit there is read from the disk each time."""
    share, bytes_per_second = view.share_of_time(view.data_seconds), _disk_bytes_per_second(view)
    if bytes_per_second is None:
        return None
    return Cause(
        cause="Training waits for the disk that holds its data.",
        evidence=(
            f"{format_percent(share)} of the time, {view.seconds_of_step_words(view.data_seconds)}, "
            f"while {format_bytes(bytes_per_second)}/s are read from the disk"
        ),
        share=share,
        advice=f"{_FASTER_DISK}; or free up memory, so that the data stays cached",
    )


@rule(
    "Training does not wait for data", 250, WORKERS, _PROCESSES,
    is_for_speed=True, symptoms=(waiting_for_data, slow_disk),
)  # fmt: skip
def data_loading(context: Context) -> Verdict:
    """Workers help if rows are decoded or tokenised during training; for small data they cost more than they gain.

    Source: the documentation of torch.utils.data.
    """
    earlier, workers, on_gpu = context.earlier, context.required_plan.loader_workers, bool(context.basis.target.gpu)
    cores, processes = context.hardware.usable_cores, context.config.data.num_proc
    batch_source, switch = _loading_clauses(context)
    most_workers = _most_workers(cores, on_gpu=on_gpu)
    if isinstance(processes, int) and processes > max(cores, 1):
        sentence = f"rows are tokenised once by {processes} processes, more than the {cores:g} usable cores"
        return warned(sentence, fix={_PROCESSES: max(1, int(cores))}, switch_state=switch)
    if (workers.value == 0 and on_gpu) or workers.value > most_workers:
        place = f"on {cores:g} cores" if on_gpu else "on the cores that train"
        place = place if workers.value else "while the GPU waits"
        sentence = f"{batch_source}, {place}: num_workers is {workers.value} ({workers.reason})"
        return warned(sentence, fix={WORKERS: "auto"}, switch_state=switch)
    other_patch = {WORKERS: 0 if workers.value else _SOME_WORKERS}
    if earlier is None or earlier.data_share is None:
        sentence = f"{batch_source}; the first run of this kind measures how long steps wait for batches"
        return not_applicable(sentence, opposite_patch=other_patch, switch_state=switch)
    sentence = f"run {earlier.name} waited for data for {earlier.data_share:.1%} of its time ({earlier.steps:,} steps)"
    if earlier.data_share <= _MOST_FETCHING_SHARE:
        return passed(f"{sentence}; {batch_source}", opposite_patch=other_patch, switch_state=switch)
    sentence = f"{sentence}; at most {_MOST_FETCHING_SHARE:.0%} is good"
    if 0 < workers.value < most_workers:
        return warned(sentence, fix={WORKERS: most_workers}, advice=f"or {_FASTER_DISK}", switch_state=switch)
    return warned(sentence, advice=_FASTER_DISK, switch_state=switch)


def _most_workers(cores: float | None, *, on_gpu: bool) -> int:
    """Return the maximum number of loader threads that helps. With a GPU, two cores stay free for training. On a CPU it
    is 1, because all cores train."""
    return max(1, min(_MOST_WORKERS, round(cores or _MOST_WORKERS + 2) - 2)) if on_gpu else 1


def _loading_clauses(context: Context) -> tuple[str, str]:
    """Return a clause on how a step gets its batch, and one on whether copies to the GPU overlap with computation. They
    do so only from pinned memory, even with `non_blocking`."""
    loader, gpu = context.config.dataloader, context.basis.target.gpu
    workers = context.required_plan.loader_workers.value
    is_pinned = bool(workers and loader.pin_memory and gpu)
    copies_state = " on, from pinned memory" if is_pinned else ": off, batches are not in pinned memory"
    switch = f"non-blocking copies{copies_state if gpu else ': no GPU'}"
    source = "batches are read from a memory-mapped file"
    if not workers:
        return f"{source} between steps", switch
    threads_text = quantity(workers, "thread")
    pinned_note = ", into pinned memory" if is_pinned else ""
    return f"{source} by {threads_text}, {workers * loader.prefetch_factor} steps ahead{pinned_note}", switch


def _disk_bytes_per_second(view: RunView) -> float | None:
    """Return the bytes per second that a run reads from storage. None if that is little and storage does not stall the
    machine, or if it was not measured."""
    read_bytes, seconds = view.mean("disk_read_bytes"), view.seconds_between_readings
    if read_bytes is None or not seconds:
        return None
    rate, stall_share = read_bytes / seconds, view.mean("io_stall_share") or 0.0
    batch_bytes = _TOKEN_BYTES * view.sums.input_tokens / max(view.sums.steps, 1)
    reads_enough = rate > 0 and rate * view.whole_seconds >= _LEAST_READ_SHARE * batch_bytes
    return rate if rate >= _LEAST_BYTES_PER_SECOND or (reads_enough and stall_share >= _STALLED_SHARE) else None
